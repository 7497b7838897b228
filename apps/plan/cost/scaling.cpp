#include "apps/plan/cost/scaling.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "apps/plan/cost/muon_cost.h"
#include "models/decoder/decoder.h"
#include "optim/space/parameter_space.h"

namespace sluice {
namespace {

constexpr std::int64_t usual_most_ranks = 4096;

double buckets_of(double bytes, double bucket) {
  return std::ceil(bytes / bucket);
}

/// The bytes of gradients that a step reduces, and the operations that do it.
struct Reduced {
  double bytes = 0, buckets = 0;
};

/// A bucket holds gradients of one dtype.
Reduced reduced_once(double wide, double narrow, double bucket) {
  return {wide + narrow, buckets_of(wide, bucket) + buckets_of(narrow, bucket)};
}

/// `times`: how often a step reduces gradients in places.
Reduced reduced_by_section(const Traffic& traffic, double times) {
  const auto sections = static_cast<double>(traffic.sections);
  const Reduced section = reduced_once(traffic.wide_in_places / sections,
                                       traffic.narrow_in_places / sections, traffic.bucket);
  const Reduced rest =
      reduced_once(traffic.wide_gradients - traffic.wide_in_places,
                   traffic.narrow_gradients - traffic.narrow_in_places, traffic.bucket);
  return {times * sections * section.bytes + rest.bytes,
          times * sections * section.buckets + rest.buckets};
}

/// Returns the seconds of one reduce-scatter or all-gather of `bytes` in `buckets` pieces.
double half_seconds(double bytes, double buckets, std::int64_t ranks, const Link& link) {
  const auto n = static_cast<double>(ranks);
  return buckets * (n - 1) * link.latency + (n - 1) / n * bytes / link.bandwidth;
}

/// Returns the exposed part of `seconds`, spent in `buckets` equal pieces. `cover` seconds of
/// computation can hide all pieces but one.
double exposed(double seconds, double buckets, double cover) {
  if (buckets == 0) return 0;
  return std::max(seconds - cover, seconds / buckets);
}

/// Returns the micro-batch of the plan, or a smaller one that divides the rank's batch.
std::int64_t fitting_micro_batch(std::int64_t most, std::int64_t batch) {
  std::int64_t rows = std::min(most, batch);
  while (batch % rows != 0)
    --rows;
  return rows;
}

}  // namespace

Traffic traffic_of(const DecoderConfig& config, const MemoryChoice& choice, DType working) {
  return traffic_of(Decoder(config).parameters(), choice, working);
}

Traffic traffic_of(const std::vector<Parameter>& parameters, const MemoryChoice& choice,
                   DType working) {
  Traffic traffic;
  // A section's parameters follow each other.
  for (auto first = parameters.begin(); first != parameters.end();) {
    const auto last = std::find_if(first, parameters.end(), [&](const Parameter& parameter) {
      return parameter.section != first->section;
    });
    double wide = 0, narrow = 0;
    bool table = false, matrices = false;
    for (const Parameter& parameter : std::ranges::subrange(first, last)) {
      const auto count = static_cast<double>(element_count(parameter.shape));
      const bool large = is_large_matrix(parameter);
      if (large && !parameter.embedding && choice.narrow_gradients)
        narrow += 2 * count;
      else
        wide += 4 * count;
      traffic.weights += static_cast<double>(size_of(working)) * count;
      table = table || parameter.embedding;
      matrices = matrices || large;
    }
    traffic.wide_gradients += wide;
    traffic.narrow_gradients += narrow;
    if (matrices && !table) {
      traffic.wide_in_places += wide;
      traffic.narrow_in_places += narrow;
      ++traffic.sections;
    }
    first = last;
  }
  return traffic;
}

Traffic traffic_of(const std::vector<Parameter>& parameters, const MemoryChoice& choice,
                   DType working, const ParallelConfig& parallel, bool gpu) {
  Traffic traffic = traffic_of(parameters, choice, working);
  traffic.bucket = static_cast<double>(parallel.bucket_bytes(gpu));
  traffic.zero = parallel.zero;
  traffic.overlap = parallel.overlap;
  return traffic;
}

Communication predict_communication(const Traffic& traffic, std::int64_t ranks, const Link& link,
                                    const Cover& cover, std::int64_t reductions) {
  Communication result;
  if (ranks <= 1) return result;
  const auto n = static_cast<double>(ranks);
  const bool zero = traffic.zero > 0, by_section = traffic.zero > 1 && traffic.sections > 0;
  // A section that is alone gives its place to no other, so it is reduced once a step.
  const double times = by_section && traffic.sections > 1 ? static_cast<double>(reductions) : 1;
  const auto [gradients, buckets] =
      by_section ? reduced_by_section(traffic, times)
                 : reduced_once(traffic.wide_gradients, traffic.narrow_gradients, traffic.bucket);
  const double weight_buckets = zero ? buckets_of(traffic.weights, traffic.bucket) : 0;
  const double passes = zero ? 1 : 2;  // reduce-scatter; an all-reduce adds an all-gather
  const double share = (n - 1) / n;

  result.gradient_bytes = passes * share * gradients;
  result.weight_bytes = zero ? share * traffic.weights : 0;
  result.messages = static_cast<std::int64_t>(passes * buckets + weight_buckets) * (ranks - 1);
  result.gradient_seconds = passes * half_seconds(gradients, buckets, ranks, link);
  if (zero) result.weight_seconds = half_seconds(traffic.weights, weight_buckets, ranks, link);
  result.exposed = traffic.overlap
                       ? exposed(result.gradient_seconds, buckets, times * cover.backward) +
                             exposed(result.weight_seconds, weight_buckets, cover.forward)
                       : result.seconds();
  return result;
}

RanksTime predict_ranks(const ScalingTask& task, std::int64_t ranks, std::int64_t batch) {
  MemoryChoice choice = task.choice;
  choice.micro_batch = fitting_micro_batch(choice.micro_batch, batch);
  const double sharing = task.traffic.zero ? static_cast<double>(ranks) : 1;
  StepWork work = task.work;
  work.batch = batch;
  work.streamed_state /= sharing;
  work.cpu_state /= sharing;
  work.file_state /= sharing;
  work.share = 1 / sharing;

  RanksTime time;
  StepWork element_by_element = work;
  element_by_element.orthogonalizes = false;
  time.compute = predict_step(task.config, choice, element_by_element, task.profile);
  // A rank with ZeRO updates only its share, including the weights and gradients of that share.
  time.compute.update /= sharing;
  add_orthogonalization(time.compute, task.config, static_cast<double>(task.config.n_layer), work,
                        task.profile);
  const std::int64_t micro_batches = batch / choice.micro_batch;
  const auto count = static_cast<double>(micro_batches);
  const Cover cover{.backward = (time.compute.backward + time.compute.recompute) / count,
                    .forward = time.compute.forward / count};
  time.communication = predict_communication(
      task.traffic, ranks,
      task.interconnect.among(ranks * task.work.shards.ranks, task.work.shards.ranks), cover,
      micro_batches);
  time.seconds = time.compute.total() + time.communication.exposed;
  time.tokens_per_second = static_cast<double>(ranks) * static_cast<double>(batch) *
                           static_cast<double>(work.seq_len) / time.seconds;
  return time;
}

ScalingRow predict_row(const ScalingTask& task, std::int64_t ranks, std::int64_t rank_batch,
                       std::int64_t global_batch) {
  const auto n = static_cast<double>(ranks);
  ScalingRow row{.ranks = ranks, .weak = predict_ranks(task, ranks, rank_batch)};
  row.efficiency =
      row.weak.tokens_per_second / (n * predict_ranks(task, 1, rank_batch).tokens_per_second);
  row.state = task.traffic.zero ? task.state / n : task.state;
  if (global_batch % ranks == 0) {
    const std::int64_t batch = global_batch / ranks;
    const RanksTime time = predict_ranks(task, ranks, batch);
    row.strong = {batch, time, predict_ranks(task, 1, global_batch).seconds / time.seconds};
  }
  return row;
}

std::vector<std::int64_t> rank_counts(std::int64_t given) {
  std::vector<std::int64_t> counts;
  for (std::int64_t ranks = 1; ranks <= usual_most_ranks || ranks / 2 < given; ranks *= 2) {
    if (ranks / 2 < given && given < ranks) counts.push_back(given);
    counts.push_back(ranks);
  }
  return counts;
}

}  // namespace sluice
