#include "apps/data/special_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/progress.h"
#include "engine/io/json_document.h"

namespace sluice {

void SpecialNames::look_at(std::string_view text) {
  if (tokenizer_ == nullptr) return;
  bytes_ += text.size();
  tokenizer_->find_special(text, [this](std::string_view name) {
    const auto known = counts_.find(name);
    ++(known != counts_.end() ? known->second : counts_[std::string(name)]);
  });
}

std::string SpecialNames::sentence(const std::string& where) const {
  std::uint64_t all = 0;
  const std::pair<const std::string, std::uint64_t>* most = nullptr;
  for (const auto& one : counts_) {
    all += one.second;
    if (most == nullptr || one.second > most->second) most = &one;
  }
  if (most == nullptr || (all < 10 && all * 1000 < bytes_)) return {};
  const std::string others =
      all > most->second ? fmt::format(", and other such names {}", all - most->second) : "";
  return fmt::format(
      "{}: the text has the name of the special token {} {} time{}{}, and it is encoded as plain "
      "text; with --special, for a training of prepare_data, it becomes that token",
      where, quote(most->first), most->second, most->second == 1 ? "" : "s", others);
}

void SpecialNames::warn(const std::string& where) const {
  if (const std::string text = sentence(where); !text.empty()) say_warning(text);
}

}  // namespace sluice
