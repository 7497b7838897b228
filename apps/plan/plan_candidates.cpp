#include "apps/plan/plan_candidates.h"

#include <algorithm>

namespace sluice {

std::vector<std::int64_t> micro_batches(const TrainOptions& o, const RunSetup& setup, bool gpu) {
  if (o.micro_batch || setup.pipeline) return {setup.trainer.micro_batch};
  const std::int64_t share = share_of(o);
  // On the CPU larger micro-batches than this are not tried: a CPU is busy with few sequences.
  const std::int64_t most = gpu ? share : setup.trainer.micro_batch;
  constexpr std::int64_t most_tokens = 1 << 16;
  std::vector<std::int64_t> sizes;
  for (std::int64_t rows = most; rows >= 1; --rows)
    if (share % rows == 0 && (rows == 1 || rows * setup.trainer.seq_len <= most_tokens) &&
        divides_tokens(o, rows, setup.trainer.seq_len))
      sizes.push_back(rows);
  if (sizes.empty()) sizes = {setup.trainer.micro_batch};
  return sizes;
}

std::vector<std::vector<Recompute>> recompute_lists(const TrainOptions& o, std::int64_t layers,
                                                    bool inputs_on_host) {
  if (o.recompute) return {parse_recompute(*o.recompute, layers)};
  constexpr auto& modes = recompute_modes;
  static_assert(modes.back() == Recompute::block_on_host);
  std::vector<std::vector<Recompute>> lists{
      std::vector(static_cast<std::size_t>(layers), Recompute::none)};
  for (std::size_t mode = 1; mode < modes.size() - (inputs_on_host ? 0 : 1); ++mode)
    for (std::int64_t more = 1; more <= layers; ++more) {
      auto list = std::vector(static_cast<std::size_t>(layers), modes[mode - 1]);
      std::fill_n(list.begin(), more, modes[mode]);
      lists.push_back(std::move(list));
    }
  return lists;
}

std::vector<Staging> stagings(const TrainOptions& o, bool streams) {
  constexpr Staging smaller[] = {{}, {.places = 2}, {.chunk = std::int64_t{1} << 20, .places = 2}};
  std::vector<Staging> all;
  for (Staging staging : smaller) {
    staging.chunk = o.stream_chunk.value_or(staging.chunk);
    staging.places = static_cast<int>(o.staging_chunks.value_or(staging.places));
    if (std::ranges::find(all, staging) == all.end()) all.push_back(staging);
    if (!streams) break;
  }
  return all;
}

}  // namespace sluice
