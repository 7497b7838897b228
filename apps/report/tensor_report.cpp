#include "apps/report/tensor_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/cli/sizes.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::vector<TensorReport::Shard> distinct_shards(const TrainOptions& o, const RunSetup& setup,
                                                 const DeviceProfile& profile,
                                                 const MemoryChoice& choice) {
  const Budgets budgets = budgets_of(o, profile);
  std::vector<TensorReport::Shard> distinct;
  for (int rank = 0; rank < static_cast<int>(o.tp); ++rank) {
    GPT2 model(setup.config, {.rank = rank, .size = static_cast<int>(o.tp)});
    const auto& [heads, inner, vocabulary, width, qkv] = model.shard();
    TensorReport::Shard shard{.heads = heads.end - heads.begin,
                              .vocabulary = vocabulary.end - vocabulary.begin};
    // Evenly divided sizes are the same on all ranks; remainders go to the first ranks.
    if (!distinct.empty() && distinct.back().heads == shard.heads &&
        distinct.back().vocabulary == shard.vocabulary) {
      distinct.back().ranks.push_back(rank);
      continue;
    }
    shard.ranks = {rank};
    for (const Parameter& parameter : model.parameters())
      shard.parameters += element_count(parameter.shape);
    shard.memory = plan_memory(o, setup, choice, profile.workspace, {planned_mesh(o), rank});
    shard.excess = budgets.device_excess(shard.memory.high_water);
    distinct.push_back(std::move(shard));
  }
  return distinct;
}

}  // namespace

TensorReport report_tensor(const TrainOptions& o, const RunSetup& setup,
                           const DeviceProfile& profile, const MemoryChoice& choice) {
  const Mesh mesh = planned_mesh(o);
  TensorReport report{.shards = shards_of(o, profile),
                      .sum_bytes = message_bytes(setup, choice.micro_batch)};
  const StepWork work{.batch = choice.micro_batch,
                      .seq_len = setup.trainer.seq_len,
                      .dtype = setup.precision.dtype,
                      .shards = report.shards};
  const std::int64_t micro_batches = share_of(o) / choice.micro_batch;
  const Stash stash = setup.pipeline ? setup.pipeline->stash : Stash::graph;
  for (int stage = 0; stage < mesh.pp; ++stage) {
    TensorReport::Stage row{.ranks = mesh.shards(mesh.rank(0, stage, 0))};
    const auto parts = setup.pipeline ? setup.pipeline->parts_of(stage)
                                      : std::vector<GPT2Part>{{0, setup.config.n_layer}};
    for (const GPT2Part& part : parts) {
      row.traffic += tensor_traffic(setup.config, part, choice,
                                    {.shards = report.shards,
                                     .stash = stash,
                                     .rows = choice.micro_batch,
                                     .seq_len = setup.trainer.seq_len,
                                     .dtype = setup.precision.dtype,
                                     .micro_batches = micro_batches});
      const PartTime time = predict_part(setup.config, part, choice, work, profile);
      const bool twice = stash == Stash::input && part.last < setup.config.n_layer;
      row.exposed += static_cast<double>(micro_batches) *
                     (time.forward_tensor * (twice ? 2 : 1) + time.backward_tensor);
    }
    row.seconds = TensorTimes(report.shards).all(row.traffic);
    report.stages.push_back(std::move(row));
  }
  if (!setup.pipeline) report.distinct = distinct_shards(o, setup, profile, choice);
  return report;
}

