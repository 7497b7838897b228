#include "parallel/data_parallel/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace sluice {
namespace {

/// Describes what replicas divide as text: the number of ranges, then a line for each.
template <class Kept>
std::string written(const std::vector<Kept>& kept) {
  std::string text = fmt::format("{}\n", kept.size());
  for (const auto& [range, replica] : kept)
    text += fmt::format("{} {} {}\n", range.begin, range.end, replica);
  return text;
}

template <class Kept>
std::vector<Kept> read_kept(std::istream& text) {
  std::size_t count = 0;
  text >> count;
  std::vector<Kept> kept(count);
  for (auto& [range, replica] : kept)
    text >> range.begin >> range.end >> replica;
  return kept;
}

/// Describes a rank's parameters as text: for each parameter a line with its place and how it is
/// divided, and a line for each field of its optimizer state.
std::string written(const std::vector<ModelState::Entry>& entries) {
  std::string text;
  for (const auto& entry : entries) {
    const auto& [part, shard, space] = entry.holders.front();
    text += fmt::format("{} {} {} {} {} {}", entry.name, space.begin, space.end,
                        entry.fields.size(), shard.dimension(), shard.kept().size());
    for (const auto& range : shard.kept())
      text += fmt::format(" {} {}", range.begin, range.end);
    text += '\n';
    for (const auto& field : entry.fields)
      text += fmt::format("{} {} {}\n", field.name, static_cast<int>(field.dtype), field.count);
  }
  return text;
}

/// Reads the text of another rank and adds the shards that no earlier rank holds.
void read_entries(std::istream& text, int part, std::vector<ModelState::Entry>& entries) {
  std::string name;
  SpaceRange space;
  std::size_t count = 0, ranges = 0;
  int dimension = 0;
  while (text >> name >> space.begin >> space.end >> count >> dimension >> ranges) {
    std::vector<Shard::Range> kept(ranges);
    for (auto& range : kept)
      text >> range.begin >> range.end;
    std::vector<ModelState::Field> fields(count);
    for (auto& field : fields) {
      int dtype = 0;
      text >> field.name >> dtype >> field.count;
      field.dtype = static_cast<DType>(dtype);
    }
    const auto entry = std::ranges::find(entries, name, &ModelState::Entry::name);
    check(entry != entries.end(), "a rank has a parameter that the model does not have");
    auto& holders = entry->holders;
    const auto has_same = [&](const auto& holder) { return holder.shard.kept() == kept; };
    if (std::ranges::any_of(holders, has_same)) continue;  // a copy
    for (auto& field : fields)
      if (field.count == space.end - space.begin) field.count = entry->size;
    entry->fields = std::move(fields);
    holders.push_back({part, kept.empty() ? Shard() : Shard(entry->shape, dimension, kept), space});
  }
}

std::int64_t held(const ModelState::Entry& entry) {
  std::int64_t sum = 0;
  for (const auto& holder : entry.holders)
    sum += holder.space.end - holder.space.begin;
  return sum;
}

View view_of(std::vector<std::byte>& bytes) {
  return {bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())}};
}

}  // namespace

ModelState::ModelState(const ParameterSpace& space, Optimizer& optimizer, const ZeroOptimizer& zero,
                       const SpaceLayout& whole, const Mesh& mesh, Communicator& all)
    : space_(space), optimizer_(optimizer), mesh_(mesh), all_(all) {
  if (parts() == 1) {
    entries_ = own_entries();
    kept_ = {own_kept(zero)};
  } else {
    for (const auto& slot : whole.slots)
      entries_.push_back({.name = slot.name, .shape = slot.shape, .size = slot.size});
    for (int part = 0; part < parts(); ++part) {
      const bool first_with_it = all.rank() == part;
      std::istringstream text(all.share_text(
          first_with_it ? written(own_kept(zero)) + written(own_entries()) : "", part, "state"));
      kept_.push_back(read_kept<Kept>(text));
      read_entries(text, part, entries_);
    }
  }
  check(std::ranges::all_of(entries_, [](const Entry& entry) { return held(entry) == entry.size; }),
        "the model has parameters that no rank has");
  for (const Entry& entry : entries_)
    here_.push_back(space.find(entry.name));
}

std::vector<ModelState::Entry> ModelState::own_entries() const {
  std::vector<Entry> entries;
  for (const auto& slot : space_.slots()) {
    const SpaceRange range{slot.offset, slot.offset + slot.size};
    Entry& entry = entries.emplace_back(Entry{.name = slot.name,
                                              .shape = slot.shape,
                                              .size = slot.size,
                                              .holders = {{part(), slot.shard, range}}});
    for (const StateField& field : optimizer_.fields(slot))
      entry.fields.push_back({std::string(field.name), field.dtype, field.count});
  }
  return entries;
}

