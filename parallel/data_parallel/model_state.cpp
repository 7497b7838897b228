#include "parallel/data_parallel/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace sluice {
namespace {

/// Describes a rank's parameters as text: for each parameter a line with how it is divided, and a
/// line for each field of its optimizer state.
std::string write_entries(const std::vector<ModelState::Entry>& entries) {
  std::string text;
  for (const auto& entry : entries) {
    const Shard& shard = entry.holders.front().shard;
    text += fmt::format("{} {} {} {}", entry.name, entry.fields.size(), shard.dimension(),
                        shard.kept().size());
    for (const auto& range : shard.kept())
      text += fmt::format(" {} {}", range.begin, range.end);
    text += '\n';
    for (const auto& field : entry.fields)
      text += fmt::format("{} {} {}\n", field.name, static_cast<int>(field.dtype), field.count);
  }
  return text;
}

/// Reads the text of another rank and adds the shards that no earlier rank holds.
void read_entries(const std::string& text, int part, std::vector<ModelState::Entry>& entries) {
  std::istringstream lines(text);
  std::string name;
  std::size_t count = 0, ranges = 0;
  int dimension = 0;
  while (lines >> name >> count >> dimension >> ranges) {
    std::vector<Shard::Range> kept(ranges);
    for (auto& range : kept)
      lines >> range.begin >> range.end;
    std::vector<ModelState::Field> fields(count);
    for (auto& field : fields) {
      int dtype = 0;
      lines >> field.name >> dtype >> field.count;
      field.dtype = static_cast<DType>(dtype);
    }
    const auto entry = std::ranges::find(entries, name, &ModelState::Entry::name);
    check(entry != entries.end(), "a rank has a parameter that the model does not have");
    auto& holders = entry->holders;
    const auto has_same = [&](const auto& holder) { return holder.shard.kept() == kept; };
    if (std::ranges::any_of(holders, has_same)) continue;  // a copy
    const Shard shard = kept.empty() ? Shard() : Shard(entry->shape, dimension, kept);
    const std::int64_t here = shard.divided() ? element_count(shard.shape()) : entry->size;
    for (auto& field : fields)
      if (field.count == here) field.count = entry->size;
    entry->fields = std::move(fields);
    holders.push_back({part, shard});
  }
}

std::int64_t held(const ModelState::Entry& entry) {
  std::int64_t sum = 0;
  for (const auto& [part, shard] : entry.holders)
    sum += shard.divided() ? element_count(shard.shape()) : entry.size;
  return sum;
}

}  // namespace

ModelState::ModelState(const ParameterSpace& space, const Optimizer& optimizer, ZeroOptimizer& mine,
                       const SpaceLayout& whole, const GatherLinks& gather_links)
    : space_(space), optimizer_(optimizer), mine_(mine), gather_links_(gather_links) {
  if (alone()) {
    entries_ = own_entries();
    return;
  }
  for (const auto& slot : whole.slots)
    entries_.push_back({.name = slot.name, .shape = slot.shape, .size = slot.size});
  const int parts = gather_links.mesh.pp * gather_links.mesh.tp;
  for (int part = 0; part < parts; ++part) {
    const bool here = this->part() == part;
    const std::string text = gather_links.all->share_text(
        here ? write_entries(own_entries()) : std::string(), part, "state");
    read_entries(text, part, entries_);
  }
  check(std::ranges::all_of(entries_, [](const Entry& entry) { return held(entry) == entry.size; }),
        "the model has parameters that no rank has");
}

/// This rank's number within its replica.
int ModelState::part() const {
  return gather_links_.all->rank() % (gather_links_.mesh.pp * gather_links_.mesh.tp);
}

std::vector<ModelState::Entry> ModelState::own_entries() const {
  std::vector<Entry> entries;
  for (const auto& slot : space_.slots()) {
    Entry& entry = entries.emplace_back(Entry{
        .name = slot.name, .shape = slot.shape, .size = slot.size, .holders = {{0, slot.shard}}});
    for (const StateField& field : optimizer_.fields(slot))
      entry.fields.push_back({std::string(field.name), field.dtype, field.count});
  }
  return entries;
}

/// Calls read(slot, place, bytes) on the ranks that hold the entry or a shard of it, and sends the
/// result to rank 0. `divided`: the data is divided as the parameter is.
template <class Read>
void ModelState::collect(const Entry& entry, bool divided, std::int64_t first, std::size_t width,
                         std::span<std::byte> out, Read&& read) {
  if (alone()) return read(*space_.find(entry.name), first, out);
  const int rank = gather_links_.all->rank();
  std::vector<std::byte> buffer;
  for (const auto& [part, shard] : entry.holders) {
    std::span<std::byte> piece = out;
    std::int64_t begin = first;
    if (divided && shard.divided()) {
      begin = shard.place(first);
      const std::int64_t end = shard.place(first + static_cast<std::int64_t>(out.size() / width));
      buffer.resize(static_cast<std::size_t>(end - begin) * width);
      piece = buffer;
    }
    if (piece.empty()) continue;
    if (this->part() == part) read(*space_.find(entry.name), begin, piece);
    if (const auto& link = gather_links_.to_first[static_cast<std::size_t>(part)]) {
      const View bytes{piece.data(), DType::u8, {static_cast<std::int64_t>(piece.size())}};
      link->broadcast(bytes, 1, {.label = "checkpoint"})->wait();
    }
    if (rank == 0 && piece.data() != out.data()) shard.put(first, piece, width, out);
  }
}

void ModelState::read_weights(const Entry& entry, std::int64_t first, std::span<std::byte> out) {
  collect(entry, true, first, size_of(space_.weight_dtype()), out,
          [&](const auto& slot, std::int64_t place, std::span<std::byte> bytes) {
            mine_.read_weights(slot.offset + place, bytes);
          });
}

void ModelState::read_state(const Entry& entry, std::size_t field, std::int64_t first,
                            std::span<std::byte> out) {
  const Field& wanted = entry.fields[field];
  collect(entry, wanted.count == entry.size, first, size_of(wanted.dtype), out,
          [&](const auto& slot, std::int64_t place, std::span<std::byte> bytes) {
            mine_.read_state(slot, field, place, bytes);
          });
}

}  // namespace sluice
