#include "tests/fuzz/samples.h"
#include "tests/fuzz/small_files.h"

namespace sluice::fuzz {
namespace {

/// A header of one tensor "a".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

/// A header of two tensors of bytes, "a" and "b".
std::string two(const std::string& a_shape, const std::string& a_offsets,
                const std::string& b_shape, const std::string& b_offsets) {
  return R"({"a":{"dtype":"U8","shape":)" + a_shape + R"(,"data_offsets":)" + a_offsets +
         R"(},"b":{"dtype":"U8","shape":)" + b_shape + R"(,"data_offsets":)" + b_offsets + "}}";
}

std::string repeated(std::size_t count, std::string_view text) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i)
    all += text;
  return all;
}

/// 2,000 empty tensors of one byte each, which is a slow load where each is compared with all.
std::string many_tensors() {
  std::string header = "{";
  for (int i = 0; i < 2000; ++i) {
    const std::string at = std::to_string(i);
    header += (i == 0 ? "" : ",") + std::string("\"t") + at + R"(":{"dtype":"U8","shape":[1],)" +
              R"("data_offsets":[)" + at + "," + std::to_string(i + 1) + "]}";
  }
  return header + "}";
}

}  // namespace

Samples safetensors_samples() {
  const std::string f32 = one("F32", "[2]", "[0,8]");
  const std::uint64_t top = std::uint64_t{1} << 63;
  return {
      {"accepted", safetensors(f32, 8), ""},
      {"accepted-no-tensors", safetensors("{}", 0), ""},
      {"accepted-scalar", safetensors(one("F64", "[]", "[0,8]"), 8), ""},
      {"accepted-empty-tensor", safetensors(two("[0,5]", "[0,0]", "[4]", "[0,4]"), 4), ""},
      {"accepted-any-order", safetensors(two("[4]", "[4,8]", "[4]", "[0,4]"), 8), ""},
      {"accepted-unaligned-header", safetensors(f32 + " ", 8), ""},
      {"accepted-trailing-spaces", safetensors(f32 + "     ", 8), ""},
      {"accepted-metadata", safetensors(R"({"__metadata__":{"format":"pt"}})", 0), ""},
      {"accepted-many-tensors", safetensors(many_tensors(), 2000), ""},
      // 1: the length of the header
      {"empty-file", "", "has 0 bytes"},
      {"seven-bytes", "1234567", "has 7 bytes"},
      {"length-zero", safetensors(0, ""), "does not begin with '{'"},
      {"length-past-end", safetensors(3, "{}"), "claims 3 bytes, but only 2 follow"},
      {"length-over-limit", safetensors(100'000'001, "{}"), "more than the limit"},
      {"length-2-to-63", safetensors(top, "{}"), "9223372036854775808"},
      {"length-2-to-64-less-1", safetensors(UINT64_MAX, "{}"), "18446744073709551615"},
      {"length-wraps-with-8", safetensors(UINT64_MAX - 7, "{}"), "more than the limit"},
      // 2: the text around the object
      {"leading-space", safetensors(" " + f32, 8), "does not begin with '{'"},
      {"array", safetensors("[]", 0), "does not begin with '{'"},
      {"text-after-object", safetensors(f32 + "x", 8), "not valid JSON"},
      {"two-objects", safetensors("{}{}", 0), "not valid JSON"},
      {"nul-after-object", safetensors(f32 + std::string(1, '\0'), 8), "NUL"},
      // 3: JSON
      {"not-utf8", safetensors("{\"a\xFF\":{}}", 0), "not valid JSON"},
      {"lone-surrogate", safetensors(R"({"\ud800":{}})", 0), "surrogate"},
      {"escaped-nul", safetensors(R"({"a\u0000":{}})", 0), "escaped NUL"},
      {"deep-nesting", safetensors(R"({"a":)" + repeated(100'000, "["), 0), "nested"},
      {"number-overflow", safetensors(one("F32", "[1e400]", "[0,8]"), 8), "not valid JSON"},
      // 4: keys that occur twice
      {"tensor-twice",
       safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                   R"("a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
                   4),
       "\"a\" occurs twice"},
      {"inner-key-twice",
       safetensors(R"({"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}})", 8),
       "\"dtype\" occurs twice"},
      {"metadata-key-twice", safetensors(R"({"__metadata__":{"k":"1","k":"2"}})", 0),
       "\"k\" occurs twice"},
      // 5: metadata
      {"metadata-is-a-list", safetensors(R"({"__metadata__":["x"]})", 0), "must be an object"},
      {"metadata-of-a-number", safetensors(R"({"__metadata__":{"k":1}})", 0), "only strings"},
      // 6: the entries
      {"entry-is-a-number", safetensors(R"({"a":5})", 0), "must be an object"},
      {"no-dtype", safetensors(R"({"a":{"shape":[],"data_offsets":[0,0]}})", 0), "no dtype"},
      {"no-shape", safetensors(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0), "no shape"},
      {"no-offsets", safetensors(R"({"a":{"dtype":"U8","shape":[]}})", 0), "no data_offsets"},
      {"unknown-key",
       safetensors(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0),
       "unknown key \"x\""},
      {"unknown-dtype", safetensors(one("F31", "[2]", "[0,8]"), 8), "unknown dtype"},
      {"negative-dimension", safetensors(one("F32", "[-2]", "[0,8]"), 8), "dimension -2"},
      {"fractional-dimension", safetensors(one("F32", "[2.0]", "[0,8]"), 8), "dimension 2.0"},
      {"dimension-as-text", safetensors(one("F32", R"(["2"])", "[0,8]"), 8), "dimension \"2\""},
      {"dimension-over-64-bits", safetensors(one("F32", "[18446744073709551616]", "[0,8]"), 8),
       "dimension 1.8"},
      {"shape-is-a-number", safetensors(one("F32", "2", "[0,8]"), 8), "not an array"},
      {"one-offset", safetensors(one("F32", "[2]", "[8]"), 8), "not two numbers"},
      {"negative-offset", safetensors(one("F32", "[2]", "[-1,7]"), 8), "offset -1"},
      // 7: sizes
      {"wrong-size", safetensors(one("F32", "[3]", "[0,8]"), 8), "has 12 bytes"},
      {"product-wraps-to-4",
       safetensors(one("U8", "[4194305,4194305,211106198978564]", "[0,4]"), 4),
       "does not fit in 63 bits"},
      {"bytes-wrap-to-0", safetensors(one("F32", "[4611686018427387904]", "[0,0]"), 0),
       "does not fit in 63 bits"},
      {"product-over-63-bits-before-a-zero",
       safetensors(one("U8", "[4611686018427387904,2,0]", "[0,0]"), 0), "does not fit in 63 bits"},
      // 8: the ranges cover the data
      {"ends-before-it-begins", safetensors(one("U8", "[4]", "[4,0]"), 4), "ends before"},
      {"past-the-end", safetensors(one("U8", "[4]", "[0,4]"), 3), "is it truncated?"},
      {"overlap", safetensors(two("[4]", "[0,4]", "[4]", "[3,7]"), 7), "inside the tensor before"},
      {"same-range", safetensors(two("[4]", "[0,4]", "[4]", "[0,4]"), 4), "inside the tensor"},
      {"empty-tensor-inside", safetensors(two("[4]", "[0,4]", "[0]", "[2,2]"), 4), "inside"},
      {"hole-at-the-start", safetensors(one("U8", "[4]", "[1,5]"), 5), "belong to no tensor"},
      {"hole-in-the-middle", safetensors(two("[4]", "[0,4]", "[4]", "[6,10]"), 10), "belong to no"},
      {"bytes-at-the-end", safetensors(one("U8", "[4]", "[0,4]"), 5), "goes on to 5"},
  };
}

}  // namespace sluice::fuzz
