#include "apps/checkpoint/recorded_choice.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sluice {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string to_flags(const RecordedChoice& choice) {
  return fmt::format("--micro-batch {} --state-layout {} --gradients {}", choice.micro_batch,
                     name_of(choice.layout), choice.gradients());
}

Json to_json(const RecordedChoice& choice) {
  return {{"micro_batch", choice.micro_batch},
          {"state_layout", name_of(choice.layout)},
          {"gradients", choice.gradients()}};
}

std::optional<RecordedChoice> recorded_choice(const fs::path& checkpoint,
                                              const CheckpointManifest& manifest) {
  const auto found = manifest.fields->find("memory");
  if (found == manifest.fields->end()) return {};
  const fs::path file = checkpoint / "state.json";
  constexpr std::int64_t most_sequences = std::int64_t{1} << 32;
  try {
    const auto layout = layout_named(found->at("state_layout").get<std::string>());
    const auto gradients = found->at("gradients").get<std::string>();
    if (!layout || (gradients != "bf16" && gradients != "fp32"))
      damaged(file, "it tells of a use of memory that there is not");
    return RecordedChoice{
        .micro_batch = whole_number(found->at("micro_batch"), 1, most_sequences, file),
        .layout = *layout,
        .narrow_gradients = gradients == "bf16"};
  } catch (const Json::exception&) {
    damaged(file, "a field is missing or of the wrong type");
  }
}

}  // namespace sluice
