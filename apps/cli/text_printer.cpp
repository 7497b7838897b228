#include "apps/cli/text_printer.h"

#include <algorithm>

namespace sluice {

bool TextPrinter::add(const std::string& text) {
  text_ += text;
  if (!stop_.empty()) {
    const auto at = text_.find(stop_, printed_ > stop_.size() ? printed_ - stop_.size() : 0);
    if (at != std::string::npos) {
      text_.resize(at);
      return false;
    }
  }
  // Holds back the bytes at the end that may begin a stop text or are an unfinished character.
  std::size_t end = text_.size() - std::min(text_.size(), stop_.empty() ? 0 : stop_.size() - 1);
  std::size_t start = end;
  while (start > 0 && end - start < 3 && (text_[start - 1] & 0xC0) == 0x80)
    --start;
  if (start > 0 && (text_[start - 1] & 0xC0) == 0xC0) end = start - 1;
  flush(end);
  return true;
}

void TextPrinter::flush(std::size_t end) {
  if (end <= printed_) return;
  print_(text_.substr(printed_, end - printed_));
  printed_ = end;
}

}  // namespace sluice
