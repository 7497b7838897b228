#include "models/decoder/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr std::string_view embeddings = "offload-embeddings";

struct Place {
  std::string_view name;
  Residency residency;
};
constexpr std::array places{
    Place{"resident", Residency::device}, Place{"offload-state", Residency::streamed},
    Place{"speculative", Residency::speculative}, Place{"offload-optimizer", Residency::cpu},
    Place{"offload-all", Residency::host}};

/// Returns a word that may be long, quoted.
std::string named(std::string_view word) {
  return quote(word.substr(0, 40));
}

std::string place_names() {
  std::string_view names[places.size()];
  std::ranges::transform(places, names, &Place::name);
  return fmt::format("{}", fmt::join(names, ", "));
}

struct Item {
  std::optional<Residency> residency{};
  std::optional<Recompute> recompute{};
};

class Parser {
 public:
  Parser(const std::string& text, std::int64_t layers)
      : text_(text), layers_(static_cast<std::size_t>(layers)) {}

  PlacementRequest parsed() {
    std::string_view rest = text_;
    PlacementRequest request;
    for (bool last = false; !last;) {
      const auto comma = rest.find(',');
      last = comma == std::string_view::npos;
      const std::string_view item = rest.substr(0, comma);
      if (!last) rest.remove_prefix(comma + 1);
      // Only the last transformer block's item may stand before it without a count.
      const bool ends = last || rest == embeddings;
      if (last && !items_.empty() && item == embeddings)
        request.offload_embeddings = true;
      else
        add(item, ends);
    }
    if (items_.size() < layers_) refuse(fmt::format("it is about {} blocks", items_.size()));
    fill(request);
    return request;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail(fmt::format("--placement {}: {}; give auto, or PLACE[:RECOMPUTE]*COUNT,... of the model's "
                     "{} blocks, the lowest first",
                     quote(text_), why, layers_),
         ErrorKind::usage);
  }

  void add(std::string_view text, bool last) {
    const auto star = text.find('*');
    std::string_view word = text.substr(0, star);
    if (word.empty()) refuse("an item is empty");
    Item item;
    if (const auto colon = word.find(':'); colon != std::string_view::npos) {
      const std::string_view mode = word.substr(colon + 1);
      item.recompute = recompute_named(mode);
      if (!item.recompute)
        refuse(fmt::format("{} is no RECOMPUTE, which is none, gelu, gelu+ln, block or block+host",
                           named(mode)));
      word = word.substr(0, colon);
    }
    if (word != "auto") {
      const auto place = std::ranges::find(places, word, &Place::name);
      if (place == places.end())
        refuse(fmt::format("{} is no PLACE, which is {} or auto", named(word), place_names()));
      item.residency = place->residency;
    }
    const std::size_t left = layers_ - items_.size();
    if (left == 0) refuse(fmt::format("no block is left for {}", named(word)));
    std::size_t count = left;
    if (star != std::string_view::npos) {
      const std::string_view digits = text.substr(star + 1);
      const char* const end = digits.data() + digits.size();
      const auto [stop, status] = std::from_chars(digits.data(), end, count);
      if (status != std::errc{} || stop != end || count == 0 || count > left)
        refuse(fmt::format("\"{}*\" asks for {} blocks where {} are left", word,
                           quote(digits.substr(0, 20)), left));
    } else if (!last) {
      refuse(fmt::format("{} is not the last item and has no *COUNT", named(text)));
    }
    items_.insert(items_.end(), count, item);
  }

  /// Each part is given for all blocks, or for none.
  void fill(PlacementRequest& request) const {
    const auto all = [&](auto member, const char* what) {
      const auto given = static_cast<std::size_t>(std::ranges::count_if(
          items_, [&](const Item& item) { return (item.*member).has_value(); }));
      if (given > 0 && given < items_.size())
        refuse(fmt::format("it has a {} for {} of the blocks only", what, given));
      return given > 0;
    };
    if (all(&Item::residency, "PLACE")) {
      request.residency.emplace();
      for (const Item& item : items_)
        request.residency->push_back(*item.residency);
      if (!std::ranges::is_sorted(*request.residency))
        refuse(fmt::format("from the lowest block, the order is {}", place_names()));
    }
    if (all(&Item::recompute, "RECOMPUTE")) {
      request.recompute.emplace();
      for (const Item& item : items_)
        request.recompute->push_back(*item.recompute);
    }
    if (request.offload_embeddings && request.count(Residency::host) == 0)
      refuse(fmt::format("{} is for models of which blocks are offload-all", embeddings));
  }

  const std::string& text_;
  std::size_t layers_;
  std::vector<Item> items_;
};

/// Calls action(value, count) for each run of equal values.
template <class Values, class Action>
void for_each_run(const Values& values, Action&& action) {
  for (auto first = values.begin(); first != values.end();) {
    const auto next = std::find_if(first, values.end(), [=](const auto& v) { return v != *first; });
    action(*first, next - first, next == values.end());
    first = next;
  }
}

}  // namespace

std::int64_t ModelPlacement::count(Residency residency) const {
  return std::ranges::count(blocks, residency, &Placement::residency);
}

std::int64_t ModelPlacement::count(Recompute mode) const {
  return std::ranges::count(blocks, mode, &Placement::recompute);
}

std::vector<Residency> ModelPlacement::residency() const {
  std::vector<Residency> all;
  for (const Placement& block : blocks)
    all.push_back(block.residency);
  return all;
}

std::vector<Recompute> ModelPlacement::recompute() const {
  std::vector<Recompute> all;
  for (const Placement& block : blocks)
    all.push_back(block.recompute);
  return all;
}

void ModelPlacement::set_residency(const std::vector<Residency>& all) {
  blocks.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    blocks[i].residency = all[i];
}

void ModelPlacement::set_recompute(const std::vector<Recompute>& all) {
  blocks.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    blocks[i].recompute = all[i];
}

void ModelPlacement::set_recompute(Recompute mode) {
  for (Placement& block : blocks)
    block.recompute = mode;
}

std::int64_t PlacementRequest::count(Residency of) const {
  return residency ? std::ranges::count(*residency, of) : 0;
}

PlacementRequest parse_placement(const std::string& text, std::int64_t layers) {
  if (text.empty()) return {};
  return Parser(text, layers).parsed();
}

std::string to_string(const ModelPlacement& placement) {
  std::string text;
  for_each_run(placement.blocks, [&](const Placement& block, std::ptrdiff_t count, bool last) {
    text += fmt::format("{}:{}", name_of(block.residency), name_of(block.recompute));
    if (!last) text += fmt::format("*{},", count);
  });
  if (placement.offload_embeddings) text += fmt::format(",{}", embeddings);
  return text;
}

std::string recompute_text(const ModelPlacement& placement) {
  std::string text;
  for_each_run(placement.recompute(), [&](Recompute mode, std::ptrdiff_t count, bool last) {
    text += fmt::format("{} {}{}", count, name_of(mode), last ? "" : ", ");
  });
  return text;
}

std::string_view name_of(Residency residency) {
  return std::ranges::find(places, residency, &Place::residency)->name;
}

}  // namespace sluice
