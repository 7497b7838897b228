#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::io_json_test {
namespace {

std::string refusal(std::string_view text) {
  return error_message([&] { parse_json(text, "x.json"); });
}

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST_CASE("valid JSON is parsed", "[io][json]") {
  const auto document = parse_json(
      " {\"a\": [1, -2, 0.5, true, null, {}], \"b\": {\"a\": \"\\u00e9\\ud83d\\ude00\\n\"}} \n",
      "x");
  REQUIRE(document == nlohmann::json{{"a", {1, -2, 0.5, true, nullptr, nlohmann::json::object()}},
                                     {"b", {{"a", "\u00e9\U0001F600\n"}}}});
  REQUIRE(parse_json("18446744073709551615", "x").get<std::uint64_t>() == UINT64_MAX);
  REQUIRE_FALSE(parse_json("18446744073709551616", "x").is_number_unsigned());
  REQUIRE(parse_json(nested(max_json_depth), "x").is_array());
}

TEST_CASE("what strict JSON forbids is refused with the file and the reason", "[io][json]") {
  struct Case {
    std::string text, reason;
  };
  const std::vector<Case> cases = {
      {"", "it is empty"},
      {"{\"a\":1", "unexpected end of input"},
      {"{\"a\":1} x", "line 1, column 9"},
      {"{}{}", "expected end of input"},
      {"{\"a\":1,}", "expected string literal"},
      {"{\n// comment\n}", "line 2"},
      {"[NaN]", "invalid literal"},
      {"[01]", "line 1, column 3"},
      {"[1e400]", "number overflow parsing '1e400'"},
      {"\xEF\xBB\xBF{}", "byte order mark"},
      {std::string("{}\0{}", 5), "NUL at byte 2"},
      {std::string("\"a\0b\"", 5), "NUL at byte 2"},
      {R"({"a\u0000b":1})", R"("a\x00b" contains an escaped NUL)"},
      {R"(["\u0000"])", "escaped NUL"},
      {"[\"\xFF\"]", "ill-formed UTF-8"},
      {"[\"\xC0\xAF\"]", "ill-formed UTF-8"},
      {"[\"\xED\xA0\x80\"]", "ill-formed UTF-8"},
      {R"(["\ud800"])", "surrogate"},
      {R"(["\ud800\u0041"])", "surrogate"},
      {R"(["\udc00"])", "surrogate"},
      {R"({"a":1,"b":2,"a":1})", R"(the key "a" occurs twice)"},
      {R"({"a":1,"\u0061":1})", R"(the key "a" occurs twice)"},
      {R"([{"x":[{"k":{},"k":[]}]}])", R"(the key "k" occurs twice)"},
      {nested(max_json_depth + 1), "nested more than 128 levels"},
      {nested(100'000), "nested more than 128 levels"},
      {std::string(100'000, '['), "nested more than 128 levels"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text.substr(0, 40));
    CHECK_THAT(refusal(c.text), StartsWith("x.json") && Contains(c.reason));
  }
}

TEST_CASE("one key may occur in several objects", "[io][json]") {
  REQUIRE(parse_json(R"({"a":{"a":1},"b":{"a":{"a":2}}})", "x").size() == 2);
}

TEST_CASE("messages stay short and printable whatever the input", "[io][json]") {
  CHECK(refusal("{\"" + std::string(1'000'000, 'k') + "\":1,}").size() < 400);
  CHECK(refusal("[" + std::string(1'000'000, '9') + "]").size() < 400);
  REQUIRE(quote("a\"\n\xFF") == R"("a\"\n\xff")");
  REQUIRE(quote(std::string(101, 'a')) == "\"" + std::string(100, 'a') + "\"...");
}

TEST_CASE("the number of values is limited", "[io][json]") {
  std::string text = "[0";
  for (std::size_t i = 2; i < max_json_values; ++i)
    text += ",0";
  REQUIRE(parse_json(text + "]", "x.json").size() == max_json_values - 1);
  REQUIRE_THAT(refusal(text + ",0]"), Contains("more than 4000000 values"));
}

TEST_CASE("every single-byte change of a document is parsed or refused", "[io][json]") {
  const std::string valid = R"({"a":[1,-2.5e3,"\u00e9x"],"b":{"c":null,"d":true}})";
  std::size_t refused = 0;
  for (std::size_t position = 0; position < valid.size(); ++position)
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = valid;
      text[position] = static_cast<char>(byte);
      refused += refusal(text) != "(no error)";
    }
  REQUIRE(refused > 1000);
}

TEST_CASE("JSON files are read up to a limit", "[io][json]") {
  const TempDir dir;
  const auto path = dir.path() / "config.json";
  write_file(path, R"({"n_embd":768})");
  REQUIRE(read_json_file(path, 14)["n_embd"] == 768);
  REQUIRE_THAT(error_message([&] { read_json_file(path, 13); }),
               StartsWith(path.string()) && Contains("14 bytes, more than the limit of 13"));
  write_file(path, "{");
  REQUIRE_THAT(error_message([&] { read_json_file(path, 100); }), StartsWith(path.string()));
  REQUIRE_THAT(error_message([&] { read_json_file(dir.path() / "none.json", 100); }),
               Contains("none.json: No such file or directory"));
}

}  // namespace
}  // namespace sluice::test::io_json_test
