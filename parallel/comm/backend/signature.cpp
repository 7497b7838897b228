#include "parallel/comm/backend/signature.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

void Signature::set_label(std::string_view text) {
  label.fill('\0');
  std::ranges::copy(text.substr(0, label_bytes), label.begin());
}

std::string_view Signature::label_text() const {
  return {label.data(), static_cast<std::size_t>(std::ranges::find(label, '\0') - label.begin())};
}

std::string to_string(const Signature& s) {
  std::string text(name_of(s.kind));
  if (s.kind != Collective::barrier && s.kind != Collective::split)
    text += fmt::format(" of {} {}", s.count, name_of(s.dtype));
  if (s.root >= 0) text += fmt::format(", root {},", s.root);
  return fmt::format("{} '{}' (operation {})", text, s.label_text(), s.sequence);
}

}  // namespace sluice
