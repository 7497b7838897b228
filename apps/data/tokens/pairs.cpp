#include "apps/data/tokens/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/io/section_sums.h"
#include "kernels/base/error.h"

namespace sluice {

namespace fs = std::filesystem;

fs::path mask_of(const fs::path& tokens) {
  return fs::path(tokens).replace_extension(".mask");
}

bool has_mask(const fs::path& tokens) {
  return fs::symlink_status(mask_of(tokens)).type() != fs::file_type::not_found;
}

Pairs::Pairs(std::unique_ptr<TokenSource> tokens, std::unique_ptr<TokenSource> mask,
             const Length& length, const Names& names)
    : tokens_(std::move(tokens)), mask_(std::move(mask)), packs_(length.pack) {
  if (mask_->size() != tokens_->size())
    fail(fmt::format("{} has {} marks for the {} tokens of {}; make both anew with prepare_data "
                     "--pairs",
                     names.mask, mask_->size(), tokens_->size(), names.tokens),
         ErrorKind::usage);
  find_pairs(names.mask);
  const std::int64_t limit = 1 + length.given.value_or(length.most);
  left_out_ = static_cast<std::int64_t>(std::erase_if(
      pairs_, [&](const Pair& pair) { return pair.target == 0 || pair.target >= limit; }));
  for (const Pair& pair : pairs_)
    longest_ = std::max(longest_, pair.count);
  const auto row_for = [&](std::int64_t count) {
    return std::min(limit, 1 + std::max<std::int64_t>(8, (count - 1 + 7) / 8 * 8));
  };
  // Sequences of 192 tokens were 97 % full (docs/reference/data.md), so longer ones gain little.
  constexpr std::int64_t usual = 1024;
  row_ = row_for(longest_);
  if (packs_) row_ = std::max(row_, std::min(limit, 1 + usual));
  if (length.given) row_ = limit;
  cut_ = std::ranges::count_if(pairs_, [&](const Pair& pair) { return pair.count > row_; });
  if (packs_) {
    pack();
    std::int64_t filled = 0;
    for (const Row& row : rows_)
      filled = std::max(filled, row.filled);
    if (!length.given) row_ = row_for(filled);
    return;
  }
  for (std::size_t pair = 0; pair < pairs_.size(); ++pair)
    rows_.push_back({{pair}, tokens_in_row(pair)});
}

/// Puts each pair into the row that it leaves the least room in, or else begins a new one.
void Pairs::pack() {
  std::multimap<std::int64_t, std::size_t> by_room;
  for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
    const std::int64_t count = tokens_in_row(pair);
    const auto found = by_room.lower_bound(count);
    const std::size_t row = found != by_room.end() ? found->second : rows_.size();
    if (found != by_room.end())
      by_room.erase(found);
    else
      rows_.emplace_back();
    rows_[row].pairs.push_back(pair);
    rows_[row].filled += count;
    if (rows_[row].filled < row_) by_room.emplace(row_ - rows_[row].filled, row);
  }
}

void Pairs::require_some(const std::string& name) const {
  if (pairs_.empty())
    fail(fmt::format("{}: no pair has a token of its completion among the first {}; give shorter "
                     "prompts, or a longer --seq-len or --context",
                     name, row_),
         ErrorKind::usage);
}

void Pairs::find_pairs(const std::string& mask_name) {
  constexpr std::int64_t stretch = 1 << 16;
  std::vector<std::int32_t> marks;
  for (std::int64_t first = 0; first < mask_->size(); first += stretch) {
    marks.resize(static_cast<std::size_t>(std::min(stretch, mask_->size() - first)));
    mask_->read(first, marks);
    for (std::int64_t at = first; const std::int32_t mark : marks) {
      if (mark > PairMark::counts + PairMark::begins)
        fail(
            fmt::format("{} has the mark {} at position {}; marks are 0 to 3", mask_name, mark, at),
            ErrorKind::usage);
      if ((mark & PairMark::begins) != 0) pairs_.push_back({at, 0});
      if (pairs_.empty())
        fail(fmt::format("{} does not begin with the first token of a pair", mask_name),
             ErrorKind::usage);
      Pair& pair = pairs_.back();
      if ((mark & PairMark::counts) != 0 && pair.target == 0) pair.target = pair.count;
      ++pair.count;
      ++at;
    }
  }
}

