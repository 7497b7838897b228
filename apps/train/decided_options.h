#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "apps/train/memory_choice.h"
#include "apps/train/options.h"
#include "apps/train/setup.h"

namespace sluice {

/// The options that make the same run again, to the same bits: everything that was left to the
/// program is as it was decided. "" stands for what there is nothing to say of: the tokenizer of
/// token data without one, --offload where --resident-blocks says it, --communication where nothing
/// is exchanged between GPUs (`exchange` says by what otherwise). What is for one start of a run
/// alone is left out: --rank-files, --inject, --plan, --quiet and --verbose; --resume with
/// --skip-batches, unless it names a checkpoint of another run.
TrainOptions decided_options(const TrainOptions& asked, const RunSetup& setup,
                             const MemoryChoice& choice, const std::filesystem::path& output,
                             std::string_view exchange);

/// As a file for --config.
std::string config_text(const TrainOptions& options);

}  // namespace sluice
