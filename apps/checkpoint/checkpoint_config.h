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

/// How a checkpoint is written: training waits for it, or goes on while a copy in host memory is
/// written. Never: the end of a run saves and exports nothing; `save_every` saves nevertheless.
enum class Saving : std::uint8_t { wait, background, never };

/// The checkpoints that a training writes and resumes from, as a user asks for them.
struct CheckpointConfig {
  std::string output;  ///< the run's folder; empty: runs/<time>
  ResumeOption resume{};
  std::optional<std::string> save_every;  ///< what SaveCadence reads
  std::optional<std::int64_t> keep;       ///< checkpoints; none: as the run that goes on, else 2
  Saving saving = Saving::wait;
  bool keep_best = false;  ///< keeps the model of the lowest validation loss

  bool saves() const { return saving != Saving::never; }
};

}  // namespace sluice