/// Calls body(position in the files, place in the output, tokens) for everything but padding.
template <class Body>
void Pairs::for_each_part(std::int64_t start, std::size_t count, Body&& body) const {
  const std::int64_t end = start + static_cast<std::int64_t>(count);
  for (std::int64_t row = start / row_; row * row_ < end; ++row) {
    std::int64_t place = row * row_;
    for (const std::size_t pair : rows_[static_cast<std::size_t>(row)].pairs) {
      const std::int64_t first = std::max(start, place);
      const std::int64_t last = std::min(end, place + tokens_in_row(pair));
      if (first < last)
        body(pairs_[pair].first + first - place, static_cast<std::size_t>(first - start),
             static_cast<std::size_t>(last - first));
      place += tokens_in_row(pair);
    }
  }
}

void Pairs::read(std::int64_t start, std::span<std::int32_t> out) const {
  std::ranges::fill(out, 0);
  for_each_part(start, out.size(), [&](std::int64_t at, std::size_t place, std::size_t count) {
    tokens_->read(at, out.subspan(place, count));
  });
}

void Pairs::read_counted(std::int64_t start, std::span<std::uint8_t> out) const {
  std::ranges::fill(out, std::uint8_t{0});
  std::vector<std::int32_t> marks;
  for_each_part(start, out.size(), [&](std::int64_t at, std::size_t place, std::size_t count) {
    marks.resize(count);
    mask_->read(at, marks);
    // The first token of a pair is not predicted from the pair before it.
    for (std::size_t i = 0; i < count; ++i)
      out[place + i] = static_cast<std::uint8_t>(
          packs_ && (marks[i] & PairMark::begins) != 0 ? 0 : marks[i] & PairMark::counts);
  });
}

void Pairs::append_documents(std::int64_t start, std::int64_t first, std::int64_t length,
                             Documents& documents) const {
  if (!packs_) return;
  std::int64_t place = 0;
  for (const std::size_t pair : rows_[static_cast<std::size_t>(start / row_)].pairs) {
    if (place < length) documents.starts.push_back(first + place);
    place += tokens_in_row(pair);
  }
}

std::int64_t Pairs::attended(std::int64_t length) const {
  if (!packs_ || rows_.empty()) return length;
  double squares = 0;
  for (const Row& row : rows_) {
    Documents documents;
    append_documents((&row - rows_.data()) * row_, 0, length, documents);
    for (const Documents::Piece& piece : documents.pieces(1, length))
      squares += static_cast<double>(piece.length) * static_cast<double>(piece.length);
  }
  return std::llround(squares / static_cast<double>(rows() * length));
}

std::uint32_t Pairs::checksum() const {
  const std::uint32_t mask = mask_->checksum();
  const std::uint32_t both = crc32_of(std::as_bytes(std::span(&mask, 1)), tokens_->checksum());
  // Packed, other lengths make other rows.
  return packs_ ? crc32_of(std::as_bytes(std::span(&row_, 1)), both) : both;
}

std::string Pairs::text() const {
  std::string text =
      fmt::format("{} pair{} of {} tokens at most", pairs(), pairs() == 1 ? "" : "s", longest_);
  if (packs_) {
    std::int64_t filled = 0;
    for (const Row& row : rows_)
      filled += row.filled;
    text += fmt::format(
        ", packed into {} sequence{} of {}, {:.0f} % full", rows(), rows() == 1 ? "" : "s",
        row_ - 1,
        100 * static_cast<double>(filled) / static_cast<double>(std::max<std::int64_t>(1, size())));
  }
  if (cut_ > 0) text += fmt::format("; {} longer than {} cut", cut_, row_);
  if (left_out_ > 0)
    text += fmt::format("; {} left out, without a completion in {}", left_out_, row_);
  return text;
}

std::unique_ptr<Pairs> open_pairs(const fs::path& tokens, std::int64_t vocab_size,
                                  const Pairs::Length& length) {
  if (!has_mask(tokens)) return nullptr;
  const fs::path mask = mask_of(tokens);
  constexpr std::int64_t any = 65536;  // the constructor names a mark that is none
  return std::make_unique<Pairs>(open_token_file(tokens, vocab_size), open_token_file(mask, any),
                                 length, Pairs::Names{tokens.string(), mask.string()});
}

}  // namespace sluice
