#include "tests/fuzz/samples.h"

namespace sluice::fuzz {
namespace {

using namespace std::string_literals;

/// "some text, some text", compressed.
const std::string good =
    "\037\213\010\000\000\000\000\000\002\003\053\316\317\115\125\050\111\255\050\321\121\050\206\061\001\364\272\064\352\024\000\000\000"s;

std::string lines(const std::string& text) {
  return "l" + text;
}

std::string zipped(const std::string& bytes) {
  return "z" + bytes;
}

std::string damaged(std::size_t from_end) {
  std::string bytes = good;
  bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 1);
  return bytes;
}

}  // namespace

Samples texts_samples() {
  return {
      {"accepted", lines("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), ""},
      {"accepted-byte-order-mark", lines("\xEF\xBB\xBF{\"text\": \"a\"}\r\n\r\n"), ""},
      {"accepted-no-field", lines("{\"text\": \"a\"}\n{}\n{\"text\": null}"), ""},
      {"nothing", "", "empty file"},
      {"blank-lines", lines("\n \n"), "holds no text"},
      {"no-field", lines("{\"t\": \"a\"}"), "which has t"},
      {"empty-text", lines("{\"text\": \"\"}"), "holds no text"},
      {"number", lines("{\"text\": 5}"), ":1: the field"},
      {"array", lines("{\"text\": \"a\"}\n[1]"), ":2 is [1], not a JSON object"},
      {"cut", lines("{\"text\": \"a"), "not valid JSON"},
      {"twice", lines("{\"text\": \"a\", \"text\": \"b\"}"), "occurs twice"},
      {"not-utf8", lines("{\"text\": \"\xFF\"}"), "not valid JSON"},
      {"deep", lines(std::string(1000, '[')), "nested"},
      {"accepted-gzip", zipped(good), ""},
      {"accepted-members", zipped(good + good), ""},
      {"accepted-zeros", zipped(good + std::string(600, '\0')), ""},
      {"gzip-cut", zipped(good.substr(0, good.size() - 1)), "truncated"},
      {"gzip-one-byte", zipped("\x1F"), "truncated"},
      {"gzip-empty", zipped(""), "empty file"},
      {"gzip-more", zipped(good + "more"), "something else follows"},
      {"gzip-sum", zipped(damaged(8)), "not valid gzip data"},
      {"gzip-size", zipped(damaged(4)), "not valid gzip data"},
      {"gzip-plain", zipped("plain text"), "not valid gzip data"},
  };
}

}  // namespace sluice::fuzz
