#include "models/text/bpe/pre_tokenizer.h"

#include <fmt/format.h>

#include <string>

#include "engine/io/json_document.h"
#include "engine/io/utf8.h"
#include "kernels/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

std::string pcre2_message(int error) {
  std::string text(256, '\0');
  const int length =
      pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return text;
}

std::size_t valid_size(std::string_view text) {
  std::size_t at = 0;
  while (const auto size = utf8_size(text.substr(at)))
    at += size;
  return at;
}

std::size_t invalid_size(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && utf8_size(text.substr(at)) == 0)
    ++at;
  return at;
}

}  // namespace

// OpenAI's pattern, where \s means Unicode's White_Space. PCRE2's own \s also counts U+180E, which
// has not been white space since Unicode 6.3.
const char* const gpt2_split = R"('s|'t|'re|'ve|'m|'ll|'d)"
                               R"(| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+)"
                               R"(|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

PreTokenizer::PreTokenizer(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    int error = 0;
    std::size_t offset = 0;
    patterns_.emplace_back(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                         pattern.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                         &error, &offset, nullptr));
    if (!patterns_.back())
      fail(fmt::format("the pattern {} by which a tokenizer splits text fails at offset {}: {}; "
                       "PCRE2 10.40 or newer is needed",
                       quote(pattern), offset, pcre2_message(error)),
           ErrorKind::usage);
    // If PCRE2 cannot make machine code, pcre2_match interprets the pattern: slower, same pieces.
    pcre2_jit_compile(patterns_.back().get(), PCRE2_JIT_COMPLETE);
  }
}

void PreTokenizer::Pieces::FreeMatch::operator()(pcre2_real_match_data_8* match) const {
  pcre2_match_data_free(match);
}

PreTokenizer::Pieces::Pieces(const PreTokenizer& splitter, std::string_view text)
    : splitter_(splitter),
      match_(pcre2_match_data_create(1, nullptr)),
      rest_(text),
      cuts_(splitter.patterns_.size()) {
  check(match_ != nullptr, "out of memory for splitting a text");
}

std::optional<std::string_view> PreTokenizer::Pieces::next() {
  // The deepest text that is not used up gives the next piece.
  std::size_t level = cuts_.size();
  while (level > 0 && cuts_[level - 1].at == cuts_[level - 1].text.size())
    --level;
  std::string_view piece;
  if (level == 0) {
    if (rest_.empty()) return std::nullopt;
    const auto invalid = invalid_size(rest_);
    piece = rest_.substr(0, invalid != 0 ? invalid : valid_size(rest_));
    rest_.remove_prefix(piece.size());
    if (invalid != 0) return piece;
  } else {
    piece = next_of(--level);
    ++level;
  }
  for (; level < cuts_.size(); ++level) {
    cuts_[level] = {.text = piece};
    piece = next_of(level);
  }
  return piece;
}

std::string_view PreTokenizer::Pieces::next_of(std::size_t level) {
  Cut& cut = cuts_[level];
  if (cut.match_end <= cut.at) {  // the last match is used up
    const int groups = pcre2_match(
        splitter_.patterns_[level].get(), reinterpret_cast<PCRE2_SPTR>(cut.text.data()),
        cut.text.size(), cut.at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match_.get(), nullptr);
    if (groups < 0 && groups != PCRE2_ERROR_NOMATCH)
      fail(fmt::format("splitting a text into words failed: {}", pcre2_message(groups)));
    const auto* const range = pcre2_get_ovector_pointer(match_.get());
    cut.match = groups < 0 ? cut.text.size() : range[0];
    cut.match_end = groups < 0 ? cut.text.size() : range[1];
  }
  const std::size_t begin = cut.at;
  cut.at = begin < cut.match ? cut.match : cut.match_end;
  return cut.text.substr(begin, cut.at - begin);
}

}  // namespace sluice
