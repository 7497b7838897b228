#include <ctime>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "tests/engine/safetensors_files.h"
#include "tests/support/catch.h"

namespace sluice::test::io_safetensors_writer_test {
namespace {

using Metadata = std::map<std::string, std::string>;

/// Processor time that it takes to open a file with this many tensors.
double seconds_to_open(const std::filesystem::path& path, int count) {
  std::vector<StoredTensor> tensors;
  for (int i = 0; i < count; ++i)
    tensors.push_back({"layer." + std::to_string(i) + ".weight", StoredType::U8, {1, 1}});
  SafetensorsWriter writer(path, tensors, {});
  writer.write(bytes_of(std::string(tensors.size(), 'x')));
  writer.finish();
  const std::clock_t start = std::clock();
  const SafetensorsReader reader(path);
  const std::clock_t end = std::clock();
  REQUIRE(reader.find(tensors.back().name)->begin == tensors.size() - 1);
  return static_cast<double>(end - start) / CLOCKS_PER_SEC;
}

TEST_CASE_METHOD(SafetensorsTest, "100,000 tensors load in time n log n", "[io][safetensors]") {
  const double few = seconds_to_open(path, 10'000), many = seconds_to_open(path, 100'000);
  REQUIRE(many < 40 * few);  // 13 times as many steps, a hundred times were one of them quadratic
}

TEST_CASE_METHOD(SafetensorsTest, "the bytes of a written file are these", "[io][safetensors]") {
  SafetensorsWriter writer(path, {{"a", StoredType::U8, {3}}}, {{"format", "pt"}});
  writer.write(bytes_of("xyz"));
  writer.finish();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const std::string expected =
      length_field(header.size() + padding.size()) + header + padding + "xyz";
  REQUIRE(read_file(path) == expected);
  REQUIRE((expected.size() - 3) % 8 == 0);
}

TEST_CASE_METHOD(SafetensorsTest, "written files are read back", "[io][safetensors]") {
  std::vector<StoredTensor> tensors = {{"z", StoredType::F32, {2, 3}},
                                       {"scalar", StoredType::I64, {}},
                                       {"empty", StoredType::BF16, {0, 7}},
                                       {"\u00e9 \"quoted\" \n name", StoredType::U8, {5}}};
  const Metadata metadata = {{"format", "pt"}, {"\"", "\u00e9\n"}};
  std::string data;
  for (int i = 0; i < 24 + 8 + 5; ++i)
    data.push_back(static_cast<char>(i * 37));
  const std::size_t piece = GENERATE(1u, 5u, 24u, 37u);

  SafetensorsWriter writer(path, tensors, metadata);
  for (std::size_t start = 0; start < data.size(); start += piece)
    writer.write(bytes_of(std::string_view(data).substr(start, piece)));
  writer.finish();

  const SafetensorsReader reader(path);
  REQUIRE(reader.metadata() == metadata);
  REQUIRE(reader.tensors().size() == tensors.size());
  std::string read_back;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = reader.tensors()[i];
    CHECK(tensor.name == tensors[i].name);
    CHECK(tensor.type == tensors[i].type);
    CHECK(tensor.shape == tensors[i].shape);
    CHECK(tensor.begin == writer.tensors()[i].begin);
    read_back += read_all(reader, tensor);
  }
  REQUIRE(read_back == data);
}

TEST_CASE_METHOD(SafetensorsTest, "what cannot be written is refused", "[io][safetensors]") {
  const auto refused = [&](std::vector<StoredTensor> tensors, const Metadata& metadata = {}) {
    return error_message([&] { SafetensorsWriter writer(path, tensors, metadata); });
  };
  const std::vector<std::int64_t> wrapping = {4194305, 4194305, 211106198978564};
  const std::int64_t large = std::int64_t{1} << 62;
  CHECK_THAT(refused({{"a", StoredType::U8, {1}}, {"a", StoredType::U8, {1}}}),
             Contains(path.string()) && Contains(R"(key "a" occurs twice)"));
  CHECK_THAT(refused({{"a", StoredType::U8, {-1}}}), Contains(R"(tensor "a")") && Contains("[-1]"));
  CHECK_THAT(refused({{"a", StoredType::U8, wrapping}}), Contains("does not fit in 63 bits"));
  CHECK_THAT(refused({5, StoredTensor{"a", StoredType::U8, {large}}}), Contains("does not fit"));
  CHECK_THAT(refused({{"\xFF", StoredType::U8, {1}}}), Contains("not valid UTF-8"));
  CHECK_THAT(refused({}, {{"k", "\xFF"}}), Contains("not valid UTF-8"));
  CHECK_THAT(refused({{std::string(1, '\0'), StoredType::U8, {1}}}), Contains("NUL"));
  CHECK_THAT(refused({{"__metadata__", StoredType::U8, {1}}}), Contains("only strings"));
  CHECK_THAT(refused({{"__metadata__", StoredType::U8, {1}}}, {{"a", "b"}}), Contains("twice"));
}

TEST_CASE_METHOD(SafetensorsTest, "too few or too many bytes are errors", "[io][safetensors]") {
  SafetensorsWriter writer(path, {{"a", StoredType::U8, {2}}, {"b", StoredType::U8, {2}}}, {});
  writer.write(bytes_of("123"));
  CHECK_THAT(error_message([&] { writer.finish(); }),
             Contains(path.string()) && Contains(R"(3 of 4 bytes were written, up to tensor "b")"));
  CHECK_THAT(error_message([&] { writer.write(bytes_of("45")); }),
             Contains(path.string()) && Contains("lack only 1"));
  writer.write(bytes_of("4"));
  REQUIRE_NOTHROW(writer.finish());
  REQUIRE(SafetensorsReader(path).tensors().size() == 2);
}

TEST_CASE_METHOD(SafetensorsTest, "an abandoned writer closes its partial file",
                 "[io][safetensors]") {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = open_files();
  {
    SafetensorsWriter writer(path, {{"a", StoredType::U8, {2}}}, {});
    writer.write(bytes_of("1"));
  }
  error_message([&] { SafetensorsWriter writer(path.string() + "2", {}, {{"k", "\xFF"}}); });
  error_message([&] { load("short"); });
  CHECK(open_files() == before);
}

TEST_CASE_METHOD(SafetensorsTest, "a partial file is refused", "[io][safetensors]") {
  {
    SafetensorsWriter writer(path, {{"a", StoredType::U8, {2}}}, {});
    writer.write(bytes_of("1"));
  }
  REQUIRE_THAT(error_message([&] { SafetensorsReader reader(path); }), Contains("truncated"));
}

TEST_CASE_METHOD(SafetensorsTest, "errors of the disk reach the caller", "[io][safetensors]") {
  const auto create = [](const char* target) {
    return error_message([&] { SafetensorsWriter writer(target, {}, {}); });
  };
  CHECK_THAT(create("/dev/full"), StartsWith("cannot write /dev/full: No space left on device"));
  CHECK_THAT(create("/no/such/dir/x"), Contains("/no/such/dir/x: No such file or directory"));
}

}  // namespace
}  // namespace sluice::test::io_safetensors_writer_test
