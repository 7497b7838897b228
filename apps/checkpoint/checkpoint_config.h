#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

/// The checkpoint that a run resumes from: the newest one of its output, none, or `path`.
struct ResumeOption {
  enum class From : std::uint8_t { newest, nothing, path };
  From from = From::newest;
  std::string path{};  ///< a checkpoint or a run's folder
};

/// The checkpoints that a training writes and resumes from, as a user asks for them.
struct CheckpointConfig {
  std::string output;  ///< the run's folder; empty: runs/<time>
  ResumeOption resume{};
  std::optional<std::string> save_every;  ///< what SaveCadence reads
  std::optional<std::int64_t> keep;       ///< checkpoints; none: as the run that goes on, else 2
  bool no_save = false;
  bool async_save = false;  ///< trains on while a copy in host memory is written
  bool keep_best = false;   ///< keeps the model of the lowest validation loss
};

}  // namespace sluice
