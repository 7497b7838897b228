#include "apps/data/pair_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "apps/data/encode_text.h"
#include "apps/data/tokens/pairs.h"
#include "kernels/base/error.h"

namespace sluice {

PairEncoder::PairEncoder(const Tokenizer& tokenizer, bool special, Sink sink, Turns turns)
    : tokenizer_(tokenizer), special_(special), sink_(std::move(sink)), turns_(std::move(turns)) {}

void PairEncoder::add(const Document& pair) {
  if (turns_.mine()) encode_pair(pair);
  turns_.advance(pair.text.size());
}

void PairEncoder::encode_pair(const Document& pair) {
  std::vector<std::int32_t> ids = tokenizer_.begin_of_text();
  const auto append = [&](std::string_view text) {
    try {
      std::ranges::copy(encode(tokenizer_, text, special_), std::back_inserter(ids));
    } catch (const Error& error) {
      fail(fmt::format("{}: {}", pair.name, error.what()), error.kind());
    }
  };
  append(pair.text.substr(0, pair.prompt));
  const std::size_t prompt = ids.size();
  append(pair.text.substr(pair.prompt));
  // A chat template may have written it already.
  const auto end = tokenizer_.end_of_text();
  if (end && (ids.empty() || ids.back() != *end)) ids.push_back(*end);
  // Nothing comes before the first token, from which it could be predicted.
  const std::size_t uncounted = std::max<std::size_t>(prompt, 1);
  if (ids.size() == uncounted) {
    ++counts_.left_out;
    return;
  }
  std::vector<std::int32_t> marks(ids.size(), PairMark::counts);
  std::fill_n(marks.begin(), uncounted, 0);
  marks.front() += PairMark::begins;
  ++counts_.pairs;
  counts_.tokens += static_cast<std::int64_t>(ids.size());
  counts_.counted += static_cast<std::int64_t>(ids.size() - uncounted);
  sink_(ids, marks);
}

}  // namespace sluice
