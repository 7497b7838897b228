#include "models/text/content_hash.h"

#include <fmt/format.h>

namespace sluice {

void ContentHash::add(std::string_view field) {
  add(static_cast<std::int64_t>(field.size()));
  for (const char byte : field)
    add_byte(static_cast<unsigned char>(byte));
}

void ContentHash::add(std::int64_t number) {
  const auto bits = static_cast<std::uint64_t>(number);
  for (int shift = 0; shift < 64; shift += 8)
    add_byte(static_cast<unsigned char>(bits >> shift));
}

std::string ContentHash::text() const {
  return fmt::format("{:016x}", state_);
}

}  // namespace sluice
