#include "models/text/bpe/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "engine/io/utf8.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

void append_nfc(std::string& to, std::string_view valid) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, &std::free);
  if (size < 0)
    fail(fmt::format("a text cannot be brought into normalization form C: {}",
                     utf8proc_errmsg(size)));
  to.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size));
}

}  // namespace

bool is_plainly_nfc(std::string_view text) {
  constexpr unsigned char first_of_0300 = 0xCC;
  return std::ranges::all_of(
      text, [](char byte) { return static_cast<unsigned char>(byte) < first_of_0300; });
}

std::string to_nfc(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    std::size_t valid = 0;
    while (const std::size_t size = utf8_size(text.substr(valid)))
      valid += size;
    if (valid > 0) append_nfc(result, text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    result += text.front();
    text.remove_prefix(1);
  }
  return result;
}

}  // namespace sluice