std::vector<ModelState::Kept> ModelState::own_kept(const ZeroOptimizer& zero) const {
  std::vector<Kept> kept;
  const auto by_rank = zero.kept_by_rank();
  for (std::size_t replica = 0; replica < by_rank.size(); ++replica)
    for (const SpaceRange& range : by_rank[replica])
      kept.push_back({range, static_cast<int>(replica)});
  std::ranges::sort(kept, {}, [](const Kept& one) { return one.range.begin; });
  return kept;
}

std::size_t ModelState::width(const Request& request) const {
  return size_of(request.field ? entries_[request.entry].fields[*request.field].dtype
                               : weight_dtype());
}

/// Calls body(source) for the ranks that together have what is requested.
template <class Body>
void ModelState::for_each_source(const Request& request, Body&& body) const {
  const Entry& entry = entries_[request.entry];
  const std::int64_t count = request.field ? entry.fields[*request.field].count : entry.size;
  for (const Holder& holder : entry.holders) {
    // A field with one number per weight is divided as the weights are.
    const bool like_weights = count == entry.size;
    const auto place = [&](std::int64_t at) { return like_weights ? holder.shard.place(at) : at; };
    const std::int64_t begin = place(request.first), end = place(request.first + request.count);
    if (begin == end) continue;
    const std::vector<Kept>& kept = kept_[static_cast<std::size_t>(holder.part)];
    if (kept.empty() || !(request.field || space_.has_master())) {
      body(Source{mesh_.replica(request.rank) * parts() + holder.part, holder, begin, end});
      continue;
    }
    const std::int64_t size = holder.space.end - holder.space.begin;
    // Exact, since replicas divide a matrix between rows, and a field has equally many numbers for
    // each of them, or one replica keeps all of it.
    const auto place_in_field = [&](std::int64_t at) {
      const std::int64_t inside = std::clamp<std::int64_t>(at - holder.space.begin, 0, size);
      return like_weights ? inside : inside * count / size;
    };
    auto at = std::ranges::partition_point(
        kept, [&](const Kept& one) { return one.range.end <= holder.space.begin; });
    for (; at != kept.end() && at->range.begin < holder.space.end; ++at) {
      const std::int64_t first = std::max(begin, place_in_field(at->range.begin));
      const std::int64_t last = std::min(end, place_in_field(at->range.end));
      if (first < last) body(Source{at->replica * parts() + holder.part, holder, first, last});
    }
  }
}

void ModelState::read(const Request& request, std::int64_t first, std::span<std::byte> out) {
  const auto& slot = *here_[request.entry];
  if (request.field)
    optimizer_.read_state(slot, *request.field, first, out);
  else
    space_.read_weights(slot.offset + first, out);
}

void ModelState::redistribute(std::span<const Request> list) {
  const int me = all_.rank();
  std::map<int, std::vector<std::byte>> to, from;  // by rank
  std::vector<std::byte> buffer;
  const auto bytes_of = [&](const Request& request, const Source& source) {
    return static_cast<std::size_t>(source.end - source.begin) * width(request);
  };
  const auto put = [&](const Request& request, const Source& source, std::span<std::byte> bytes) {
    source.holder.shard.put(source.begin, bytes, width(request), request.first, request.out);
  };
  for (const Request& request : list)
    for_each_source(request, [&](const Source& source) {
      const std::size_t bytes = bytes_of(request, source);
      if (source.rank != me) {
        if (request.rank == me) from[source.rank].resize(from[source.rank].size() + bytes);
        return;
      }
      if (request.rank == me && !source.holder.shard.divided()) {
        const auto at = static_cast<std::size_t>(source.begin - request.first) * width(request);
        return read(request, source.begin, request.out.subspan(at, bytes));
      }
      std::vector<std::byte>& out = request.rank == me ? buffer : to[request.rank];
      if (request.rank == me) out.clear();
      out.resize(out.size() + bytes);
      const auto read_bytes = std::span(out).last(bytes);
      read(request, source.begin, read_bytes);
      if (request.rank == me) put(request, source, read_bytes);
    });

  std::vector<Transfer> transfers;
  for (auto& [rank, bytes] : to)
    transfers.push_back({true, rank, view_of(bytes)});
  for (auto& [rank, bytes] : from)
    transfers.push_back({false, rank, view_of(bytes)});
  if (transfers.empty()) return;
  all_.p2p(std::move(transfers), {.label = "checkpoint"})->wait();

  std::map<int, std::size_t> taken;
  for (const Request& request : list)
    if (request.rank == me)
      for_each_source(request, [&](const Source& source) {
        if (source.rank == me) return;
        const std::size_t bytes = bytes_of(request, source);
        std::size_t& at = taken[source.rank];
        put(request, source, std::span(from[source.rank]).subspan(at, bytes));
        at += bytes;
      });
}

}  // namespace sluice
