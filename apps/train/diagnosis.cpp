#include "apps/train/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "engine/io/stored_tensor.h"

namespace sluice {
namespace {

/// The layer number of the head and of everything else after the blocks.
constexpr std::int32_t above_all = 1 << 30;

/// Returns "h.3.mlp" for h.3.mlp.c_fc.weight and h.3.mlp.c_proj.bias. Names with nothing in common
/// give the part of the first name before its first dot.
std::string_view common_parent(std::string_view first, std::string_view last) {
  const auto end = std::ranges::mismatch(first, last).in1;
  const auto common = static_cast<std::size_t>(end - first.begin());
  const std::size_t dot = first.substr(0, common).rfind('.');
  return first.substr(0, dot != std::string_view::npos ? dot : first.find('.'));
}

}  // namespace

bool all_finite(const Tensor& tensor) {
  constexpr std::int64_t piece = 1 << 20;
  std::vector<std::byte> bytes;
  for (std::int64_t first = 0; first < tensor.size(); first += piece) {
    const std::int64_t count = std::min(piece, tensor.size() - first);
    bytes.resize(static_cast<std::size_t>(count) * size_of(tensor.dtype()));
    tensor.slice(first, {count}).copy_bytes_to(bytes);
    if (first_not_finite(bytes, tensor.dtype()) >= 0) return false;
  }
  return true;
}

/// Returns 4 for a parameter of block 3 (GPT-2: "h.3."), and 0 for embeddings.
std::int32_t Diagnosis::layer_of(std::string_view name) const {
  if (name.starts_with(family_.final_norm) || name == family_.head) return above_all;
  std::int32_t layer = -1;
  if (name.starts_with(family_.blocks)) {
    name.remove_prefix(family_.blocks.size());
    std::from_chars(name.data(), name.data() + name.size(), layer);
  }
  return layer + 1;
}

Diagnosis::Diagnosis(const ParameterSpace& space, const DecoderNames& names)
    : space_(space), family_(names) {
  for (const auto& slot : space.slots())
    names_[slot.tensor->impl()] = slot.name;
}

void Diagnosis::look_at_weights() {
  for (const auto& slot : space_.slots())
    look(space_.working().kept(slot.offset, slot.shape), Sighting::Phase::weights,
         layer_of(slot.name), fmt::format("weight {}", slot.name));
}

std::string_view Diagnosis::name_of(const Edge& edge) const {
  const auto found = edge.leaf ? names_.find(edge.leaf.impl()) : names_.end();
  return found == names_.end() ? std::string_view() : found->second;
}

Diagnosis::Position Diagnosis::position_of(const Node& node) const {
  std::vector<std::string_view> names;
  for (const Edge& input : node.inputs())
    if (const auto name = name_of(input); !name.empty()) names.push_back(name);
  if (names.empty()) return last_;
  const std::string_view name = common_parent(names.front(), names.back());
  // The head shares its table with the embedding, but its input is the result of another op.
  const bool computes = std::ranges::any_of(
      node.inputs(), [](const Edge& input) { return input.producer != nullptr; });
  const bool head = computes && layer_of(name) == 0;
  return {std::string(name), head ? above_all : layer_of(name)};
}

void Diagnosis::computed(const Node& node, std::span<Tensor* const> outputs) {
  const Position position = positions_[&node] = position_of(node);
  last_ = position;
  // Later ops without parameters belong to the same block: "h.3.ln_1" becomes "h.3".
  if (last_.name.starts_with(family_.blocks))
    last_.name = last_.name.substr(0, last_.name.find('.', family_.blocks.size()));
  // Skips the output of a checkpointed block: only its recompute, which runs its ops one by one,
  // shows which of them a bad number comes from.
  const bool sums_checkpoint =
      node.name() == "add" && std::ranges::any_of(node.inputs(), [](const Edge& input) {
        return input.producer != nullptr && input.producer->name() == "checkpoint";
      });
  if (node.name() == "checkpoint" || sums_checkpoint) return;
  for (const Tensor* output : outputs)
    look(*output, Sighting::Phase::forward, position.layer,
         fmt::format("the output of {} in {} (forward)", node.name(), position.name));
}

void Diagnosis::handed_over(const Node& node, const Edge& to, const Tensor& gradient) {
  const Position& position = positions_[&node];
  const std::string_view weight = name_of(to);
  look(gradient, Sighting::Phase::backward, -position.layer,
       weight.empty()
           ? fmt::format("the input's gradient of {} in {} (backward)", node.name(), position.name)
           : fmt::format("the gradient of weight {}, from {} (backward)", weight, node.name()));
}

void Diagnosis::look(const Tensor& tensor, Sighting::Phase phase, std::int32_t layer,
                     const std::string& what) {
  Sighting here{.phase = phase, .layer = layer, .number = looked_at_++};
  if (here.place() >= found_.place() || all_finite(tensor)) return;
  const std::size_t length = std::min(what.size(), sizeof(here.text) - 1);
  std::memcpy(here.text, what.data(), length);
  found_ = here;
}

Sighting Diagnosis::first(Communicator& ranks) const {
  const auto all = ranks.gather_values(found_, "diagnosis");
  const auto first = std::ranges::min_element(all, {}, &Sighting::place);
  Sighting result = *first;
  if (ranks.size() > 1 && result.phase != Sighting::Phase::nowhere) {
    const std::string text = fmt::format("{} of rank {}", result.text, first - all.begin());
    const std::size_t length = std::min(text.size(), sizeof(result.text) - 1);
    std::memcpy(result.text, text.data(), length);
  }
  return result;
}

void require_finite_weights(const ParameterSpace& space, const DecoderNames& names,
                            Communicator& ranks, std::int64_t step) {
  Diagnosis diagnosis(space, names);
  diagnosis.look_at_weights();
  const Sighting first = diagnosis.first(ranks);
  if (first.phase == Sighting::Phase::nowhere) return;
  fail(fmt::format("nothing was saved at step {}: {} is not finite; go on from an older checkpoint",
                   step, first.text),
       ErrorKind::numerical);
}

}  // namespace sluice
