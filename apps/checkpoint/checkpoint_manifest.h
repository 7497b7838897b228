#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/checkpoint/lineage.h"
#include "engine/io/section_sums.h"

namespace sluice {

/// The files of a checkpoint besides state.json.
inline constexpr const char *weights_file = "weights.safetensors",
                            *optimizer_file = "optimizer.safetensors";

/// The contents of a checkpoint's state.json: the step, other fields of the state, checksums of the
/// checkpoint's files, and a checksum of state.json itself.
struct CheckpointManifest {
  std::int64_t step = 0;
  std::shared_ptr<const nlohmann::json> fields{};  ///< "updates", "run", "loss_scale", ...
  std::map<std::string, SectionSums> files{};
  Lineage lineage{};      ///< within the folder that it was saved in; empty: not recorded
  std::int64_t keep = 0;  ///< the run's --keep; 0: not recorded
};

std::string to_text(const CheckpointManifest& manifest);

/// Throws Error (runtime) that names the file and the fault if the manifest is damaged.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// Reads all files of the checkpoint. Throws Error (runtime) that names the file and, if its size
/// is right, the bytes and the tensors that differ from those written.
void verify_files(const std::filesystem::path& checkpoint, const CheckpointManifest& manifest);

/// Returns a whole number from `least` to `most`; reports `file` as damaged if it is anything else.
std::int64_t whole_number(const nlohmann::json& value, std::int64_t least, std::int64_t most,
                          const std::filesystem::path& file);

/// Throws Error (runtime) that advises the user to resume from an older checkpoint.
[[noreturn]] void damaged(const std::filesystem::path& file, const std::string& why);

}  // namespace sluice
