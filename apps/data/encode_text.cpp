#include "apps/data/encode_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/data/special_names.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

/// Returns where a piece can end without changing the tokens: after a lone newline between two
/// letters. Tokenizers make such a newline a piece of its own; what they make of other newlines
/// depends on what is around them.
std::size_t piece_end(std::string_view text, std::size_t wanted) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (std::size_t at = std::max<std::size_t>(wanted, 2); at < text.size(); ++at)
    if (letter(text[at - 2]) && text[at - 1] == '\n' && letter(text[at])) return at;
  return text.size();
}

}  // namespace

void require_special(const Tokenizer& tokenizer, bool special) {
  if (special && !tokenizer.has_special())
    fail(fmt::format("--special: this {} tokenizer has no special token, such as <|endoftext|>",
                     tokenizer.kind()),
         ErrorKind::usage);
}

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text, bool special) {
  return special ? tokenizer.encode_with_special(text) : tokenizer.encode(text);
}

CharTokenizer characters_of(const TextSource& source) {
  CharTokenizer::Vocabulary vocabulary;
  std::int64_t documents = 0;
  source.read([&](const Document& document) {
    vocabulary.add(document.text);
    if (++documents == 2) vocabulary.add("\n");
  });
  return CharTokenizer(vocabulary);
}

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, bool special, Sink sink, Turns turns)
    : tokenizer_(tokenizer), special_(special), sink_(std::move(sink)), turns_(std::move(turns)) {}

void DocumentEncoder::add(const Document& document) {
  if (documents_++ > 0 && turns_.mine()) {
    if (const auto end = tokenizer_.end_of_text())
      give({*end});
    else if (line_open_)
      give(tokenizer_.encode("\n"));
  }
  constexpr std::size_t piece = 1 << 20;
  std::string_view rest = document.text;
  line_open_ = !rest.ends_with('\n');
  while (!rest.empty()) {
    const std::size_t end = rest.size() <= piece ? rest.size() : piece_end(rest, piece);
    try {
      if (turns_.mine()) give(encode(tokenizer_, rest.substr(0, end), special_));
    } catch (const Error& error) {
      const std::size_t done = document.text.size() - rest.size();
      const std::string from = done > 0 ? fmt::format(" from byte {} on", done) : std::string();
      fail(fmt::format("{}{}: {}", document.name, from, error.what()), error.kind());
    }
    rest.remove_prefix(end);
    turns_.advance(end);
  }
}

void DocumentEncoder::give(const std::vector<std::int32_t>& ids) {
  tokens_ += static_cast<std::int64_t>(ids.size());
  sink_(ids);
}

TextScan scan(const TextSource& source, const Tokenizer& tokenizer, bool special,
              const std::string& where) {
  TextScan result;
  SpecialNames names(tokenizer, special);
  result.report = source.read([&](const Document& document) {
    result.documents.push_back(facts_of(document.text));
    names.look_at(document.text);
  });
  names.warn(where);
  return result;
}

void encode_text(const TextSource& source, const TextScan& scan,
                 std::span<const std::uint64_t> training, DocumentEncoder& train,
                 DocumentEncoder& val, const std::function<void(std::uint64_t)>& advance) {
  divide_text(
      source, scan, training, [&](const Document& document) { train.add(document); },
      [&](const Document& document) { val.add(document); }, advance);
}

void divide_text(const TextSource& source, const TextScan& scan,
                 std::span<const std::uint64_t> training, const TextSource::Take& train,
                 const TextSource::Take& val, const std::function<void(std::uint64_t)>& advance) {
  const auto changed = [](const std::string& name) {
    fail(fmt::format("{} changed while it was being read", name));
  };
  std::size_t next = 0;
  source.read([&](const Document& document) {
    const auto& [name, text, prompt] = document;
    if (next == scan.documents.size() || scan.documents[next].bytes != text.size() ||
        scan.documents[next].sum != facts_of(text).sum)
      changed(name);
    std::size_t border = training[next];
    if (border > 0 && border < text.size()) border = character_border(text, border);
    if (next == 0 && border == 0 && training[next] > 0) border = text.size();
    ++next;
    if (border > 0) train({name, text.substr(0, border), prompt});
    if (border < text.size()) val({name, text.substr(border), prompt});
    if (advance) advance(text.size());
  });
  if (next < scan.documents.size()) changed("the text");
}

}  // namespace sluice
