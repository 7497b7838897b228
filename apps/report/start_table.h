#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/config/train_config.h"
#include "apps/plan/planner.h"
#include "apps/train/setup.h"

namespace sluice {

/// Facts about a run besides its options.
struct StartFacts {
  std::int64_t step = 0;             ///< updates done before this start
  std::int64_t skipped_batches = 0;  ///< batches of the data that are skipped
  Mesh mesh{};
  Plan plan;
  double matmul_flops = 0;  ///< FLOP/s of matrix products, of which MFU is a share
  std::string device_name{};
  std::string device_code{};  ///< as in DeviceInfo
  std::string saves{};        ///< when checkpoints are due: "every 5 minutes"
  std::int64_t keep = 0;      ///< number of checkpoints that are kept
  std::string note{};         ///< remark on the machine for the user; may be empty
  std::filesystem::path output;
};

/// Prints the decisions as aligned rows on stdout. Sizes are those of the whole model and of the
/// whole job; memory is this rank's.
void print_start_table(const TrainConfig& options, const RunSetup& setup, const StartFacts& facts);

/// Prints how many steps are done, and the last losses, if this start has computed any.
void print_done(std::int64_t step, std::int64_t steps, std::optional<double> loss,
                std::optional<double> val_loss);

/// Prints at the end how to continue a stopped run, or how to use the model of a finished one.
void print_what_next(const std::filesystem::path& output, bool stopped, bool saved);

}  // namespace sluice
