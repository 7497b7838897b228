#include <nlohmann/json.hpp>

#include "tests/fuzz/samples.h"

namespace sluice::fuzz {
namespace {

using Json = nlohmann::json;

Json profile() {
  return {{"name", "a card"},
          {"gpu", true},
          {"capability", 80},
          {"multiprocessors", 108},
          {"memory", std::uint64_t{80} << 30},
          {"host_memory", std::uint64_t{64} << 30},
          {"workspace", 1 << 25},
          {"context", 1 << 29},
          {"process", 1 << 30},
          {"wide_flops", 4e13},
          {"narrow_flops", 1.9e14},
          {"memory_rate", 1.5e12},
          {"to_device_rate", 2e10},
          {"to_host_rate", 2e10},
          {"host_rate", 1e11},
          {"link_bandwidth", 2e11},
          {"link_latency", 3e-6}};
}

std::string patched(const Json& patch) {
  Json json = profile();
  json.merge_patch(patch);
  return "j" + json.dump();
}

}  // namespace

Samples device_profile_samples() {
  const std::string unseen = "a\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B";
  return {
      {"accepted", patched(Json::object()), ""},
      {"accepted-older",
       patched({{"host_memory", nullptr},
                {"host_rate", nullptr},
                {"link_bandwidth", nullptr},
                {"link_latency", nullptr}}),
       ""},
      {"accepted-unseen", patched({{"name", unseen}}), ""},
      {"accepted-cpu", patched({{"gpu", false}, {"capability", 0}, {"multiprocessors", 0}}), ""},
      {"accepted-more", patched({{"colour", "green"}}), ""},
      {"empty", "j", "--probe"},
      {"list", "j[]", "is no object"},
      {"number", "j7", "is no object"},
      {"key-twice", R"(j{"name":"a","name":"b"})", "occurs twice"},
      {"without-name", patched({{"name", nullptr}}), "\"name\" is missing"},
      {"without-rate", patched({{"memory_rate", nullptr}}), "\"memory_rate\" is missing"},
      {"name-number", patched({{"name", 7}}), "\"name\" is 7"},
      {"name-empty", patched({{"name", ""}}), "\"name\" is \"\""},
      {"name-endless", patched({{"name", std::string(50'000, 'x')}}), "\"name\" is"},
      {"gpu-number", patched({{"gpu", 1}}), "\"gpu\" is 1"},
      {"capability-1e300", patched({{"capability", 1e300}}), "\"capability\" is 1e+300"},
      {"capability-minus", patched({{"capability", -1}}), "\"capability\" is -1"},
      {"capability-true", patched({{"capability", true}}), "\"capability\" is true"},
      {"capability-fraction", patched({{"capability", 8.5}}), "\"capability\" is 8.5"},
      {"multiprocessors-2^40", patched({{"multiprocessors", std::int64_t{1} << 40}}),
       "\"multiprocessors\" is"},
      {"memory-minus", patched({{"memory", -1}}), "\"memory\" is -1"},
      {"memory-1e300", patched({{"memory", 1e300}}), "\"memory\" is 1e+300"},
      {"memory-2^63", patched({{"memory", std::uint64_t{1} << 63}}), "\"memory\" is"},
      {"memory-text", patched({{"memory", unseen}}), "\"memory\" is"},
      {"memory-endless", patched({{"memory", std::vector<int>(10'000)}}), "\"memory\" is"},
      {"workspace-minus", patched({{"workspace", -1}}), "\"workspace\" is -1"},
      {"rate-minus", patched({{"memory_rate", -1}}), "\"memory_rate\" is -1"},
      {"rate-0", patched({{"memory_rate", 0}}), "must not be 0"},
      {"rate-1e300", patched({{"memory_rate", 1e300}}), "\"memory_rate\" is 1e+300"},
      {"rate-text", patched({{"host_rate", "1"}}), "\"host_rate\" is \"1\""},
      {"latency-1e300", patched({{"link_latency", 1e300}}), "\"link_latency\" is 1e+300"},
      {"no-flops", patched({{"wide_flops", 0}, {"narrow_flops", 0}}), "must not be 0"},
      {"too-large", "j" + std::string((1 << 16) + 1, ' '), "more than the limit"},

      {"accepted-card", "na100", ""},
      {"accepted-card-as-people-write-it", "nNVIDIA GeForce RTX 4090", ""},
      {"accepted-card-with-memory", "nNVIDIA A100-SXM4-80GB", ""},
      {"accepted-card-with-blanks", "nA100 80 GB", ""},
      {"card-empty", "n", "is not one of"},
      {"card-unknown", "na1000", "the nearest is a100"},
      {"card-other-memory", "na100 40GB", "has 80 GB"},
      {"card-minus", "na100 -40GB", "has 80 GB"},
      {"card-2^64-GB", "na100 18446744073709551616GB", "is not one of"},
      {"card-unseen", "n" + unseen, "is not one of"},
      {"card-endless", "n" + std::string(100'000, 'x'), "is not one of"},
      {"card-of-words",
       "n" +
           [] {
             std::string words;
             for (int i = 0; i < 20'000; ++i)
               words += "gb ";
             return words;
           }(),
       "is not one of"},
  };
}

}  // namespace sluice::fuzz
