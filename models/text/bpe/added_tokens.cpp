#include "models/text/bpe/added_tokens.h"

#include <algorithm>
#include <utility>

namespace sluice {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::stable_sort(tokens_, std::ranges::greater(),
                           [](const AddedToken& token) { return token.text.size(); });
  for (const AddedToken& token : tokens_) {
    by_first_byte_[static_cast<unsigned char>(token.text.front())].push_back(&token);
    any_ = true;
    any_ordinary_ |= !token.special;
  }
}

std::optional<AddedTokens::Found> AddedTokens::find(std::string_view text, bool special) const {
  if (special ? !any_ : !any_ordinary_) return std::nullopt;
  for (std::size_t at = 0; at < text.size(); ++at)
    for (const AddedToken* const token : by_first_byte_[static_cast<unsigned char>(text[at])])
      if ((special || !token->special) && text.substr(at).starts_with(token->text))
        return Found{at, token};
  return std::nullopt;
}

}  // namespace sluice
