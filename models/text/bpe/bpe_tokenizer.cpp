#include "models/text/bpe/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <functional>

#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/bpe_files.h"
#include "models/text/bpe/normalizer.h"
#include "models/text/content_hash.h"

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
    if (const auto whole = tokenizer_.id_of_piece_.find(piece);
        whole != tokenizer_.id_of_piece_.end()) {
      ids_.push_back(whole->second);
      return {piece, first, 1};
    }
    for (const char byte : piece)
      ids_.push_back(symbol_of(static_cast<unsigned char>(byte), piece));
    merger_.merge_tail(ids_, first);
    return {piece, first, ids_.size() - first};
  }

  std::int32_t symbol_of(unsigned char byte, std::string_view piece) const {
    const std::int32_t id = tokenizer_.tables_.byte_symbol[byte];
    if (id >= 0) return id;
    if (!tokenizer_.tables_.unknown)
      fail(fmt::format("the text has {} with the byte {}, for which this tokenizer has no token",
                       quote(piece), byte),
           ErrorKind::usage);
    return *tokenizer_.tables_.unknown;
  }

  const BpeTokenizer& tokenizer_;
  BpeMerger merger_;
  std::vector<std::int32_t> ids_;
  std::vector<Seen> cache_;  // one entry per hash value; a new piece replaces the old one
};

namespace {

/// Returns the added tokens that are found before text is normalized, or after.
std::vector<AddedToken> added_of(const BpeTables& tables, bool normalized) {
  std::vector<AddedToken> list;
  for (const AddedToken& token : tables.added)
    if (token.normalized == normalized) list.push_back(token);
  if (tables.nfc && normalized)
    for (AddedToken& token : list)
      token.text = to_nfc(token.text);
  return list;
}

/// Calls on_text(piece) and on_token(id) for what lies between added tokens, and for these.
template <class OnText, class OnToken>
void divide(const AddedTokens& added, std::string_view text, bool special, const OnText& on_text,
            const OnToken& on_token) {
  while (const auto found = added.find(text, special)) {
    on_text(text.substr(0, found->at));
    on_token(found->token->id);
    text.remove_prefix(found->at + found->token->text.size());
  }
  on_text(text);
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeTables tables)
    : tables_(std::move(tables)),
      splitter_(tables_.split),
      added_(added_of(tables_, false)),
      added_normalized_(added_of(tables_, true)) {
  if (!tables_.whole_pieces) return;
  for (std::size_t id = 0; id < tables_.symbols.size(); ++id)
    id_of_piece_.emplace(tables_.symbols[id], static_cast<std::int32_t>(id));
}

bool BpeTokenizer::has_special() const {
  return std::ranges::any_of(tables_.added, &AddedToken::special);
}

void BpeTokenizer::find_special(std::string_view text,
                                const std::function<void(std::string_view)>& found) const {
  const auto look_in = [&](const AddedTokens& added, std::string_view rest) {
    while (const auto next = added.find(rest, true)) {
      if (next->token->special) found(next->token->text);
      rest.remove_prefix(next->at + next->token->text.size());
    }
  };
  look_in(added_, text);
  look_in(added_normalized_, text);
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text, bool special) const {
  Encoding encoding(*this, text.size());
  std::deque<std::string> normalized;  // what the encoding refers to
  const auto on_token = [&](std::int32_t id) { encoding.append(id); };
  divide(
      added_, text, special,
      [&](std::string_view part) {
        if (tables_.nfc && !is_plainly_nfc(part)) part = normalized.emplace_back(to_nfc(part));
        divide(
            added_normalized_, part, special,
            [&](std::string_view piece) { encoding.append(piece); }, on_token);
      },
      on_token);
  return encoding.take_ids();
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) const {
  return encode(text, false);
}

std::vector<std::int32_t> BpeTokenizer::encode_with_special(std::string_view text) const {
  return encode(text, true);
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const auto id : ids)
    text += tables_.symbols[index(id)];
  return text;
}

std::string BpeTokenizer::content_hash() const {
  ContentHash hash;
  hash.add("bpe");
  hash.add(vocab_size());
  for (const std::string& symbol : tables_.symbols)
    hash.add(symbol);
  hash.add(static_cast<std::int64_t>(tables_.merges.size()));
  for (const BpeMerge& merge : tables_.merges)
    for (const std::int32_t id : {merge.left, merge.right, merge.result})
      hash.add(id);
  hash.add(static_cast<std::int64_t>(tables_.split.size()));
  for (const std::string& expression : tables_.split)
    hash.add(expression);
  hash.add(tables_.nfc);
  hash.add(tables_.whole_pieces);
  // Where every byte has a symbol, nothing is unknown.
  const bool all_bytes = std::ranges::find(tables_.byte_symbol, -1) == tables_.byte_symbol.end();
  hash.add(all_bytes ? -1 : tables_.unknown.value_or(-1));
  std::vector<const AddedToken*> added;  // files list them in any order
  for (const AddedToken& token : tables_.added)
    added.push_back(&token);
  std::ranges::sort(added, {}, [](const AddedToken* token) { return token->id; });
  for (const AddedToken* const token : added) {
    hash.add(token->text);
    hash.add(token->id);
    hash.add(token->special);
    hash.add(token->normalized && tables_.nfc);
  }
  return hash.text();
}

void BpeTokenizer::save(const std::filesystem::path& directory) const {
  if (tables_.is_gpt2()) return write_bpe_files(directory, tables_);
  for (const auto& [name, text] : tables_.files)
    write_text_file(directory / name, text);
}

}  // namespace sluice
