#include "models/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <string>

#include "engine/io/utf8.h"
#include "kernels/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

// OpenAI's pattern, where \s means Unicode's White_Space. PCRE2's own \s also counts U+180E, which
// has not been white space since Unicode 6.3.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d)"
    R"(| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+)"
    R"(|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";

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

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

PreTokenizer::PreTokenizer() {
  int error = 0;
  std::size_t offset = 0;
  pattern_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(gpt2_pattern.data()),
                               gpt2_pattern.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error,
                               &offset, nullptr));
  if (!pattern_)
    fail(fmt::format("PCRE2 10.40 or newer is needed: GPT-2's split pattern fails at offset {}: {}",
                     offset, pcre2_message(error)));
  // If PCRE2 cannot make machine code, pcre2_match interprets the pattern: slower, same pieces.
  pcre2_jit_compile(pattern_.get(), PCRE2_JIT_COMPLETE);
}

void PreTokenizer::Pieces::FreeMatch::operator()(pcre2_real_match_data_8* match) const {
  pcre2_match_data_free(match);
}

PreTokenizer::Pieces::Pieces(const PreTokenizer& splitter, std::string_view text)
    : pattern_(splitter.pattern_.get()), match_(pcre2_match_data_create(1, nullptr)), rest_(text) {
  check(match_ != nullptr, "out of memory for splitting a text");
}

std::optional<std::string_view> PreTokenizer::Pieces::next() {
  if (at_ == run_.size()) {
    if (rest_.empty()) return std::nullopt;
    const auto invalid = invalid_size(rest_);
    run_ = rest_.substr(0, invalid != 0 ? invalid : valid_size(rest_));
    rest_.remove_prefix(run_.size());
    at_ = invalid;
    if (invalid != 0) return run_;
  }
  const int groups = pcre2_match(pattern_, reinterpret_cast<PCRE2_SPTR>(run_.data()), run_.size(),
                                 at_, PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
  if (groups < 0)
    fail(fmt::format("splitting a text into words failed: {}", pcre2_message(groups)));
  const auto begin = at_;
  at_ = pcre2_get_ovector_pointer(match_.get())[1];
  return run_.substr(begin, at_ - begin);
}

}  // namespace sluice
