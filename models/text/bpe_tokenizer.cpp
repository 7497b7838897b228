#include "models/text/bpe_tokenizer.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "models/text/bpe_files.h"

namespace sluice {

/// The working memory of one call. Calls share none of it, so they can run in parallel.
class BpeTokenizer::Encoding {
 public:
  /// `text_size` is the approximate size of the text to encode.
  Encoding(const BpeTokenizer& tokenizer, std::size_t text_size)
      : tokenizer_(tokenizer),
        merger_(tokenizer.tables_.merges),
        cache_(std::bit_ceil(std::clamp<std::size_t>(text_size / 4, 1, largest_cache))) {}

  /// `text` must stay valid until the end of the call.
  void append(std::string_view text) {
    PreTokenizer::Pieces pieces(tokenizer_.splitter_, text);
    while (const auto piece = pieces.next()) {
      Seen& seen = cache_[std::hash<std::string_view>{}(*piece) & (cache_.size() - 1)];
      if (seen.piece == *piece)
        repeat(seen);
      else
        seen = encode_piece(*piece);
    }
  }
  void append(std::int32_t id) { ids_.push_back(id); }

  std::vector<std::int32_t> take_ids() { return std::move(ids_); }

 private:
  /// A piece of the text and the position of its encoding among the ids. Neither is copied.
  struct Seen {
    std::string_view piece;
    std::size_t first = 0;
    std::size_t count = 0;
  };
  static constexpr std::size_t largest_cache = 1 << 16;

  void repeat(const Seen& seen) {
    const auto end = ids_.size();
    ids_.resize(end + seen.count);
    std::copy_n(&ids_[seen.first], seen.count, &ids_[end]);
  }

  Seen encode_piece(std::string_view piece) {
    const auto first = ids_.size();
    for (const char byte : piece)
      ids_.push_back(tokenizer_.tables_.byte_symbol[static_cast<unsigned char>(byte)]);
    merger_.merge_tail(ids_, first);
    return {piece, first, ids_.size() - first};
  }

  const BpeTokenizer& tokenizer_;
  BpeMerger merger_;
  std::vector<std::int32_t> ids_;
  std::vector<Seen> cache_;  // one entry per hash value; a new piece replaces the old one
};

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) const {
  Encoding encoding(*this, text.size());
  encoding.append(text);
  return encoding.take_ids();
}

std::vector<std::int32_t> BpeTokenizer::encode_with_special(std::string_view text) const {
  if (!tables_.end_of_text) return encode(text);
  Encoding encoding(*this, text.size());
  for (auto found = text.find(end_of_text_name); found != text.npos;
       found = text.find(end_of_text_name)) {
    encoding.append(text.substr(0, found));
    encoding.append(*tables_.end_of_text);
    text.remove_prefix(found + end_of_text_name.size());
  }
  encoding.append(text);
  return encoding.take_ids();
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const auto id : ids)
    text += tables_.symbols[index(id)];
  return text;
}

void BpeTokenizer::save(const std::filesystem::path& directory) const {
  write_bpe_files(directory, tables_);
}

}  // namespace sluice
