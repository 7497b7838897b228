#include "models/decoder/parallelize.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/io/json_document.h"
#include "engine/ops/elementwise.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  fail(why, ErrorKind::usage);
}

std::vector<DecoderPart> parts_of(const std::vector<std::int64_t>& blocks) {
  std::vector<DecoderPart> parts;
  std::int64_t first = 0;
  for (const std::int64_t count : blocks) {
    parts.push_back({first, first + count});
    first += count;
  }
  return parts;
}

std::vector<std::int64_t> even(std::int64_t layers, int stages) {
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(stages), layers / stages);
  for (std::int64_t i = 0; i < layers % stages; ++i)
    ++blocks[static_cast<std::size_t>(i)];
  return blocks;
}

std::vector<std::int64_t> listed(const std::string& text, std::int64_t layers, int stages) {
  std::vector<std::int64_t> blocks;
  std::int64_t sum = 0;
  for (const char* at = text.data();;) {
    const char* const end = text.data() + text.size();
    std::int64_t count = 0;
    const auto [stop, status] = std::from_chars(at, end, count);
    if (status != std::errc{} || count < 1 || count > layers || (stop != end && *stop != ','))
      refuse(
          fmt::format("--pipeline-split is {}; it must be blocks, parameters, time, or the blocks "
                      "of each stage such as \"3,4,4,1\", each at least 1",
                      quote(text)));
    blocks.push_back(count);
    sum += count;
    if (stop == end) break;
    at = stop + 1;
  }
  if (static_cast<int>(blocks.size()) != stages || sum != layers)
    refuse(
        fmt::format("--pipeline-split {} has {} stages with {} blocks in all; there are {} "
                    "stages and {} blocks",
                    quote(text), blocks.size(), sum, stages, layers));
  return blocks;
}

std::vector<std::int64_t> by_parameters(const DecoderConfig& config, int stages) {
  const auto width = static_cast<double>(config.n_embd);
  const double table = static_cast<double>(config.vocab_size) * width;
  return balanced_blocks(
      config.n_layer, stages,
      {.block = static_cast<double>(config.block_matrices()),
       .first = table + (config.rotary ? 0 : static_cast<double>(config.n_positions)) * width,
       .last = table});
}

}  // namespace

std::vector<std::int64_t> balanced_blocks(std::int64_t blocks, int stages,
                                          const BlockCosts& costs) {
  const auto extra = [&](int stage) {
    return (stage == 0 ? costs.first : 0) + (stage + 1 == stages ? costs.last : 0);
  };
  // Returns how many blocks a stage takes under a bound; stages are filled from the first one on.
  const auto room = [&](double bound, int stage) {
    const double fit = (bound - extra(stage)) / costs.block * (1 + 1e-12);
    return static_cast<std::int64_t>(std::clamp(fit, 1.0, static_cast<double>(blocks)));
  };
  const auto holds = [&](double bound) {
    std::int64_t sum = 0;
    for (int stage = 0; stage < stages; ++stage)
      sum += room(bound, stage);
    return sum >= blocks;
  };
  // The best bound equals the cost of some stage.
  std::vector<double> bounds;
  for (const int stage : {0, stages / 2, stages - 1})
    for (std::int64_t count = 1; count <= blocks; ++count)
      bounds.push_back(static_cast<double>(count) * costs.block + extra(stage));
  std::ranges::sort(bounds);
  const double bound = *std::ranges::find_if(bounds, holds);
  std::vector<std::int64_t> counts;
  std::int64_t left = blocks;
  for (int stage = 0; stage < stages; ++stage) {
    counts.push_back(std::min(room(bound, stage), left - (stages - 1 - stage)));
    left -= counts.back();
  }
  return counts;
}

BlockSplit parse_block_split(const std::string& text) {
  using By = BlockSplit::By;
  for (const By by : {By::blocks, By::parameters, By::time})
    if (text == to_string({.by = by})) return {.by = by};
  return {.by = By::list, .list = text};
}

std::string to_string(const BlockSplit& split) {
  switch (split.by) {
    case BlockSplit::By::blocks:
      return "blocks";
    case BlockSplit::By::parameters:
      return "parameters";
    case BlockSplit::By::time:
      return "time";
    case BlockSplit::By::list:
      break;
  }
  return split.list;
}

std::vector<DecoderPart> split_blocks(const DecoderConfig& config, int stages,
                                      const BlockSplit& how) {
  if (stages > config.n_layer)
    refuse(
        fmt::format("a pipeline of {} stages needs {} blocks or more, and the model has {}; "
                    "use fewer stages (--pp, --pipeline interleaved*V, or those of its file)",
                    stages, stages, config.n_layer));
  if (how.by == BlockSplit::By::blocks) return parts_of(even(config.n_layer, stages));
  if (how.by == BlockSplit::By::time)
    refuse(
        "--pipeline-split time is measured when a run starts; a plan needs blocks, parameters or "
        "the blocks of each stage");
  if (how.by == BlockSplit::By::parameters) return parts_of(by_parameters(config, stages));
  return parts_of(listed(how.list, config.n_layer, stages));
}

Stage::Boundary DecoderStage::input(int) const {
  const std::int64_t width = model_.config().n_embd;
  if (divided().empty()) return {{data_.rows, data_.seq_len, width}, dtype_};
  return {{data_.rows * data_.seq_len / model_.share().size, width}, dtype_};
}

Tensor DecoderStage::ids(std::span<const std::int32_t> all, int micro_batch) const {
  const auto count = static_cast<std::size_t>(data_.rows * data_.seq_len);
  return Tensor::from_tokens(device_, {data_.rows, data_.seq_len},
                             all.subspan(static_cast<std::size_t>(micro_batch) * count, count));
}

Tensor DecoderStage::forward(int micro_batch, const Tensor& input) {
  DropoutSource dropout = data_.dropout;
  dropout.first_sample += micro_batch * data_.rows;
  ResidualPair pair{input, {}, divided(), data_.documents_of(micro_batch)};
  if (part_.first == 0)
    pair = model_.embed(ids(data_.tokens, micro_batch), dropout, pair.documents, divided());
  pair = model_.blocks(part_, std::move(pair), dropout);
  // Adds what the next norm would add: half as much is sent, with the same bits.
  if (part_.last < model_.config().n_layer) return add(pair.stream, pair.branch);
  const Tensor hidden = model_.normalized(pair);
  pair = {};
  return model_.predict(hidden, ids(data_.targets, micro_batch), data_.loss).loss;
}

}  // namespace sluice
