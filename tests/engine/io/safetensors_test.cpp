#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "engine/io/stored_tensor.h"
#include "tests/engine/safetensors_files.h"
#include "tests/support/catch.h"
#include "tests/support/data_folders.h"

namespace sluice::test::io_safetensors_test {
namespace {

using Metadata = std::map<std::string, std::string>;

TEST_CASE_METHOD(SafetensorsTest, "a file with several tensors is read", "[io][safetensors]") {
  const std::string header = R"({"__metadata__":{"format":"pt"},)" +
                             entry("b", "U8", "[3]", "[8,11]") + "," +
                             entry("a", "F32", "[2,1]", "[0,8]") + "}";
  const SafetensorsReader reader = load(length_field(header.size()) + header + "01234567xyz");
  REQUIRE(reader.metadata() == Metadata{{"format", "pt"}});
  REQUIRE(reader.tensors().size() == 2);
  const StoredTensor& a = reader.tensors()[0];
  REQUIRE(a.name == "a");
  REQUIRE(a.type == StoredType::F32);
  REQUIRE(a.shape == std::vector<std::int64_t>{2, 1});
  REQUIRE(read_all(reader, a) == "01234567");
  REQUIRE(reader.find("b") == &reader.tensors()[1]);
  REQUIRE(read_all(reader, *reader.find("b")) == "xyz");
  REQUIRE(reader.find("c") == nullptr);

  std::string two(2, ' ');
  reader.read(a, 6, std::as_writable_bytes(std::span(two)));
  REQUIRE(two == "67");
  for (const std::uint64_t offset : {std::uint64_t{7}, std::uint64_t{9}, UINT64_MAX}) {
    const auto read = [&] { reader.read(a, offset, std::as_writable_bytes(std::span(two))); };
    CHECK_THAT(error_message(read), Contains(path.string()) && Contains("tensor \"a\""));
  }
}

TEST_CASE_METHOD(SafetensorsTest, "unusual but legal files are read", "[io][safetensors]") {
  CHECK(load(file_of("{}", 0)).tensors().empty());
  CHECK(load(file_of("{}   \n ", 0)).tensors().empty());
  CHECK(load(file_of("{\"__metadata__\":{}}", 0)).metadata().empty());
  CHECK(load(file_of("{\"__metadata__\":null}", 0)).metadata().empty());
  const SafetensorsReader scalar = load(file_of("{" + entry("s", "F64", "[]", "[0,8]") + "}", 8));
  CHECK(scalar.tensors().at(0).shape.empty());
  const SafetensorsReader empty = load(file_of("{" + entry("e", "F32", "[0,5]", "[4,4]") + "," +
                                                   entry("a", "F32", "[1]", "[0,4]") + "," +
                                                   entry("f", "I8", "[0]", "[0,0]") + "}",
                                               4));
  CHECK(empty.tensors().size() == 3);
  CHECK(empty.find("e")->byte_size() == 0);
  CHECK(read_all(empty, *empty.find("e")).empty());
  for (const StoredType type : all_stored_types) {
    const std::size_t bytes = 3 * size_of(type);
    const std::string offsets = "[0," + std::to_string(bytes) + "]";
    const SafetensorsReader reader =
        load(file_of("{" + entry("t", name_of(type), "[3]", offsets) + "}", bytes));
    CHECK(reader.tensors().at(0).type == type);
  }
  // Headers of every length modulo 8.
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    const std::string header = "{" + entry("a", "U8", "[1]", "[0,1]") + "}";
    CHECK(read_all(load(file_of(header + std::string(spaces, ' '), 1)),
                   {"a", StoredType::U8, {1}, 0, 1}) == "d");
  }
}

TEST_CASE_METHOD(SafetensorsTest, "a wrong header length is refused", "[io][safetensors]") {
  const auto expect_refusal = [&](std::string_view bytes, const char* reason) {
    CHECK_THAT(refusal(bytes), Contains(path.string()) && Contains(reason));
  };
  expect_refusal("", "has 0 bytes");
  expect_refusal("1234567", "has 7 bytes");
  expect_refusal(length_field(0), "does not begin with '{'");
  expect_refusal(length_field(3) + "{}", "claims 3 bytes, but only 2 follow");
  const std::uint64_t half = std::uint64_t{1} << 63;
  expect_refusal(length_field(half) + "{}", "claims 9223372036854775808");
  expect_refusal(length_field(UINT64_MAX) + "{}", "18446744073709551615");
  expect_refusal(length_field(UINT64_MAX - 7) + "{}", "more than the limit");

  write_file(path, length_field(100'000'001) + "{}");
  std::filesystem::resize_file(path, 100'000'100);  // sparse
  CHECK_THAT(error_message([&] { SafetensorsReader reader(path); }),
             Contains("claims 100000001 bytes, more than the limit of 100000000"));
}

TEST_CASE_METHOD(SafetensorsTest, "malformed headers are refused", "[io][safetensors]") {
  struct Case {
    std::string header;
    std::size_t data_bytes;
    std::string reason;
  };
  const std::string a8 = entry("a", "F32", "[2]", "[0,8]");
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return "{" + entry("a", dtype, shape, offsets) + "}";
  };
  const auto two = [](std::string_view a_offsets, std::string_view b_offsets) {
    return "{" + entry("a", "U8", "[4]", a_offsets) + "," + entry("b", "U8", "[4]", b_offsets) +
           "}";
  };
  const std::vector<Case> cases = {
      // 2: the text around the object
      {" {" + a8 + "}", 8, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{" + a8 + "}x", 8, "line 1, column 55"},
      {"{" + a8 + "}{}", 8, "expected end of input"},
      {"{" + a8 + "}" + std::string(1, '\0'), 8, "NUL"},
      // 3: JSON itself
      {"{", 0, "not valid JSON"},
      {"{\"a\xFF\":{}}", 0, "ill-formed UTF-8"},
      {R"({"\ud800":{}})", 0, "surrogate"},
      {R"({"a\u0000":{}})", 0, "escaped NUL"},
      {"{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0, "nested"},
      {"{\"a\":" + std::string(100'000, '['), 0, "nested"},
      // 4: duplicates
      {"{" + a8 + "," + entry("a", "F32", "[2]", "[0,8]") + "}", 8, R"(key "a" occurs twice)"},
      {R"({"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})", 8,
       R"(key "dtype" occurs twice)"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, R"(key "k" occurs twice)"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, R"(key "__metadata__" occurs twice)"},
      // 5: metadata
      {R"({"__metadata__":["x"]})", 0, R"(__metadata__ is ["x"])"},
      {R"({"__metadata__":{"k":1}})", 0, R"(the value 1 for "k")"},
      {R"({"__metadata__":{"k":null}})", 0, R"(the value null for "k")"},
      {R"({"__metadata__":{"k":{"x":"y"}}})", 0, R"(the value {"x":"y"} for "k")"},
      // 6: the keys and types of an entry
      {R"({"a":5})", 0, R"(entry of tensor "a" is 5)"},
      {R"({"a":{"shape":[],"data_offsets":[0,0]}})", 0, R"(tensor "a" has no dtype)"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0, R"(tensor "a" has no shape)"},
      {R"({"a":{"dtype":"U8","shape":[]}})", 0, R"(tensor "a" has no data_offsets)"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0, R"(unknown key "x")"},
      {one("F31", "[2]", "[0,8]"), 8, R"(tensor "a" has the unknown dtype "F31")"},
      {one("f32", "[2]", "[0,8]"), 8, R"(the unknown dtype "f32")"},
      {one("F8_E4M3", "[8]", "[0,8]"), 8, R"(tensor "a" is quantised, to "F8_E4M3")"},
      {R"({"a":{"dtype":7,"shape":[],"data_offsets":[0,0]}})", 0, "the unknown dtype 7"},
      {one("F32", "2", "[0,8]"), 8, R"(tensor "a" has the shape 2, which is not an array)"},
      {one("F32", "{}", "[0,8]"), 8, "the shape {}, which is not an array"},
      {one("F32", "[-2]", "[0,8]"), 8, R"(tensor "a" has the dimension -2)"},
      {one("F32", "[-0]", "[0,8]"), 8, "the dimension 0, which is not an integer from 0"},
      {one("F32", "[2.0]", "[0,8]"), 8, "the dimension 2.0"},
      {one("F32", "[2e0]", "[0,8]"), 8, "the dimension 2.0"},
      {one("F32", "[\"2\"]", "[0,8]"), 8, "the dimension \"2\""},
      {one("F32", "[null]", "[0,8]"), 8, "the dimension null"},
      {one("F32", "[[2]]", "[0,8]"), 8, "the dimension [2]"},
      {one("F32", "[1e400]", "[0,8]"), 8, "number overflow parsing '1e400'"},
      {one("F32", "[18446744073709551616]", "[0,8]"), 8, "the dimension 1.8446744073709552e+19"},
      {one("F32", "[9223372036854775808]", "[0,8]"), 8, "9223372036854775808, which exceeds"},
      {one("F32", "[2]", "8"), 8, "data_offsets 8, which are not two numbers"},
      {one("F32", "[2]", "[8]"), 8, "data_offsets [8], which are not two numbers"},
      {one("F32", "[2]", "[0,8,8]"), 8, "data_offsets [0,8,8], which are not two numbers"},
      {one("F32", "[2]", "[-1,7]"), 8, "the offset -1"},
      {one("F32", "[2]", "[0,8.5]"), 8, "the offset 8.5"},
      {one("F32", "[2]", "[\"0\",8]"), 8, "the offset \"0\""},
      {one("F32", "[2]", "[0,18446744073709551616]"), 8, "the offset 1.8446744073709552e+19"},
      // 7: sizes
      {one("F32", "[3]", "[0,8]"), 8, R"(tensor "a" has 12 bytes by its type F32 and shape [3])"},
      {one("F16", "[2]", "[0,8]"), 8, R"(tensor "a" has 4 bytes)"},
      {one("F32", "[]", "[0,8]"), 8, R"(tensor "a" has 4 bytes)"},
      {one("F32", "[0]", "[0,8]"), 8, R"(tensor "a" has 0 bytes)"},
      {one("F32", "[4294967296,4294967296]", "[0,0]"), 0, "whose size does not fit in 63 bits"},
      {one("F32", "[4611686018427387904]", "[0,0]"), 0, "whose size does not fit in 63 bits"},
      {one("U8", "[4194305,4194305,211106198978564]", "[0,4]"), 4,
       "[4194305,4194305,211106198978564], whose size does not fit in 63 bits"},
      {one("F32", "[4194305,4194305,211106198978564]", "[0,16]"), 16, "does not fit in 63 bits"},
      // 8: the tensors cover the data
      {one("U8", "[4]", "[4,0]"), 4, R"(tensor "a" ends before it begins: data_offsets [4,0])"},
      {one("U8", "[4]", "[0,4]"), 3, "ends at byte 4 of the data, but the file has only 3"},
      {one("U8", "[9]", "[18446744073709551606,18446744073709551615]"), 9,
       "ends at byte 18446744073709551615"},
      {two("[0,4]", "[3,7]"), 7, R"(tensor "b" begins at byte 3 of the data, inside)"},
      {two("[0,4]", "[0,4]"), 4, R"(tensor "b" begins at byte 0 of the data, inside)"},
      {"{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("e", "U8", "[0]", "[2,2]") + "}", 4,
       R"(tensor "e" begins at byte 2 of the data, inside)"},
      {two("[1,5]", "[5,9]"), 9, R"(bytes 0 to 1 of the data, before tensor "a", belong to no)"},
      {two("[0,4]", "[6,10]"), 10, R"(bytes 4 to 6 of the data, before tensor "b", belong to no)"},
      {two("[0,4]", "[4,8]"), 10, "end at byte 8 of the data, but the file goes on to 10"},
      {"{}", 1, "end at byte 0 of the data, but the file goes on to 1"},
      {"{" + entry("e", "U8", "[0]", "[4,4]") + "}", 4, R"(before tensor "e", belong to no)"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.header.substr(0, 120));
    CHECK_THAT(refusal(file_of(c.header, c.data_bytes)),
               Contains(path.string()) && Contains(c.reason));
  }
}

TEST_CASE_METHOD(SafetensorsTest, "messages about hostile names stay short", "[io][safetensors]") {
  const std::string name(1'000'000, 'n');
  CHECK(refusal(file_of("{" + entry(name, "U8", "[1]", "[0,0]") + "}", 0)).size() < 400);
  CHECK(refusal(file_of("{" + entry("a", name, "[1]", "[0,0]") + "}", 0)).size() < 400);
  CHECK_THAT(refusal(file_of(R"({"\u001b[2J":5})", 0)), Contains(R"("\x1b[2J")"));
}

TEST_CASE_METHOD(SafetensorsTest, "unsuitable files are usage errors", "[io][safetensors]") {
  try {
    load(file_of("{}", 1));
    FAIL("trailing bytes were accepted");
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::usage);
  }
}

TEST_CASE_METHOD(SafetensorsTest, "a file that shrinks while open is an error",
                 "[io][safetensors]") {
  const std::string header = "{" + entry("a", "U8", "[9000]", "[0,9000]") + "}";
  const SafetensorsReader reader = load(file_of(header, 9000));
  std::filesystem::resize_file(path, 200);
  REQUIRE_THAT(error_message([&] { read_all(reader, reader.tensors()[0]); }),
               Contains(path.string()) && Contains("truncated"));
}

TEST_CASE_METHOD(SafetensorsTest, "a weight that is not finite is named by its place in the tensor",
                 "[io][safetensors]") {
  // Weights are converted 1048576 at a time.
  constexpr std::size_t count = 1048579;
  const std::string header = "{" + entry("a", "F32", "[1048579]", "[0,4194316]") + "}";
  const auto message = [&](std::size_t bad) {
    std::vector<float> values(count, 0.5f);
    values[bad] = INFINITY;
    const auto raw = std::as_bytes(std::span(values));
    const SafetensorsReader reader =
        load(length_field(header.size()) + header +
             std::string(reinterpret_cast<const char*>(raw.data()), raw.size()));
    return error_message([&] {
      read_floats(reader, *reader.find("a"), 0, count, DType::bf16,
                  [](std::int64_t, std::span<std::byte>) {});
    });
  };
  for (const std::size_t bad : {std::size_t{3}, std::size_t{1048575}, std::size_t{1048578}})
    CHECK_THAT(message(bad), Contains("\"a\" is not finite at element " + std::to_string(bad)));
}

TEST_CASE_METHOD(SafetensorsTest, "mutated files load or are refused", "[io][safetensors]") {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)" + entry("a.weight", "F32", "[2,3]", "[0,24]") + "," +
      entry("b", "BF16", "[]", "[24,26]") + "," + entry("c", "I64", "[0]", "[26,26]") + "}  ";
  const std::string valid = file_of(header, 26);
  std::mt19937 random(1);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 10'000; ++round) {
    std::string bytes = valid;
    bytes[random() % bytes.size()] = static_cast<char>(random() & 0xFF);
    write_file(path, bytes);
    try {
      const SafetensorsReader reader(path);
      for (const StoredTensor& tensor : reader.tensors())
        read_all(reader, tensor);
      ++accepted;
    } catch (const Error& error) {
      ++refused;
    }
  }
  CHECK(accepted > 500);  // in names, data and padding
  CHECK(refused > 5000);
}

TEST_CASE_METHOD(SafetensorsTest, "every truncation is refused", "[io][safetensors]") {
  const std::string valid = file_of("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 8);
  for (std::size_t size = 0; size < valid.size(); ++size) {
    CAPTURE(size);
    CHECK_THAT(refusal(valid.substr(0, size)), Contains(path.string()));
  }
  CHECK_NOTHROW(load(valid));
}

TEST_CASE("the fixtures load", "[io][safetensors]") {
  const std::string folder = GENERATE(from_range(test::fixture_folders()));
  int files = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(folder)) {
    if (item.path().extension() != ".safetensors") continue;
    CAPTURE(item.path().string());
    const SafetensorsReader reader(item.path());
    CHECK_FALSE(reader.tensors().empty());
    for (const StoredTensor& tensor : reader.tensors())
      read_all(reader, tensor);
    ++files;
  }
  CHECK(files >= 7);
}

}  // namespace
}  // namespace sluice::test::io_safetensors_test
