#include "models/decoder/recompute.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

constexpr std::array<std::pair<std::string_view, Recompute>, 5> modes{{
    {"none", Recompute::none},
    {"gelu", Recompute::gelu},
    {"gelu+ln", Recompute::gelu_ln},
    {"block", Recompute::block},
    {"block+host", Recompute::block_on_host},
}};

}  // namespace

std::string_view name_of(Recompute mode) {
  return std::ranges::find(modes, mode, &std::pair<std::string_view, Recompute>::second)->first;
}

std::optional<Recompute> recompute_named(std::string_view name) {
  const auto mode = std::ranges::find(modes, name, &std::pair<std::string_view, Recompute>::first);
  return mode != modes.end() ? std::optional(mode->second) : std::nullopt;
}

}  // namespace sluice
