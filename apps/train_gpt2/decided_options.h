#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "apps/config/train_config.h"
#include "apps/train/memory_choice.h"
#include "apps/train/setup.h"

namespace sluice {

/// Returns options that repeat the run to the same bits: they state every value that the program
/// chose. `exchange`: the value for --communication; empty if GPUs exchange nothing.
///
/// An option that does not apply is empty: the tokenizer if the data are tokens without one, and
/// --offload if --resident-blocks implies it. Options that hold for one start of a run alone are
/// reset: --rank-files, --inject, --quiet and --verbose; also --resume and --skip-batches,
/// unless --resume names a checkpoint of another run.
TrainConfig decided_options(const TrainConfig& asked, const RunSetup& setup,
                            const MemoryChoice& choice, const std::filesystem::path& output,
                            std::string_view exchange);

/// Formats the options as a file for --config.
std::string config_text(const TrainConfig& options);

}  // namespace sluice
