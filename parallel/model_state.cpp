#include "parallel/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace sluice {
namespace {

/// What optimizers carry, as text: a line for each field, with the parameter that it is of.
std::string write_fields(const std::vector<ModelState::Entry>& entries) {
  std::string text;
  for (const auto& entry : entries) {
    text += fmt::format("{} {}\n", entry.name, entry.fields.size());
    for (const auto& field : entry.fields)
      text += fmt::format("{} {} {}\n", field.name, static_cast<int>(field.dtype), field.count);
  }
  return text;
}

/// The same of another rank, for the parameters that nobody before it has.
void read_fields(const std::string& text, int stage, std::vector<ModelState::Entry>& entries) {
  std::istringstream lines(text);
  std::string name;
  std::size_t count = 0;
  while (lines >> name >> count) {
    std::vector<ModelState::Field> fields(count);
    for (auto& field : fields) {
      int dtype = 0;
      lines >> field.name >> dtype >> field.count;
      field.dtype = static_cast<DType>(dtype);
    }
    const auto entry = std::ranges::find(entries, name, &ModelState::Entry::name);
    check(entry != entries.end(), "a rank has a parameter that the model does not have");
    if (entry->stage >= 0) continue;
    entry->stage = stage;
    entry->fields = std::move(fields);
  }
}

}  // namespace

ModelState::ModelState(const ParameterSpace& space, const Optimizer& optimizer,
                       ShardedOptimizer& mine, const SpaceLayout& whole, const Collector* collector)
    : space_(space), optimizer_(optimizer), mine_(mine), collector_(collector) {
  if (collector == nullptr) {
    entries_ = own_entries();
    return;
  }
  for (const auto& slot : whole.slots)
    entries_.push_back({.name = slot.name, .shape = slot.shape, .size = slot.size, .stage = -1});
  const Mesh& mesh = collector->mesh;
  for (int stage = 0; stage < mesh.pp; ++stage) {
    const bool here = mesh.stage(collector->all->rank()) == stage;
    const std::string text = collector->all->share_text(
        here ? write_fields(own_entries()) : std::string(), mesh.rank(0, stage), "state");
    read_fields(text, stage, entries_);
  }
  check(std::ranges::none_of(entries_, [](const Entry& entry) { return entry.stage < 0; }),
        "the model has a parameter that no rank has");
}

std::vector<ModelState::Entry> ModelState::own_entries() const {
  std::vector<Entry> entries;
  for (const auto& slot : space_.slots()) {
    Entry& entry =
        entries.emplace_back(Entry{.name = slot.name, .shape = slot.shape, .size = slot.size});
    for (const StateField& field : optimizer_.fields(slot))
      entry.fields.push_back({std::string(field.name), field.dtype, field.count});
  }
  return entries;
}

/// Calls read(slot) where the entry is, and brings what it has read to the first rank.
template <class Read>
void ModelState::collect(const Entry& entry, std::span<std::byte> out, Read&& read) {
  if (collector_ == nullptr) return read(*space_.find(entry.name));
  const int rank = collector_->all->rank();
  if (collector_->mesh.stage(rank) == entry.stage) read(*space_.find(entry.name));
  if (!collector_->to_first.empty()) {
    const auto& link = collector_->to_first[static_cast<std::size_t>(entry.stage)];
    const View bytes{out.data(), DType::u8, {static_cast<std::int64_t>(out.size())}};
    if (link) link->broadcast(bytes, 1, {.label = "checkpoint"})->wait();
  }
  // All keep in step with the one that writes, so that nobody waits for a whole file.
  collector_->all->barrier("checkpoint")->wait();
}

void ModelState::read_weights(const Entry& entry, std::int64_t first, std::span<std::byte> out) {
  collect(entry, out, [&](const auto& slot) { mine_.read_weights(slot.offset + first, out); });
}

void ModelState::read_state(const Entry& entry, std::size_t field, std::int64_t first,
                            std::span<std::byte> out) {
  collect(entry, out, [&](const auto& slot) { mine_.read_state(slot, field, first, out); });
}

}  // namespace sluice
