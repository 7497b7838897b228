#include "apps/train_gpt2/decided_options.h"

#include "kernels/cpu/parallel_for.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

void decide_memory(TrainOptions& o, const MemoryChoice& choice) {
  const bool streams = choice.streams();
  o.micro_batch = choice.micro_batch;
  o.head_chunk = choice.head_chunk;
  o.recompute = to_string(choice.recompute);
  o.state_layout = choice.layout;
  o.gradients = choice.narrow_gradients ? DType::bf16 : DType::f32;
  o.offload.reset();
  if (!streams) o.offload = Offload::off;
  o.speculative_blocks = choice.speculative_blocks;
  o.resident_blocks.reset();
  o.cpu_blocks.reset();
  o.host_blocks.reset();
  if (o.layer_major()) o.host_blocks = choice.host_blocks;
  o.cpu_tables = choice.cpu_tables;
  o.stream_chunk.reset();
  o.staging_chunks.reset();
  if (streams) {
    o.resident_blocks = choice.resident_blocks;
    o.cpu_blocks = choice.cpu_blocks;
    o.staging_chunks = choice.staging.places;
  }
  // The chunk size matters even if nothing streams, since sizes are rounded up to it.
  if (streams || choice.staging.chunk != Staging().chunk) o.stream_chunk = choice.staging.chunk;
}

void decide_model(TrainOptions& o, const RunSetup& setup) {
  o.n_layer = setup.config.n_layer;
  o.n_head = setup.config.n_head;
  o.n_embd = setup.config.n_embd;
  o.vocab_size = setup.config.vocab_size;
  o.context = setup.config.n_positions;
  o.seq_len = setup.trainer.seq_len;
  const DropoutConfig& dropout = setup.trainer.dropout;
  o.dropout = dropout.residual;
  if (dropout.attention != dropout.residual) o.attention_dropout = dropout.attention;
  if (dropout.embedding != dropout.residual) o.embedding_dropout = dropout.embedding;
  if (o.data.empty()) o.data = {setup.data_name};
  o.tokenizer.reset();
  if (setup.tokenizer) o.tokenizer = value_in(tokenizers, setup.tokenizer->kind());
}

/// A run restarted from its own configuration resumes from the newest checkpoint, and must not skip
/// batches a second time.
void decide_start(TrainOptions& o, const fs::path& output) {
  std::error_code ignored;
  const bool of_another =
      o.resume.from == ResumeOption::From::path &&
      !fs::equivalent(fs::path(o.resume.path).parent_path(), output / "checkpoints", ignored);
  if (of_another) return;
  o.resume = {};
  o.skip_batches = 0;
}

}  // namespace

TrainOptions decided_options(const TrainOptions& asked, const RunSetup& setup,
                             const MemoryChoice& choice, const fs::path& output,
                             std::string_view exchange) {
  TrainOptions o = asked;
  decide_model(o, setup);
  decide_memory(o, choice);
  decide_start(o, output);
  o.lr = setup.schedule.rate;
  o.min_lr.reset();
  if (o.lr_schedule != ScheduleKind::constant) o.min_lr = setup.schedule.final_rate;
  o.precision = kind_of(setup.precision);
  o.device = setup.device;
  o.threads = cpu::threads();
  o.bucket_size = bucket_bytes(o, setup.device == DeviceKind::cuda);
  if (!o.communication && !exchange.empty()) o.communication = value_in(communications, exchange);
  if (!o.save_every) o.save_every = "5min";
  if (o.pipelined()) o.pipeline = o.schedule();
  o.output = output.string();
  o.rank_files.clear();
  o.inject.clear();
  o.plan = o.quiet = o.verbose = false;
  return o;
}

std::string config_text(const TrainOptions& options) {
  TrainOptions copy = options;
  CommandLine line("train_gpt2", "");
  declare_options(line, copy);
  return line.resolved();
}

}  // namespace sluice
