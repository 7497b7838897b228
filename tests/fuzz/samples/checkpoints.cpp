#include <nlohmann/json.hpp>

#include "tests/fuzz/samples.h"
#include "tests/fuzz/small_files.h"
#include "tests/fuzz/small_run.h"

namespace sluice::fuzz {

using Json = nlohmann::json;

Samples checkpoint_samples() {
  const SmallRun run;
  const auto& [state, weights, optimizer] = run.files();
  const Json whole = Json::parse(state);
  const auto patched = [&](const Json& patch) {
    Json json = whole;
    json.merge_patch(patch);
    return "r" + json.dump();
  };
  const auto lineage = [&](const std::string& saves, const std::string& named) {
    return patched({{"lineage", {{"saves", Json::parse(saves)}, {"named", Json::parse(named)}}}});
  };
  const auto saves = [&](const std::string& stretches) { return lineage(stretches, "[]"); };
  const auto named = [&](const std::string& numbers) { return lineage("[[1, 2]]", numbers); };
  const auto listed = [&](const char* field, const Json& value) {
    return patched({{"files", {{"weights.safetensors", {{field, value}}}}}});
  };
  const auto sum =
      whole.at("files").at("weights.safetensors").at("crc32").at(0).get<std::uint32_t>();
  const auto point = [](const Json& patch) {
    Json json{{"checkpoint", "step-00000003"},
              {"named", true},
              {"skip_batches", 0},
              {"saves", 1},
              {"keep", 2}};
    json.merge_patch(patch);
    return "p" + json.dump();
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
      {"accepted-lineage", lineage("[[1, 2], [6, 7]]", "[2, 6]"), ""},
      {"accepted-keep", patched({{"keep", 5}}), ""},
      {"accepted-without-lineage", patched({{"lineage", nullptr}, {"keep", nullptr}}), ""},
      {"lineage-list", patched({{"lineage", Json::array()}}), "state.json"},
      {"lineage-without-saves", patched({{"lineage", {{"saves", nullptr}}}}), "state.json"},
      {"lineage-saves-object", saves(R"({"a": 1})"), "state.json"},
      {"lineage-saves-text", saves(R"([["1", "2"]])"), "is not a whole number"},
      {"lineage-stretch-of-three", saves("[[1, 2, 3]]"), "is not two saves"},
      {"lineage-stretch-number", saves("[1]"), "is not two saves"},
      {"lineage-stretch-object", saves(R"([{"a": 1, "b": 2}])"), "state.json"},
      {"lineage-from-0", saves("[[0, 2]]"), "do not increase"},
      {"lineage-minus", saves("[[-1, 2]]"), "do not increase"},
      {"lineage-backwards", saves("[[2, 1]]"), "do not increase"},
      {"lineage-overlaps", saves("[[1, 3], [3, 4]]"), "do not increase"},
      {"lineage-1e300", saves("[[1, 1e300]]"), "is not a whole number"},
      {"lineage-2^63", saves("[[1, 9223372036854775808]]"), "do not increase"},
      {"lineage-2^64-1", saves("[[1, 2], [3, 18446744073709551615]]"), "do not increase"},
      {"lineage-named-another", named("[3]"), "is none of its saves"},
      {"lineage-named-minus", named("[-1]"), "is none of its saves"},
      {"lineage-named-2^64-1", named("[18446744073709551615]"), "is none of its saves"},
      {"lineage-named-text", named(R"(["1"])"), "is not a whole number"},
      {"keep-minus", patched({{"keep", -1}}), "state.json"},
      {"keep-text", patched({{"keep", "2"}}), "state.json"},
      {"keep-1e300", patched({{"keep", 1e300}}), "state.json"},
      {"keep-2^63", patched({{"keep", std::uint64_t{1} << 63}}), "state.json"},
      {"sum-wrong", listed("crc32", Json::array({sum ^ 1})), "are not those that were written"},
      {"sum-minus", listed("crc32", Json::array({-1})), "state.json"},
      {"sum-2^32", listed("crc32", Json::array({std::uint64_t{1} << 32})), "state.json"},
      {"sum-text", listed("crc32", Json::array({"1"})), "state.json"},
      {"sums-two", listed("crc32", Json::array({sum, sum})), "another number of checksums"},
      {"sums-object", listed("crc32", {{"a", sum}}), "state.json"},
      {"section-of-1", listed("section_bytes", 1), "state.json"},
      {"bytes-1-more", listed("bytes", weights.size() + 1), "bytes, "},
      {"bytes-2^62", listed("bytes", std::int64_t{1} << 62), "another number of checksums"},
      {"bytes-minus", listed("bytes", -1), "state.json"},
      {"weights-damaged", "d" + infinite(weights, 4), "are not those that were written"},
      {"weights-damaged-names", "d" + renamed(weights, "wte.weight", "wte.\xE2\x80\x8Bght"),
       "are not those that were written"},
      {"weights-damaged-header", "d" + std::string(weights.size(), '\xFF'), "its header too"},
      {"accepted-point", point(Json::object()), ""},
      {"accepted-point-elsewhere", point({{"checkpoint", "/a/step-00000001"}}), ""},
      {"point-empty", "p", "resume.json"},
      {"point-list", "p[]", "resume.json"},
      {"point-without-checkpoint", point({{"checkpoint", nullptr}}), "resume.json"},
      {"point-checkpoint-number", point({{"checkpoint", 7}}), "resume.json"},
      {"point-named-number", point({{"named", 1}}), "resume.json"},
      {"point-saves-minus", point({{"saves", -1}}), "resume.json"},
      {"point-saves-2^63", point({{"saves", std::uint64_t{1} << 63}}), "resume.json"},
      {"point-keep-1e300", point({{"keep", 1e300}}), "resume.json"},
      {"point-skip-text", point({{"skip_batches", "1"}}), "resume.json"},
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
      // The type could be widened, but there are twice as many elements.
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
