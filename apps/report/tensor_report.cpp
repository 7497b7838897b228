#include "apps/report/tensor_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/plan/cost/tensor_traffic.h"
#include "apps/report/shared_parts.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string span_of(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? fmt::format("{}", ranks[0])
                           : fmt::format("{}-{}", ranks.front(), ranks.back());
}

/// The stages of the pipeline, or the model as one. The shards of a stage all exchange the same.
std::vector<Figures> traffic_rows(const TrainConfig& o, const RunSetup& setup,
                                  const DeviceProfile& profile, const MemoryChoice& choice) {
  const Mesh mesh = o.parallel.mesh();
  const Shards shards = shards_of(o.planning, o.parallel, profile);
  const StepWork work{
      .batch = choice.micro_batch,
      .seq_len = setup.trainer.seq_len,
      .dtype = setup.precision.dtype,
      .shards = shards,
      .dropout = setup.trainer.drops_attention(),
      .splits_backward = setup.pipeline && splits_backward(setup.pipeline->schedule)};
  const std::int64_t micro_batches = o.batch_share() / choice.micro_batch;
  const Stash stash = setup.pipeline ? setup.pipeline->stash : Stash::graph;
  const auto kind = [](const TensorTraffic::Kind& k) {
    return Json{{"operations", k.operations}, {"bytes", k.bytes}};
  };
  std::vector<Figures> rows;
  for (int stage = 0; stage < mesh.pp; ++stage) {
    const auto ranks = mesh.shards(mesh.rank(0, stage, 0));
    TensorTraffic traffic;
    double exposed = 0;
    const auto parts = setup.pipeline ? setup.pipeline->parts_of(stage)
                                      : std::vector<DecoderPart>{{0, setup.config.n_layer}};
    for (const DecoderPart& part : parts) {
      traffic += tensor_traffic(setup.config, part, choice,
                                {.shards = shards,
                                 .stash = stash,
                                 .rows = choice.micro_batch,
                                 .seq_len = setup.trainer.seq_len,
                                 .dtype = setup.precision.dtype,
                                 .micro_batches = micro_batches,
                                 .orthogonalizes = o.optimizer.kind == OptimizerKind::muon,
                                 .owners = o.parallel.zero > 0 ? mesh.dp : 1});
      const PartTime time = predict_part(setup.config, part, choice, work, profile);
      const bool twice = stash == Stash::input && part.last < setup.config.n_layer;
      exposed += static_cast<double>(micro_batches) *
                 (time.forward_tensor * (twice ? 2 : 1) + time.backward_tensor);
    }
    exposed += TensorTimes(shards).all_reduces(traffic.updates);
    const auto& [forward, again, backward, head] = traffic.sums;
    const TensorTraffic::Kind streams = traffic.all_streams();
    const TensorTraffic::Kind key_values = traffic.all_key_values();
    const double sent = traffic.sent(shards.ranks);
    rows.push_back({{"ranks", ranks, {"ranks", 10, span_of(ranks)}},
                    {"sums_forward", kind(forward)},
                    {"", forward.operations, {"forward", 8}},
                    {"sums_again", kind(again)},
                    {"", again.operations, {"again", 8}},
                    {"sums_backward", kind(backward)},
                    {"sums_head", kind(head)},
                    {"", backward.operations + head.operations, {"backward", 8}},
                    {"stream_gathers", kind(streams)},
                    {"key_values", kind(key_values)},
                    {"norm_gradients", kind(traffic.norms)},
                    {"softmax_gathers", kind(traffic.softmax)},
                    {"update_sums", kind(traffic.updates)},
                    {"",
                     streams.operations + key_values.operations + traffic.softmax.operations,
                     {"all-gathers", 12}},
                    {"", traffic.all().bytes, {"payload MiB", 12, "{:.1f}", in_mib}},
                    {"bytes_sent", std::llround(sent)},
                    {"", sent, {"sent MiB", 12, "{:.1f}", in_mib}},
                    {"seconds", TensorTimes(shards).all(traffic), {"ms", 10, "{:.2f}", in_ms}},
                    {"exposed_seconds", exposed, {"exposed ms", 11, "{:.2f}", in_ms}}});
  }
  return rows;
}

/// The ranks of the first replica. Those with equal shares of the model are one row.
std::vector<Figures> shard_rows(const TrainConfig& o, const RunSetup& setup,
                                const DeviceProfile& profile, const MemoryChoice& choice) {
  const Budgets budgets = budgets_of(o.memory, o.parallel, profile);
  const auto shares = [&](int rank) {
    const DecoderShard shard(setup.config, rank, static_cast<int>(o.parallel.tp));
    return std::pair(shard.heads.end - shard.heads.begin,
                     shard.vocabulary.end - shard.vocabulary.begin);
  };
  std::vector<Figures> rows;
  for (int rank = 0; rank < static_cast<int>(o.parallel.tp);) {
    const auto [heads, vocabulary] = shares(rank);
    std::int64_t parameters = 0;
    for (const Parameter& parameter :
         Decoder(setup.config, {.rank = rank, .size = static_cast<int>(o.parallel.tp)})
             .parameters())
      parameters += element_count(parameter.shape);
    const MemoryPlan memory =
        plan_memory(o, setup, choice, profile.workspace, {o.parallel.mesh(), rank});
    const std::size_t excess = budgets.device_excess(memory.high_water);
    // Evenly divided sizes are the same on all ranks; remainders go to the first ranks.
    std::vector<int> ranks;
    for (; rank < static_cast<int>(o.parallel.tp) && shares(rank) == std::pair(heads, vocabulary);
         ++rank)
      ranks.push_back(rank);
    rows.push_back(
        {{"ranks", ranks, {"ranks", 10, span_of(ranks)}},
         {"heads", heads, {"heads", 8}},
         {"vocabulary", vocabulary, {"vocabulary", 11}},
         {"parameters", parameters, {"parameters", 13}},
         {"device_bytes", memory.high_water, {"memory bytes", 13}},
         {"", memory.high_water, {"GiB", 10, "{:.3f}", in_gib}},
         {"device_peak_bytes", memory.peak},
         {"device_peak_by_use", use_json(memory.by_use)},
         {"host_bytes", memory.host},
         {"bytes_above_budget", excess, {" ", 0, excess > 0 ? "{} bytes more than allowed" : ""}}});
  }
  return rows;
}

}  // namespace

Report tensor_report(const TrainConfig& o, const RunSetup& setup, const DeviceProfile& profile,
                     const MemoryChoice& choice) {
  const auto& [ranks, link, divide_tokens] = shards_of(o.planning, o.parallel, profile);
  const std::size_t sum = message_bytes(setup, choice.micro_batch);
  Report report{.text = "\n"};
  report.row("tensor",
             fmt::format("{} ranks divide the matrices; {} between them", ranks, spell(link)),
             {{"ranks", ranks}, {"link", link_json(link)}});
  report.row("",
             fmt::format("a sum, forward, again and backward, is {} of {} bytes; exposed: forward "
                         "all, backward what",
                         divide_tokens ? "a reduce-scatter" : "an all-reduce", sum),
             {{"divides_tokens", divide_tokens}, {"sum_bytes", sum}});
  report.row("", "half of a weight gradient's product does not hide (assumed)");
  report.table("traffic", traffic_rows(o, setup, profile, choice));
  // The report of a pipeline has the memory of each rank.
  if (!setup.pipeline) report.table("shards", shard_rows(o, setup, profile, choice));
  return report;
}

}  // namespace sluice
