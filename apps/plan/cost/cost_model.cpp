#include "apps/plan/cost/cost_model.h"

#include <algorithm>

#include "apps/plan/cost/muon_cost.h"
#include "apps/plan/cost/pass_times.h"
#include "apps/plan/cost/tensor_traffic.h"
#include "models/lora/targets.h"

namespace sluice {
namespace {

/// Sizes of a model's part on tensor-parallel shard 0.
struct ShardSize {
  ShardSize(const DecoderConfig& config, std::int64_t ranks)
      : shard(config, 0, static_cast<int>(ranks)),
        embedding(config.n_embd),
        width(shard.width.end),
        inner(shard.inner.end),
        vocabulary(shard.vocabulary.end),
        // The terms are: matrices; biases; norms.
        block(embedding * (shard.qkv_columns() + width + shard.mlp_columns() + inner) +
              bias_columns(config, shard) + config.norm_parameters()),
        head(vocabulary + config.norm_vectors()),
        positions(config.rotary ? 0 : config.n_positions) {}

  DecoderShard shard;
  std::int64_t embedding, width, inner, vocabulary;
  std::int64_t block;      ///< parameters
  std::int64_t head;       ///< rows of the vocabulary's table, and of the final norm
  std::int64_t positions;  ///< rows of a table of positions
};

/// Returns the seconds of recompute in a block.
double recompute_of(Recompute mode, const PassTimes& pass) {
  if (recomputes_block(mode)) return pass.layer_forward;
  return (mode == Recompute::gelu || mode == Recompute::gelu_ln ? pass.gelu : 0) +
         (mode == Recompute::gelu_ln ? pass.norms : 0);
}

/// Cost of the blocks whose state the CPU updates: bytes over the link, and seconds.
struct CpuShare {
  CpuShare(const ShardSize& size, const MemoryChoice& choice, const StepWork& work,
           const DeviceProfile& profile)
      : blocks(static_cast<double>(choice.count(Residency::cpu))) {
    if (blocks == 0) return;
    const double parameters = work.share * blocks * static_cast<double>(size.block);
    const auto width = static_cast<double>(size_of(work.dtype));
    const double gradient = choice.gradient_bytes();
    // The update reads a weight that holds half of the master weight's bits, and only writes one
    // that is a rounded copy.
    const bool reads = size_of(work.dtype) > 2 || splits_master(choice.layout, work.dtype);
    down = parameters * (gradient + (reads ? width : 0));
    up = parameters * width;
    // Bytes per second of the slowest hosts, used if the rate is unknown.
    constexpr double slow = 2e10;
    seconds = (2 * work.cpu_state + down + up) / (profile.host_rate > 0 ? profile.host_rate : slow);
  }

  /// Returns the exposed seconds of these updates, for which a forward pass of `layers` layers of
  /// `layer` seconds each must wait. The CPU updates the highest `blocks` layers, the lowest of
  /// them first. That one is updated after seconds / blocks and read after the layers below it have
  /// run; the last one is updated after `seconds` and read after all other layers have run.
  double exposed(double layers, double layer) const {
    if (blocks == 0) return 0;
    return std::max(seconds / blocks - (layers - blocks) * layer, seconds - (layers - 1) * layer);
  }

  double blocks;
  double down = 0, up = 0, seconds = 0;
};

/// Cost of the blocks whose updates begin during the backward pass.
struct Speculation {
  Speculation(const ShardSize& size, const MemoryChoice& choice, const StepWork& work)
      : blocks(static_cast<double>(choice.count(Residency::speculative))), top_blocks(blocks) {
    if (blocks == 0) return;
    top_blocks += static_cast<double>(choice.count(Residency::cpu));
    state = work.streamed_state * blocks / static_cast<double>(choice.streamed_blocks());
    saved = work.share * blocks * static_cast<double>(size.block) *
            static_cast<double>(size_of(work.dtype));
  }

  /// Returns the exposed seconds of these copies: how long they and other copies, which take
  /// `beside` seconds, go on after a backward pass of `backward` seconds. The copies of a block
  /// start when its gradients are complete.
  double exposed(double backward, double layers, double beside,
                 const DeviceProfile& profile) const {
    if (blocks == 0) return 0;
    const double copies =
        std::max(state / profile.to_device_rate, (state + saved) / profile.to_host_rate) + beside;
    const double layer = backward / layers;
    return std::max({0.0, copies - (layers - (top_blocks - blocks) - 1) * layer,
                     copies / blocks - (layers - top_blocks) * layer});
  }

