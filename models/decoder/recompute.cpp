#include "models/decoder/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr std::array<std::pair<std::string_view, Recompute>, 5> modes{{
    {"none", Recompute::none},
    {"gelu", Recompute::gelu},
    {"gelu+ln", Recompute::gelu_ln},
    {"block", Recompute::block},
    {"block+host", Recompute::block_on_host},
}};

[[noreturn]] void refuse(const std::string& text, const std::string& why, std::int64_t n_layer) {
  fail(fmt::format(
           "recompute is {}: {}; it must be none, gelu, gelu+ln, block or block+host, or a list "
           "such as \"block*2,gelu+ln\", where each item but the last has a number of the "
           "model's {} layers",
           quote(text), why, n_layer),
       ErrorKind::usage);
}

}  // namespace

std::vector<Recompute> parse_recompute(const std::string& text, std::int64_t n_layer) {
  std::vector<Recompute> per_layer;
  const auto layers = static_cast<std::size_t>(n_layer);
  std::string_view rest = text;
  for (bool last = false; !last;) {
    const auto comma = rest.find(',');
    last = comma == std::string_view::npos;
    const std::string_view item = rest.substr(0, comma);
    if (!last) rest.remove_prefix(comma + 1);
    const auto star = item.find('*');
    const std::string_view word = item.substr(0, star);
    const auto mode =
        std::ranges::find(modes, word, &std::pair<std::string_view, Recompute>::first);
    if (item.empty()) refuse(text, "an item is empty", n_layer);
    if (mode == modes.end()) refuse(text, fmt::format("{} is no mode", quote(word)), n_layer);
    const bool counted = star != std::string_view::npos;
    if (last && counted)
      refuse(text, fmt::format("the last item, {}, takes all layers that are left", quote(item)),
             n_layer);
    if (!last && !counted)
      refuse(text, fmt::format("{} is not the last item and has no number of layers", quote(item)),
             n_layer);
    std::size_t count = layers - per_layer.size();
    if (!last) {
      const std::string_view digits = item.substr(star + 1);
      const char* end = digits.data() + digits.size();
      const auto [stop, status] = std::from_chars(digits.data(), end, count);
      if (status != std::errc{} || stop != end || count == 0 || count > layers - per_layer.size())
        refuse(text,
               fmt::format("\"{}*\" asks for {} layers where {} are left", word,
                           quote(digits.substr(0, 20)), layers - per_layer.size()),
               n_layer);
    }
    per_layer.insert(per_layer.end(), count, mode->second);
  }
  return per_layer;
}

std::string to_string(const std::vector<Recompute>& per_layer) {
  std::string text;
  for (auto first = per_layer.begin(); first != per_layer.end();) {
    const auto next =
        std::find_if(first, per_layer.end(), [=](auto mode) { return mode != *first; });
    text +=
        std::ranges::find(modes, *first, &std::pair<std::string_view, Recompute>::second)->first;
    if (next != per_layer.end()) text += fmt::format("*{},", next - first);
    first = next;
  }
  return text;
}

}  // namespace sluice
