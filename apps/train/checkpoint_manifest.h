#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/train/lineage.h"
#include "engine/io/section_sums.h"

namespace sluice {

/// The files of a checkpoint beside state.json.
inline constexpr const char *weights_file = "weights.safetensors",
                            *optimizer_file = "optimizer.safetensors";

/// state.json of a checkpoint: the step, what else the state says of itself, and by what all of its
/// files can be told to be whole. It guards itself by a checksum too.
struct CheckpointManifest {
  std::int64_t step = 0;
  std::shared_ptr<const nlohmann::json> fields{};  ///< "updates", "run", "loss_scale", ...
  std::map<std::string, SectionSums> files{};
  Lineage lineage{};      ///< of the folder that it was saved in; empty: not recorded
  std::int64_t keep = 0;  ///< --keep of the run; 0: not recorded
};

std::string to_text(const CheckpointManifest& manifest);

/// Throws Error (runtime), which names the file and what is wrong, where it is damaged.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// Reads all of the checkpoint's files. Throws Error (runtime) naming the file and, where its size
/// is right, the bytes and the tensors that differ from what was written.
void verify_files(const std::filesystem::path& checkpoint, const CheckpointManifest& manifest);

/// A whole number from `least` to `most` of a manifest; anything else is damage of `file`.
std::int64_t whole_number(const nlohmann::json& value, std::int64_t least, std::int64_t most,
                          const std::filesystem::path& file);

/// Says that to resume from an older one is the way out.
[[noreturn]] void damaged(const std::filesystem::path& file, const std::string& why);

}  // namespace sluice