  double blocks;
  double top_blocks;            ///< speculative and CPU blocks, the highest of the model
  double state = 0, saved = 0;  ///< bytes
};

/// Returns the seconds of reading and writing the gradient of the vocabulary's table, in fp32, once
/// for each chunk of a micro-batch but the first.
double head_accumulation(const DecoderConfig& config, const MemoryChoice& choice,
                         const StepWork& work, const DeviceProfile& profile) {
  if (config.lora.rank > 0) return 0;
  const ShardSize size(config, work.shards.ranks);
  const std::int64_t again = head_chunks(choice, choice.micro_batch * work.seq_len) - 1;
  return static_cast<double>(again * size.vocabulary * size.embedding) * 2 * 4 /
         profile.memory_rate;
}

struct TensorWait {
  double forward = 0, backward = 0;
};

/// Returns the exposed waits of one micro-batch for other ranks.
TensorWait wait_of(const DecoderConfig& config, const DecoderPart& part, const MemoryChoice& choice,
                   const StepWork& work, const PassTimes& pass) {
  if (work.shards.ranks == 1) return {};
  const TensorTraffic traffic = tensor_traffic(config, part, choice,
                                               {.shards = work.shards,
                                                .rows = choice.micro_batch,
                                                .seq_len = work.seq_len,
                                                .dtype = work.dtype});
  const auto& sums = traffic.sums;
  const auto& streams = traffic.streams;
  const TensorTimes times(work.shards);
  TensorWait wait{
      .forward = times.sums(sums.forward) + times.gathers(streams.forward) +
                 times.gathers(traffic.key_values.forward) + times.gathers(traffic.softmax),
      .backward = times.sums(sums.again) + times.gathers(streams.again) + times.sums(sums.head) +
                  times.gathers(streams.backward) + times.gathers(traffic.key_values.again) +
                  times.gathers(traffic.key_values.backward) + times.all_reduces(traffic.norms)};
  const auto pairs = static_cast<double>(sums.backward.operations) / 2;
  if (pairs == 0) return wait;
  const double sum = times.sums(sums.backward) / (2 * pairs);
  for (const double product : {pass.attention_in, pass.mlp_in})
    wait.backward += pairs * std::max(0.0, sum - (work.splits_backward ? 0 : product / 2));
  return wait;
}

}  // namespace

StepTime predict_step(const DecoderConfig& config, const MemoryChoice& choice, const StepWork& work,
                      const DeviceProfile& profile) {
  const auto width = static_cast<double>(size_of(work.dtype));
  const auto embedding = static_cast<double>(config.n_embd);
  const auto rows = static_cast<double>(choice.micro_batch * work.seq_len);
  const double micro_batches =
      static_cast<double>(work.batch) / static_cast<double>(choice.micro_batch);
  const auto layers = static_cast<double>(config.n_layer);
  const double parameters = trained_parameters(config, work.shards.ranks);

  StepTime time;
  const PassTimes pass = pass_times(config, choice, work, profile);
  time.forward = micro_batches * (layers * pass.layer_forward + pass.head_forward);
  time.backward =
      micro_batches * (layers * pass.layer_backward + pass.head_backward + pass.embedding_backward);
  // Every micro-batch but the first reads and writes the accumulated gradients.
  time.backward +=
      (micro_batches - 1) * parameters * 2 * choice.gradient_bytes() / profile.memory_rate;
  time.backward += micro_batches * head_accumulation(config, choice, work, profile);

  for (const Placement& block : choice.placement.blocks)
    time.recompute += micro_batches * recompute_of(block.recompute, pass);

  const TensorWait wait = wait_of(config, {0, config.n_layer}, choice, work, pass);
  time.tensor = micro_batches * (wait.forward + wait.backward);

  // Gradients are read for their norm and for the update.
  const double gradient_and_weight = 2 * choice.gradient_bytes() + 2 * width;
  time.update = (2 * work.resident_state + parameters * gradient_and_weight) / profile.memory_rate;
  add_orthogonalization(time, config, layers, work, profile);
  const ShardSize size(config, work.shards.ranks);
  const CpuShare cpu(size, choice, work, profile);
  // Block inputs are copied to and from the host; the passes of one block hide each copy.
  const auto resting = static_cast<double>(choice.placement.count(Recompute::block_on_host));
  const double input = rows * embedding * width, block = pass.layer_forward;
  const double inputs = micro_batches * resting * input;
  const Speculation early(size, choice, work);
  time.bytes_each_way = static_cast<std::uint64_t>(work.streamed_state + inputs +
                                                   std::max(cpu.down + early.saved, cpu.up));
  if (resting > 0)
    time.stall = micro_batches * resting *
                 (std::max(0.0, input / profile.to_host_rate - block) +
                  std::max(0.0, input / profile.to_device_rate - 3 * block));
  double exposed = std::max(0.0, work.file_state / disk_rate - time.forward / micro_batches);
  if (work.streamed_state + work.cpu_state > 0) {
    const double rest = work.streamed_state - early.state;
    const double streaming = std::max((rest + cpu.up) / profile.to_device_rate,
                                      (rest + cpu.down) / profile.to_host_rate) +
                             resting * input / profile.to_host_rate;
    const double backward = (time.backward + time.recompute) / micro_batches + wait.backward;
    const double late = streaming - time.forward / micro_batches - wait.forward;
    // Waits for the copies of speculative updates at the end of the backward pass are exposed.
    time.stall +=
        early.exposed(backward, layers, resting * input / profile.to_device_rate, profile);
    exposed = std::max({exposed, late, cpu.exposed(layers, block)});
  }
  time.stall += exposed;
  return time;
}

PartTime predict_part(const DecoderConfig& config, const DecoderPart& part,
                      const MemoryChoice& choice, const StepWork& work,
                      const DeviceProfile& profile) {
  const PassTimes pass = pass_times(config, choice, work, profile);
  const bool predicts = part.last == config.n_layer;
  const auto layers = static_cast<double>(part.last - part.first);
  PartTime time;
  time.forward = layers * pass.layer_forward + (predicts ? pass.head_forward : 0);
  time.backward = layers * pass.layer_backward + (predicts ? pass.head_backward : 0) +
                  (part.first == 0 ? pass.embedding_backward : 0);
  for (auto layer = part.first; layer < part.last; ++layer)
    time.backward +=
        recompute_of(choice.placement.blocks[static_cast<std::size_t>(layer)].recompute, pass);
  // Accumulated gradients are read and written; those of a table that only embeds are a few rows.
  const ShardSize size(config, work.shards.ranks);
  std::int64_t parameters = (part.last - part.first) * size.block;
  time.weights = layers * pass.weights + static_cast<double>(parameters) * 2 *
                                             choice.gradient_bytes() / profile.memory_rate;
  if (predicts) parameters += size.head * size.embedding;
  if (predicts && part.first == 0) parameters += size.positions * size.embedding;
  if (config.lora.rank > 0) parameters = 0;  // adapters are small
  time.backward +=
      static_cast<double>(parameters) * 2 * choice.gradient_bytes() / profile.memory_rate;
  if (predicts) time.backward += head_accumulation(config, choice, work, profile);
  const TensorWait wait = wait_of(config, part, choice, work, pass);
  time.forward_tensor = wait.forward;
  time.backward_tensor = wait.backward;
  time.forward += wait.forward;
  time.backward += wait.backward;
  return time;
}

double trained_parameters(const DecoderConfig& config, std::int64_t ranks) {
  const auto all = static_cast<double>(parameters_of_shard(config, ranks));
  const auto adapters = static_cast<double>(adapter_parameters(config));
  return config.lora.rank > 0 ? adapters / static_cast<double>(ranks) : all;
}

std::int64_t parameters_of_shard(const DecoderConfig& config, std::int64_t ranks) {
  const ShardSize size(config, ranks);
  const std::int64_t second_table = config.tied ? 0 : size.vocabulary;
  return config.n_layer * size.block +
         (size.head + size.positions + second_table) * size.embedding +
         (config.head_bias ? size.vocabulary : 0);
}

}  // namespace sluice
