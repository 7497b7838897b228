#include <functional>
#include <nlohmann/json.hpp>

#include "engine/io/gguf.h"
#include "kernels/base/half.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gguf_file.h"
#include "tests/support/temp_dir.h"

namespace sluice::test::io_gguf_test {
namespace {

std::string half(float value) {
  return GgufFile::bytes_of(Half(value).bits);
}

/// A file with a tensor of each type.
GgufFile all_types() {
  GgufFile file;
  file.text("general.name", "small");
  file.real("epsilon", 1e-5f);
  std::string floats, halves, shorts, bytes, nibbles;
  for (int i = 0; i < 6; ++i) {
    floats += GgufFile::bytes_of(0.25f * static_cast<float>(i));
    halves += half(0.5f * static_cast<float>(i));
    shorts += GgufFile::bytes_of(BFloat16(static_cast<float>(-i)).bits);
  }
  for (int i = 0; i < 32; ++i)
    bytes += static_cast<char>(i - 16);
  for (int i = 0; i < 16; ++i)
    nibbles += static_cast<char>(i | (15 - i) << 4);
  file.tensors = {{"f32", {3, 2}, 0, floats},
                  {"f16", {6}, 1, halves},
                  {"bf16", {6}, 30, shorts},
                  {"q8_0", {32, 2}, 8, half(2) + bytes + half(-1) + bytes},
                  {"q4_0", {32}, 2, half(0.5f) + nibbles},
                  {"q4_1", {32}, 3, half(0.5f) + half(10) + nibbles}};
  return file;
}

struct Folder : TempDir {
  std::filesystem::path put(const GgufFile& file) const { return put(file.bytes()); }
  std::filesystem::path put(const std::string& bytes) const {
    write_file(path() / "model.gguf", bytes);
    return path() / "model.gguf";
  }
};

std::vector<float> values_of(const GgufReader& reader, const char* name, std::int64_t first = 0) {
  const GgufTensor* const tensor = reader.find(name);
  REQUIRE(tensor != nullptr);
  std::vector<float> values(static_cast<std::size_t>(element_count(tensor->shape) - first));
  reader.read(*tensor, first, values);
  return values;
}

TEST_CASE("every type of a GGUF file is read by its definition", "[gguf]") {
  const Folder folder;
  const GgufReader reader(folder.put(all_types()));
  CHECK(reader.metadata().at("general.name") == "small");
  CHECK(reader.metadata().at("epsilon") == 1e-5);  // not 9.99999974738e-06
  CHECK(reader.find("f32")->shape == Shape{2, 3});
  CHECK(reader.find("none") == nullptr);
  CHECK(values_of(reader, "f32") == std::vector<float>{0, 0.25f, 0.5f, 0.75f, 1, 1.25f});
  CHECK(values_of(reader, "f32", 4) == std::vector<float>{1, 1.25f});
  CHECK(values_of(reader, "f16") == std::vector<float>{0, 0.5f, 1, 1.5f, 2, 2.5f});
  CHECK(values_of(reader, "bf16") == std::vector<float>{0, -1, -2, -3, -4, -5});
  std::vector<float> eight, four, raised;
  for (int i = 0; i < 64; ++i)
    eight.push_back(static_cast<float>((i < 32 ? 2 : -1) * (i % 32 - 16)));
  for (int i = 0; i < 32; ++i) {
    const int quantum = i < 16 ? i : 31 - i;
    four.push_back(0.5f * static_cast<float>(quantum - 8));
    raised.push_back(0.5f * static_cast<float>(quantum) + 10);
  }
  CHECK(values_of(reader, "q8_0") == eight);
  CHECK(values_of(reader, "q8_0", 32) == std::vector<float>(eight.begin() + 32, eight.end()));
  CHECK(values_of(reader, "q4_0") == four);
  CHECK(values_of(reader, "q4_1") == raised);
}

TEST_CASE("a GGUF file's own alignment counts", "[gguf]") {
  const Folder folder;
  GgufFile file = all_types();
  file.alignment = 256;
  file.number("general.alignment", 256);
  CHECK(values_of(GgufReader(folder.put(file)), "bf16").back() == -5);
}

TEST_CASE("a malformed GGUF file is refused in one sentence", "[gguf]") {
  struct Row {
    std::function<void(GgufFile&)> change;
    const char* says;
  };
  const auto key = [](std::uint32_t type, const std::string& value) {
    return [=](GgufFile& file) { file.keys.push_back({"key", type, value}); };
  };
  const std::string many = GgufFile::bytes_of(std::uint64_t{1} << 60);
  const std::vector<Row> rows{
      {[](GgufFile& f) { f.magic = 7; }, "is no GGUF file: it does not begin with"},
      {[](GgufFile& f) { f.version = 1; }, "is of version 1 of GGUF"},
      {[](GgufFile& f) { f.version = 0x03000000; }, "or big-endian"},
      {key(13, ""), "gives \"key\" a value of type 13"},
      {key(7, "\2"), "has 2 as truth value of \"key\""},
      {key(6, GgufFile::bytes_of(INFINITY)), "has \"key\" that is not finite"},
      {key(8, many), "ends inside \"key\": 1152921504606846976 bytes are announced"},
      {key(8, GgufFile::text_of("\xFF")), "has text that is not UTF-8 in \"key\""},
      {key(9, GgufFile::bytes_of(4) + many), "ends inside \"key\": 1152921504606846976 values"},
      {key(9, GgufFile::bytes_of(9) + GgufFile::bytes_of(std::uint64_t{1})), "has a list of lists"},
      {[](GgufFile& f) { f.text("general.name", "again"); }, "has the key \"general.name\" twice"},
      {[](GgufFile& f) { f.number("general.alignment", 24); }, "must be a power of two"},
      {[](GgufFile& f) { f.text("general.alignment", "8"); }, "must be a power of two"},
      {[](GgufFile& f) { f.tensors[1].name = "f32"; }, "has the tensor \"f32\" twice"},
      {[](GgufFile& f) { f.tensors[0].type = 14; }, "stores tensor \"f32\" as Q6_K;"},
      {[](GgufFile& f) { f.tensors[0].type = 12; }, "stores tensor \"f32\" as Q4_K;"},
      {[](GgufFile& f) { f.tensors[0].type = 41; }, "stores tensor \"f32\" as Q1_0;"},
      {[](GgufFile& f) { f.tensors[0].type = 4; }, "stores tensor \"f32\" as ggml's type 4;"},
      {[](GgufFile& f) { f.tensors[0].type = 42; }, "stores tensor \"f32\" as ggml's type 42;"},
      {[](GgufFile& f) { f.tensors[0].dimensions = {}; }, "gives tensor \"f32\" 0 dimensions"},
      {[](GgufFile& f) {
         f.tensors[0].dimensions = {1, 1, 1, 1, 6};
       },
       "\"f32\" 5 dimensions"},
      {[](GgufFile& f) {
         f.tensors[0].dimensions = {0, 2};
       },
       "a dimension of 0"},
      {[](GgufFile& f) {
         f.tensors[0].dimensions = {1ull << 40, 1ull << 40};
       },
       "a dimension of 1"},
      {[](GgufFile& f) {
         f.tensors[4].dimensions = {16, 2};
       },
       "as Q4_0, in blocks of 32"},
      {[](GgufFile& f) { f.tensors[5].dimensions = {320}; }, "was it cut short?"},
      {[](GgufFile& f) { f.tensors[2].offset_error = 4; }, "at multiples of 32"},
      {[](GgufFile& f) { f.tensors[0].offset_error = ~std::uint64_t{31}; }, "was it cut short?"}};
  const Folder folder;
  for (const auto& [change, says] : rows) {
    GgufFile file = all_types();
    change(file);
    const std::string error = error_message([&] { GgufReader reader(folder.put(file)); });
    INFO(error);
    CHECK_THAT(error, Contains(says) && Contains("model.gguf"));
  }
}

TEST_CASE("a GGUF file that ends early is refused wherever it ends", "[gguf]") {
  const Folder folder;
  const std::string whole = all_types().bytes();
  for (std::size_t size = 0; size < whole.size(); size += 3) {
    CAPTURE(size);
    CHECK(error_message([&] { GgufReader reader(folder.put(whole.substr(0, size))); }) !=
          "(no error)");
  }
}

}  // namespace
}  // namespace sluice::test::io_gguf_test
