#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "apps/train/memory_choice.h"
#include "apps/train/options.h"
#include "apps/train/setup.h"

namespace sluice {

/// Returns the options that repeat the run to the same bits: every value that was left to the
/// program is the decided one. "" marks an option that does not apply: the tokenizer of token data
/// without one, --offload where --resident-blocks implies it, --communication if GPUs exchange
/// nothing (else it is `exchange`). Options for a single start of a run are reset: --rank-files,
/// --inject, --plan, --quiet and --verbose; and --resume together with --skip-batches, unless
/// --resume names a checkpoint of another run.
TrainOptions decided_options(const TrainOptions& asked, const RunSetup& setup,
                             const MemoryChoice& choice, const std::filesystem::path& output,
                             std::string_view exchange);

/// Formats the options as a file for --config.
std::string config_text(const TrainOptions& options);

}  // namespace sluice
