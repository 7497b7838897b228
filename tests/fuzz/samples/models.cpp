#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/fuzz/samples.h"
#include "tests/fuzz/small_files.h"
#include "tests/fuzz/small_run.h"

namespace sluice::fuzz {
namespace {

using Json = nlohmann::json;

/// A safetensors file of which the header was changed; its data stay.
template <class Change>
std::string reworded(const std::string& file, Change&& change) {
  const std::size_t length = static_cast<unsigned char>(file[0]) |
                             static_cast<std::size_t>(static_cast<unsigned char>(file[1])) << 8;
  Json header = Json::parse(file.substr(8, length));
  change(header);
  const std::string text = header.dump();
  return safetensors(text.size(), text + file.substr(8 + length));
}

std::string renamed(const std::string& file, const char* from, const char* to) {
  return reworded(file, [&](Json& header) {
    header[to] = header[from];
    header.erase(from);
  });
}

/// With the bytes of one element replaced by those of an infinity.
std::string infinite(std::string file, std::size_t from_end) {
  file.replace(file.size() - from_end, 4, std::string("\x00\x00\x80\x7F", 4));
  return file;
}

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

Samples checkpoint_samples() {
  const SmallRun run;
  const auto& [state, weights, optimizer] = run.files();
  const Json whole = Json::parse(state);
  const auto patched = [&](const Json& patch) {
    Json json = whole;
    json.merge_patch(patch);
    return "r" + json.dump();
  };
  const std::string first = "wte.weight";
  const char* const moment = "first_moment.wte.weight";
  return {
      {"accepted", "s" + state, ""},
      {"accepted-sealed", "r" + state, ""},
      {"accepted-weights", "w" + weights, ""},
      {"accepted-optimizer", "o" + optimizer, ""},
      {"state-empty", "s", "state.json"},
      {"state-cut", "s" + state.substr(0, state.size() / 2), "state.json"},
      {"state-list", "s[]", "state.json"},
      {"state-number", "s7", "state.json"},
      {"state-changed", "s" + whole.dump().replace(whole.dump().find("\"step\":3") + 7, 1, "4"),
       "state.json"},
      {"state-key-twice", "s{\"step\":1,\"step\":2}", "state.json"},
      {"state-other-version", patched({{"version", 999}}), "version"},
      {"state-version-text", patched({{"version", "1"}}), "state.json"},
      {"state-without-step", patched({{"step", nullptr}}), "state.json"},
      {"state-step-negative", patched({{"step", -1}}), "state.json"},
      {"state-step-text", patched({{"step", "3"}}), "state.json"},
      {"state-step-1e300", patched({{"step", 1e300}}), "state.json"},
      {"state-step-true", patched({{"step", true}}), "state.json"},
      {"state-step-2^63", patched({{"step", std::uint64_t{1} << 63}}), "state.json"},
      {"state-updates-1e300", patched({{"updates", 1e300}}), "state.json"},
      {"state-updates-negative", patched({{"updates", -1}}), "state.json"},
      {"state-version-1e10", patched({{"version", 1e10}}), "state.json"},
      {"state-version-2^32", patched({{"version", 4294967298}}), "version"},
      {"state-scale-negative", patched({{"loss_scale", {{"scale", -5}}}}), "loss scale"},
      {"state-scale-0", patched({{"loss_scale", {{"scale", 0}}}}), "loss scale"},
      {"state-scale-text", patched({{"loss_scale", {{"scale", "1"}}}}), "state.json"},
      {"state-bytes-1e300", patched({{"files", {{"weights.safetensors", {{"bytes", 1e300}}}}}}),
       "state.json"},
      {"state-sums-missing",
       patched({{"files", {{"weights.safetensors", {{"crc32", Json::array()}}}}}}), "state.json"},
      {"state-file-elsewhere",
       patched(
           {{"files", {{"../weights.safetensors", whole.at("files").at("weights.safetensors")}}}}),
       "none of its"},
      {"state-run-endless", patched({{"run", {{"seed", std::string(100'000, 'x')}}}}), "seed"},
      {"state-without-files", patched({{"files", nullptr}}), "state.json"},
      {"state-files-list", patched({{"files", Json::array()}}), "state.json"},
      {"state-without-run", patched({{"run", nullptr}}), "state.json"},
      {"state-without-memory", patched({{"memory", nullptr}}), ""},
      {"state-memory-list", patched({{"memory", Json::array()}}), "state.json"},
      {"state-other-layout", patched({{"memory", {{"state_layout", "int4"}}}}), "state.json"},
      {"state-layout-number", patched({{"memory", {{"state_layout", 1}}}}), "state.json"},
      {"state-other-gradients", patched({{"memory", {{"gradients", "fp8"}}}}), "state.json"},
      {"state-micro-batch-0", patched({{"memory", {{"micro_batch", 0}}}}), "state.json"},
      {"state-other-run", patched({{"run", {{"seed", 6}}}}), "seed"},
      {"weights-empty", "w", "weights.safetensors"},
      {"weights-cut", "w" + weights.substr(0, weights.size() - 4), "weights.safetensors"},
      {"weights-tensor-missing", "w" + renamed(weights, "ln_f.bias", "ln_f.bia"), "is missing"},
      {"weights-other-shape",
       "w" + reworded(weights, [&](Json& header) { header[first]["shape"] = {12}; }),
       "of another shape"},
      {"weights-infinite", "w" + infinite(weights, 4), "is not finite"},
      {"optimizer-empty", "o", "optimizer.safetensors"},
      {"optimizer-is-weights", "o" + weights, "optimizer.safetensors"},
      {"optimizer-tensor-missing", "o" + renamed(optimizer, moment, "other"), "is missing"},
      {"optimizer-other-type",
       "o" + reworded(optimizer, [&](Json& header) { header[moment]["dtype"] = "I32"; }),
       "another --state-layout"},
      // Of a type that could be widened, but twice as many.
      {"optimizer-other-shape",
       "o" + reworded(optimizer,
                      [&](Json& header) {
                        header[moment]["dtype"] = "BF16";
                        header[moment]["shape"] = {24};
                      }),
       "of another shape"},
  };
}

}  // namespace sluice::fuzz
