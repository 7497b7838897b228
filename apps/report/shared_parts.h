#pragma once

#include <cstdint>
#include <string>

#include "apps/plan/cost/interconnect.h"
#include "apps/plan/planner.h"
#include "apps/report/report.h"

namespace sluice {

// These functions make the lines and figures that several reports share.

/// Begins a report with the machine and the model.
Report model_report(const DeviceProfile& profile, const DecoderConfig& config,
                    const Precision& precision);

/// Says what adapters a model has: "rank 16, alpha 32, of all matrices: 4.88M parameters are
/// trained".
std::string adapters_text(const DecoderConfig& config);
/// Says how the model is kept beside them.
inline constexpr const char* int8_base_text = "the matrices of the blocks are kept in 8 bits";

/// Returns "12.5 GB/s and 4 us".
std::string spell(const Link& link);
nlohmann::ordered_json link_json(const Link& link);
/// Returns the bytes by the names of their uses.
nlohmann::ordered_json use_json(const MemoryByUse& bytes);

/// Command and predicted duration of a plan, for a user who wants to train by it.
struct WholeRun {
  std::string command{};  ///< as typed into a shell
  std::int64_t steps = 0;
  double step_seconds = 0;  ///< predicted; not finite if unknown
  std::string rates{};      ///< origin of the rates behind the prediction
};

/// Says where state rests in a file: "2.1 GiB in /mnt, read and written once a step". `whose`
/// follows the bytes: " of 2 ranks"; or "".
std::string state_file_text(const std::string& folder, std::size_t bytes, const std::string& whose);

/// Returns the command that trains by the plan's `flags`. On several nodes HOSTS stands for
/// the file of their names.
std::string training_command(const TrainConfig& options, std::int64_t ranks,
                             const std::string& flags);

/// Reports on the run in two rows: how long it takes, and its command.
Report whole_run_report(const WholeRun& run);

}  // namespace sluice
