#include "apps/train_gpt2/split_times.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <vector>

#include "apps/cli/progress.h"
#include "apps/data/data_files.h"
#include "apps/data/same_files.h"
#include "apps/plan/run_facts.h"
#include "engine/autograd.h"
#include "models/decoder/parallelize.h"
#include "models/decoder/weights.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Three blocks of the model on a device: one with the embedding, one alone, one with the head.
class Sample {
 public:
  Sample(const RunSetup& setup, const DevicePtr& device)
      : config_(three_blocks(setup.config)),
        model_(config_),
        space_(model_.parameters(), device, setup.precision.dtype, ParameterSpace::Use::training),
        stash_(setup.pipeline->stash),
        ids_(static_cast<std::size_t>(setup.trainer.micro_batch * setup.trainer.seq_len)),
        data_{.tokens = ids_,
              .targets = ids_,
              .rows = setup.trainer.micro_batch,
              .seq_len = setup.trainer.seq_len} {}

  /// Runs forward and backward of one of the three blocks and returns the seconds.
  double time(std::int64_t block) {
    const DevicePtr& device = space_.device();
    DecoderStage stage(model_, {block, block + 1}, data_, device, space_.working().dtype());
    const auto [shape, dtype] = stage.input(0);
    Tensor input;
    if (block > 0) input = Tensor::zeros(device, shape, dtype).set_requires_grad(true);
    device->runtime().synchronize(device->stream());
    const auto start = Clock::now();
    if (stash_ == Stash::input && block < 2) {
      const NoGrad unrecorded;
      stage.forward(0, input);
    }
    const Tensor result = stage.forward(0, input);
    backward(result, block < 2 ? result.detach() : Tensor());
    device->runtime().synchronize(device->stream());
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  static DecoderConfig three_blocks(DecoderConfig config) {
    config.n_layer = 3;
    config.lora = {};  // blocks with adapters are as far from one another
    return config;
  }

  DecoderConfig config_;
  Decoder model_;
  ParameterSpace space_;
  Stash stash_;  ///< Stash::input: all stages but the last run forward twice
  std::vector<std::int32_t> ids_;
  MicroBatches data_;
};

/// Returns the best of a few runs, since noise only slows runs down.
std::array<double, 3> measure(const RunSetup& setup) {
  const DevicePtr counted = make_meta_device(0, 0);
  Sample on_paper(setup, counted);
  for (const int block : {0, 1, 2})
    on_paper.time(block);
  // Adds room for the workspace that kernels request.
  const std::size_t bytes = counted->arena().high_water() + (std::size_t{64} << 20);
  Sample sample(setup, make_device(setup.device, setup.precision, bytes));
  std::array<double, 3> best{};
  for (int run = 0; run < 5; ++run)
    for (std::size_t block = 0; block < 3; ++block) {
      const double seconds = sample.time(static_cast<std::int64_t>(block));
      if (run == 1 || (run > 1 && seconds < best[block])) best[block] = seconds;
    }
  return best;
}

/// Returns the number of blocks of each stage, as --pipeline-split takes it.
std::string split_by_time(const RunSetup& setup) {
  const auto [first, block, last] = measure(setup);
  const auto more = [one = block](double seconds) { return std::max(0.0, seconds - one); };
  std::string split = fmt::format(
      "{}", fmt::join(balanced_blocks(setup.config.n_layer, setup.pipeline->schedule.stages,
                                      {.block = block, .first = more(first), .last = more(last)}),
                      ","));
  say(
      fmt::format("split        {} blocks: of a micro-batch a block takes {:.1f} ms, the "
                  "embedding {:.1f} ms, the head {:.1f} ms\n",
                  split, 1e3 * block, 1e3 * more(first), 1e3 * more(last)));
  return split;
}

/// Returns the files that each rank reads.
std::vector<FilesOfFlag> input_files(const TrainConfig& o) {
  std::vector<FilesOfFlag> all;
  if (o.data.train.empty())
    all.push_back(files_of("--data", [] { return std::vector<fs::path>{shipped_text()}; }));
  else
    all.push_back(data_files_of("--data", o.data.train));
  if (!o.data.val.empty()) all.push_back(data_files_of("--val-data", o.data.val));
  all.push_back(model_files_of("--model", o.model.name));
  all.push_back(model_files_of("--adapter", o.adapter.folder));
  all.push_back(model_files_of("--tokenizer-dir", o.data.tokenizer_dir));
  return all;
}

}  // namespace

RunSetup resolve_with_split(TrainConfig& options, Job& job) {
  if (job.size() > 1) {
    std::vector<FilesOfFlag> files;
    keep_alive(job.control(), "files", [&] { files = input_files(options); });
    require_same_files(job.control(), files);
  }
  const bool by_time = options.parallel.pipelined() && options.parallel.split == "time";
  if (by_time) options.parallel.split = "blocks";  // until it is known
  RunSetup setup;
  keep_alive(job.control(), "data", [&] {
    setup = resolve(options);
    require_run(options, setup);
    // Read here and not by resolve(), which plans call too.
    if (setup.config.lora.rank > 0) setup.base_checksum = weights_checksum(setup.model_folder);
  });
  if (!by_time) return setup;
  const std::string split = job.rank() == 0 ? split_by_time(setup) : std::string();
  options.parallel.split = job.control().share_text(split, 0, "split");
  setup.pipeline = plan_pipeline(options, setup.config, setup.trainer.micro_batch, setup.device);
  return setup;
}

}  // namespace sluice