std::string tensor_text(const TensorReport& report) {
  std::string text = fmt::format(
      "\ntensor       {} ranks divide the matrices; {:.4g} GB/s and {:.3g} us between them\n"
      "{:<12} a sum, forward, again and backward, is {} of {} bytes; exposed: forward all, "
      "backward what\n{:<12} half of a weight gradient's product does not hide (assumed)\n",
      report.shards.ranks, report.shards.link.bandwidth / 1e9, report.shards.link.latency * 1e6, "",
      report.shards.divide_tokens ? "a reduce-scatter" : "an all-reduce", report.sum_bytes, "");
  text += fmt::format("\n{:>10} {:>8} {:>8} {:>8} {:>12} {:>12} {:>12} {:>10} {:>11}\n", "ranks",
                      "forward", "again", "backward", "all-gathers", "payload MiB", "sent MiB",
                      "ms", "exposed ms");
  for (const auto& [ranks, traffic, seconds, exposed] : report.stages) {
    const TensorTraffic::Sums& sums = traffic.sums;
    text += fmt::format("{:>10} {:>8} {:>8} {:>8} {:>12} {:>12.1f} {:>12.1f} {:>10.2f} {:>11.2f}\n",
                        fmt::format("{}-{}", ranks.front(), ranks.back()), sums.forward.operations,
                        sums.again.operations, sums.backward.operations + sums.head.operations,
                        traffic.all_streams().operations + traffic.softmax.operations,
                        mib(static_cast<double>(traffic.all().bytes)),
                        mib(traffic.sent(report.shards.ranks)), seconds * 1e3, exposed * 1e3);
  }
  if (report.distinct.empty()) return text;
  text += fmt::format("\n{:>10} {:>8} {:>11} {:>13} {:>13} {:>10}\n", "ranks", "heads",
                      "vocabulary", "parameters", "memory bytes", "GiB");
  for (const auto& shard : report.distinct)
    text += fmt::format("{:>10} {:>8} {:>11} {:>13} {:>13} {:>10.3f}{}\n",
                        shard.ranks.size() == 1
                            ? fmt::format("{}", shard.ranks[0])
                            : fmt::format("{}-{}", shard.ranks.front(), shard.ranks.back()),
                        shard.heads, shard.vocabulary, shard.parameters, shard.memory.high_water,
                        gib(shard.memory.high_water),
                        shard.excess > 0 ? fmt::format("  {} bytes more than allowed", shard.excess)
                                         : std::string());
  return text;
}

Json tensor_json(const TensorReport& report) {
  const auto kind = [](const TensorTraffic::Kind& k) {
    return Json{{"operations", k.operations}, {"bytes", k.bytes}};
  };
  Json json{{"ranks", report.shards.ranks},
            {"link",
             {{"bytes_per_second", report.shards.link.bandwidth},
              {"latency_seconds", report.shards.link.latency}}},
            {"divides_tokens", report.shards.divide_tokens},
            {"sum_bytes", report.sum_bytes},
            {"traffic", Json::array()}};
  for (const auto& [ranks, traffic, seconds, exposed] : report.stages)
    json["traffic"].push_back({{"ranks", ranks},
                               {"sums_forward", kind(traffic.sums.forward)},
                               {"sums_again", kind(traffic.sums.again)},
                               {"sums_backward", kind(traffic.sums.backward)},
                               {"sums_head", kind(traffic.sums.head)},
                               {"stream_gathers", kind(traffic.all_streams())},
                               {"norm_gradients", kind(traffic.norms)},
                               {"softmax_gathers", kind(traffic.softmax)},
                               {"bytes_sent", std::llround(traffic.sent(report.shards.ranks))},
                               {"seconds", seconds},
                               {"exposed_seconds", exposed}});
  if (report.distinct.empty()) return json;
  for (const auto& shard : report.distinct) {
    Json uses;
    for (std::size_t use = 0; use < memory_uses; ++use)
      uses[std::string(name_of(static_cast<MemoryUse>(use)))] = shard.memory.by_use[use];
    json["shards"].push_back({{"ranks", shard.ranks},
                              {"heads", shard.heads},
                              {"vocabulary", shard.vocabulary},
                              {"parameters", shard.parameters},
                              {"device_bytes", shard.memory.high_water},
                              {"device_peak_bytes", shard.memory.peak},
                              {"device_peak_by_use", uses},
                              {"host_bytes", shard.memory.host},
                              {"bytes_above_budget", shard.excess}});
  }
  return json;
}

}  // namespace sluice
