#include "apps/train_gpt2/decided_options.h"

#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

void decide_memory(TrainConfig& o, const MemoryChoice& choice) {
  o.batch.micro_batch = choice.micro_batch;
  o.memory.head_chunk = choice.head_chunk;
  o.memory.placement = to_string(choice.placement);
  o.memory.state_layout = choice.layout;
  o.memory.gradients = choice.narrow_gradients ? DType::bf16 : DType::f32;
  o.memory.stream_chunk.reset();
  o.memory.staging_chunks.reset();
  // The chunk size matters even if nothing streams, since sizes are rounded up to it.
  if (choice.offloads_state() || choice.staging.chunk != Staging().chunk)
    o.memory.stream_chunk = choice.staging.chunk;
  if (choice.offloads_state()) o.memory.staging_chunks = choice.staging.places;
  if (choice.offloads_weights()) o.parallel.pipeline = {.name = ScheduleName::layer_major};
}

void decide_model(TrainConfig& o, const RunSetup& setup) {
  o.model.n_layer = setup.config.n_layer;
  o.model.n_head = setup.config.n_head;
  o.model.n_embd = setup.config.n_embd;
  o.model.vocab_size = setup.config.vocab_size;
  o.model.context = setup.config.n_positions;
  o.batch.seq_len = setup.trainer.seq_len;
  const DropoutConfig& dropout = setup.trainer.dropout;
  // Others are those of the model's config.json.
  if (dropout.attention == dropout.residual && dropout.embedding == dropout.residual)
    o.model.dropout = dropout.residual;
  if (o.data.train.empty()) o.data.train = {setup.data_name};
  o.data.tokenizer.reset();
  if (setup.tokenizer) o.data.tokenizer = value_in(tokenizers, setup.tokenizer->kind());
}

/// A run restarted from its own configuration resumes from the newest checkpoint, and must not skip
/// batches a second time.
void decide_start(TrainConfig& o, const fs::path& output) {
  std::error_code ignored;
  const bool of_another = o.checkpoint.resume.from == ResumeOption::From::path &&
                          !fs::equivalent(fs::path(o.checkpoint.resume.path).parent_path(),
                                          output / "checkpoints", ignored);
  if (of_another) return;
  o.checkpoint.resume = {};
  o.data.skip_batches = 0;
}

}  // namespace

TrainConfig decided_options(const TrainConfig& asked, const RunSetup& setup,
                            const MemoryChoice& choice, const fs::path& output,
                            std::string_view exchange) {
  TrainConfig o = asked;
  decide_model(o, setup);
  decide_memory(o, choice);
  decide_start(o, output);
  o.optimizer.lr = setup.schedule.rate;
  o.optimizer.min_lr.reset();
  if (o.optimizer.schedule != ScheduleKind::constant)
    o.optimizer.min_lr = setup.schedule.final_rate;
  o.machine.precision = kind_of(setup.precision);
  o.machine.device = setup.device;
  o.machine.threads = cpu::threads();
  o.parallel.bucket_size = o.parallel.bucket_bytes(setup.device == DeviceKind::cuda);
  if (!o.parallel.communication && !exchange.empty())
    o.parallel.communication = value_in(communications, exchange);
  if (!o.checkpoint.save_every) o.checkpoint.save_every = "5min";
  if (o.parallel.pipelined()) o.parallel.pipeline = o.parallel.schedule();
  o.checkpoint.output = output.string();
  o.parallel.rank_files.clear();
  o.parallel.inject.clear();
  o.log.quiet = o.log.verbose = false;
  return o;
}

std::string config_text(const TrainConfig& options) {
  TrainConfig copy = options;
  CommandLine line("train_gpt2", "");
  declare_config(line, copy);
  return line.resolved();
}

}  // namespace sluice
