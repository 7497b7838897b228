#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "apps/train/memory_choice.h"
#include "apps/train/options.h"
#include "apps/train/setup.h"

namespace sluice {

/// Returns options that repeat the run to the same bits: they state every value that the program
/// chose. "" marks an option that does not apply: the tokenizer if token data has none, --offload
/// if --resident-blocks implies it, --communication if GPUs exchange nothing (else it is
/// `exchange`). It resets the options of a single start of a run: --rank-files, --inject, --plan,
/// --quiet and --verbose; also --resume and --skip-batches, unless --resume names a checkpoint of
/// another run.
TrainOptions decided_options(const TrainOptions& asked, const RunSetup& setup,
                             const MemoryChoice& choice, const std::filesystem::path& output,
                             std::string_view exchange);

/// Formats the options as a file for --config.
std::string config_text(const TrainOptions& options);

}  // namespace sluice
