#include "models/gpt2/parallelize.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/ops/add.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  fail(why, ErrorKind::usage);
}

std::vector<GPT2Part> parts_of(const std::vector<std::int64_t>& blocks) {
  std::vector<GPT2Part> parts;
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
          fmt::format("--pipeline-split is \"{}\"; it must be blocks, parameters, or the blocks "
                      "of each stage such as \"3,4,4,1\", each at least 1",
                      text));
    blocks.push_back(count);
    sum += count;
    if (stop == end) break;
    at = stop + 1;
  }
  if (static_cast<int>(blocks.size()) != stages || sum != layers)
    refuse(
        fmt::format("--pipeline-split \"{}\" has {} stages with {} blocks in all; there are {} "
                    "stages and {} blocks",
                    text, blocks.size(), sum, stages, layers));
  return blocks;
}

/// Blocks of each stage so that the most parameters of a stage are as few as can be: the smallest
/// bound that fits, with the stages filled from the first on.
std::vector<std::int64_t> balanced(const GPT2Config& config, int stages) {
  const std::int64_t width = config.n_embd;
  const std::int64_t block = 4 * width * width + 2 * width * config.inner();
  const std::int64_t first = (config.vocab_size + config.n_positions) * width;
  const std::int64_t last = config.vocab_size * width;
  const auto room = [&](std::int64_t bound, int stage) {
    const std::int64_t taken = (stage == 0 ? first : 0) + (stage + 1 == stages ? last : 0);
    return std::max<std::int64_t>(1, (bound - taken) / block);
  };
  const auto fits = [&](std::int64_t bound) {
    std::int64_t blocks = 0;
    for (int stage = 0; stage < stages; ++stage)
      blocks += room(bound, stage);
    return blocks >= config.n_layer;
  };
  std::int64_t low = 0, high = first + last + config.n_layer * block;
  while (low + 1 < high)
    (fits((low + high) / 2) ? high : low) = (low + high) / 2;
  std::vector<std::int64_t> blocks;
  std::int64_t left = config.n_layer;
  for (int stage = 0; stage < stages; ++stage) {
    blocks.push_back(std::min(room(high, stage), left - (stages - 1 - stage)));
    left -= blocks.back();
  }
  return blocks;
}

}  // namespace

std::vector<GPT2Part> split_blocks(const GPT2Config& config, int stages, const std::string& how) {
  if (stages > config.n_layer)
    refuse(
        fmt::format("a pipeline of {} stages needs {} blocks or more, and the model has {}; "
                    "use fewer ranks (--pp) or fewer --virtual-stages",
                    stages, stages, config.n_layer));
  if (how == "blocks") return parts_of(even(config.n_layer, stages));
  if (how == "parameters") return parts_of(balanced(config, stages));
  return parts_of(listed(how, config.n_layer, stages));
}

Stage::Boundary GPT2Stage::input(int) const {
  return {{data_.rows, data_.seq_len, model_.config().n_embd}, dtype_};
}

Tensor GPT2Stage::ids(std::span<const std::int32_t> all, int micro_batch) const {
  const auto count = static_cast<std::size_t>(data_.rows * data_.seq_len);
  return Tensor::from_tokens(device_, {data_.rows, data_.seq_len},
                             all.subspan(static_cast<std::size_t>(micro_batch) * count, count));
}

Tensor GPT2Stage::forward(int micro_batch, const Tensor& input) {
  DropoutSource dropout = data_.dropout;
  dropout.first_sample += micro_batch * data_.rows;
  ResidualPair pair{input, {}};
  if (part_.first == 0) pair = model_.embed(ids(data_.tokens, micro_batch), dropout);
  pair = model_.blocks(part_, std::move(pair), dropout, nullptr);
  // What the next LayerNorm would add up is added up here: half as much to send, the same bits.
  if (part_.last < model_.config().n_layer) return add(pair.stream, pair.branch);
  const Tensor hidden = model_.normalized(pair);
  pair = {};
  return model_.predict(hidden, ids(data_.targets, micro_batch), data_.loss).loss;
}

}  // namespace sluice
