#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace sluice {

/// Passes on text as it is generated, in whole UTF-8 characters, and stops before the stop text.
class TextPrinter {
 public:
  using Print = std::function<void(const std::string&)>;
  TextPrinter(std::string stop, Print print) : stop_(std::move(stop)), print_(std::move(print)) {}

  /// Returns false once the stop text has appeared.
  bool add(const std::string& text);
  void finish() { flush(text_.size()); }

 private:
  void flush(std::size_t end);

  std::string stop_, text_;
  Print print_;
  std::size_t printed_ = 0;
};

}  // namespace sluice
