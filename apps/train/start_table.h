#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "apps/train/options.h"
#include "apps/train/planner.h"
#include "apps/train/setup.h"

namespace sluice {

/// What a run has come to beside its options.
struct StartFacts {
  std::int64_t step = 0;             ///< updates done before
  std::int64_t skipped_batches = 0;  ///< left out of the data
  Mesh mesh{};
  Plan plan;
  double matmul_flops = 0;  ///< measured, per second
  std::string device_name{};
  std::string saves{};    ///< when checkpoints are due: "every 5 minutes"
  std::int64_t keep = 0;  ///< how many of them
  std::string note{};     ///< what the user should know of the machine; empty: nothing
  std::filesystem::path output;
};

/// Prints what was decided, as aligned rows on stdout. Sizes are those of the whole model and of
/// the whole job; memory is this rank's.
void print_start_table(const TrainOptions& options, const RunSetup& setup, const StartFacts& facts);

/// At the end of a run: how to go on with it if it was stopped, else what its model is good for.
void print_what_next(const std::filesystem::path& output, bool stopped, bool saved);

}  // namespace sluice
