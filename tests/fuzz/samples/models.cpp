#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/fuzz/samples.h"
#include "tests/fuzz/small_files.h"
#include "tests/fuzz/small_run.h"

namespace sluice::fuzz {
namespace {

using Json = nlohmann::json;

/// A tensor of four bytes more, at the end of the data.
std::string with_tensor(const std::string& file, const char* name, const Json& entry) {
  std::uint64_t end = 0;
  auto longer = reworded(file, [&](Json& header) {
    for (const auto& [other, value] : header.items())
      if (other != "__metadata__")
        end = std::max(end, value["data_offsets"][1].get<std::uint64_t>());
    header[name] = entry;
    header[name]["data_offsets"] = {end, end + 4};
  });
  return longer + std::string(4, '\0');
}

/// The index of the two shards after `change`.
template <class Change>
std::string index(Change&& change) {
  Json map;
  for (const auto& name : small_shard_names(true))
    map[name] = "a.safetensors";
  for (const auto& name : small_shard_names(false))
    map[name] = "b.safetensors";
  Json json{{"metadata", {{"total_size", 4}}}, {"weight_map", map}};
  change(json);
  return "i" + json.dump();
}

}  // namespace

Samples weights_samples() {
  const std::string file = small_model_file();
  const Json mask{{"dtype", "U8"}, {"shape", {1, 1, 2, 2}}};
  const auto prefixed = reworded(file, [](Json& header) {
    Json with;
    for (const auto& [name, value] : header.items())
      with["transformer." + name] = value;
    header = with;
  });
  const auto shaped = [&](const Json& shape) {
    return "m" + reworded(file, [&](Json& header) { header["wte.weight"]["shape"] = shape; });
  };
  const auto shard = [](const Json& name) {
    return index([&](Json& json) { json["weight_map"]["wte.weight"] = name; });
  };
  return {
      {"accepted", "m" + file, ""},
      {"accepted-prefix", "m" + prefixed, ""},
      {"accepted-mask-buffer", "m" + with_tensor(file, "h.0.attn.bias", mask), ""},
      {"accepted-index", index([](Json&) {}), ""},
      {"empty", "m", "too few for a safetensors file"},
      {"cut", "m" + file.substr(0, file.size() - 1), "is it truncated?"},
      {"tensor-missing", "m" + renamed(file, "ln_f.bias", "ln_f.bia"), "is missing"},
      {"tensor-unknown", "m" + with_tensor(file, "extra", {{"dtype", "F32"}, {"shape", {1}}}),
       "does not belong"},
      {"tensor-of-another-layer",
       "m" + with_tensor(file, "h.1.ln_1.bias", {{"dtype", "F32"}, {"shape", {1}}}),
       "does not belong"},
      {"tensor-twice-mapped",
       "m" + with_tensor(file, "transformer.ln_f.bias", {{"dtype", "F32"}, {"shape", {1}}}),
       "there twice"},
      {"other-shape", shaped({4, 3}), "the configuration implies"},
      {"other-rank", shaped({12}), "the configuration implies"},
      {"no-floats",
       "m" + reworded(file, [](Json& header) { header["wte.weight"]["dtype"] = "I32"; }),
       "must be F32"},
      {"infinite", "m" + infinite(file, 4), "is not finite"},
      {"head-not-tied",
       "m" + with_tensor(file, "lm_head.weight", {{"dtype", "F32"}, {"shape", {1}}}), "differs"},
      {"index-empty", "i", "not valid JSON"},
      {"index-list", "i[]", "weight_map"},
      {"index-without-map", "i{}", "weight_map"},
      {"index-map-is-a-list", R"(i{"weight_map":[]})", "weight_map"},
      {"index-of-nothing", R"(i{"weight_map":{}})", "is missing"},
      {"shard-number", shard(7), "must be a plain file name"},
      {"shard-list", shard(std::vector<int>(10'000)), "must be a plain file name"},
      {"shard-elsewhere", shard("../single/model.safetensors"), "must be a plain file name"},
      {"shard-absolute", shard("/etc/passwd"), "must be a plain file name"},
      {"shard-parent", shard(".."), "must be a plain file name"},
      {"shard-empty", shard(""), "must be a plain file name"},
      {"shard-with-line-end", shard("a\nb"), "must be a plain file name"},
      {"shard-endless", shard(std::string(10'000, 'x')), "must be a plain file name"},
      {"shard-absent", shard("c.safetensors"), "No such file"},
  };
}

}  // namespace sluice::fuzz
