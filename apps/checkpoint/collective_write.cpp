#include "apps/checkpoint/collective_write.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/io/file.h"
#include "engine/io/file_identity.h"
#include "engine/io/stored_tensor.h"
#include "models/decoder/weights.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Elements {
  std::uint64_t first, count;
};
/// Returns the elements of a tensor, each of `width` bytes, that have some of the tensor's `bytes`.
Elements elements_of(ByteRange bytes, std::uint64_t width) {
  const std::uint64_t first = bytes.begin / width;
  return {first, (bytes.end + width - 1) / width - first};
}

/// The bytes of one section of a file.
class Section {
 public:
  Section(const StateFile& file, ByteRange where)
      : file_(file), where_(where), bytes_(where.end - where.begin) {
    if (where.begin < file.start.size())
      std::copy(file.start.begin() + static_cast<std::ptrdiff_t>(where.begin),
                file.start.begin() + static_cast<std::ptrdiff_t>(
                                         std::min<std::uint64_t>(where.end, file.start.size())),
                bytes_.begin());
  }

  /// Returns the memory for the elements of tensor number `index` that have `bytes` of it, which
  /// belong to the section.
  std::span<std::byte> place(std::size_t index, DType dtype, ByteRange bytes) {
    const StoredTensor& tensor = file_.tensors[index];
    const std::uint64_t width = size_of(tensor.type);
    const auto [first, count] = elements_of(bytes, width);
    const auto here = std::span(bytes_).subspan(
        file_.start.size() + tensor.begin + bytes.begin - where_.begin, bytes.end - bytes.begin);
    if (here.size() == count * width && stored_type(dtype) == tensor.type) return here;
    staged_.push_back({.elements = std::vector<std::byte>(count * size_of(dtype)),
                       .dtype = dtype,
                       .type = tensor.type,
                       .skip = bytes.begin - first * width,
                       .place = here});
    return staged_.back().elements;
  }

  /// Returns the section when its elements are there.
  std::span<const std::byte> finish() {
    for (Staged& staged : staged_) {
      if (stored_type(staged.dtype) != staged.type) {
        std::vector<std::byte> converted(staged.elements.size() / size_of(staged.dtype) *
                                         size_of(staged.type));
        convert_floats(staged.elements, staged.dtype, converted, staged.type);
        staged.elements = std::move(converted);
      }
      std::memcpy(staged.place.data(), staged.elements.data() + staged.skip, staged.place.size());
    }
    return bytes_;
  }

 private:
  /// Elements that are of another type than in the file, or that the section's border cuts.
  struct Staged {
    std::vector<std::byte> elements;
    DType dtype;
    StoredType type;
    std::uint64_t skip;  ///< bytes before the section
    std::span<std::byte> place;
  };

  const StateFile& file_;
  ByteRange where_;
  std::vector<std::byte> bytes_;
  std::vector<Staged> staged_;
};

/// Adds the requests of a rank for a section. `section`: on that rank, otherwise null.
void request(const StateFile& file, const ModelState& model, ByteRange where, int rank,
             Section* section, std::vector<ModelState::Request>& list) {
  const std::uint64_t start = file.start.size();
  if (where.end <= start) return;
  const std::uint64_t begin = where.begin - std::min(where.begin, start), end = where.end - start;
  auto tensor = std::ranges::partition_point(
      file.tensors, [&](const StoredTensor& one) { return one.end <= begin; });
  for (; tensor != file.tensors.end() && tensor->begin < end; ++tensor) {
    const auto index = static_cast<std::size_t>(tensor - file.tensors.begin());
    const auto& [entry, field] = file.arrays[index];
    const ByteRange bytes{std::max(tensor->begin, begin) - tensor->begin,
                          std::min(tensor->end, end) - tensor->begin};
    const auto [first, count] = elements_of(bytes, size_of(tensor->type));
    list.push_back({.rank = rank,
                    .entry = entry,
                    .field = field,
                    .first = static_cast<std::int64_t>(first),
                    .count = static_cast<std::int64_t>(count)});
    if (section == nullptr) continue;
    const DType dtype = field ? model.entries()[entry].fields[*field].dtype : model.weight_dtype();
    list.back().out = section->place(index, dtype, bytes);
  }
}

View view_of(std::span<std::uint32_t> sums) {
  const auto raw = std::as_writable_bytes(sums);
  return {raw.data(), DType::u8, {static_cast<std::int64_t>(raw.size())}};
}

std::uint64_t sections_of(std::uint64_t bytes) {
  return (bytes + SectionSums::section_bytes - 1) / SectionSums::section_bytes;
}

}  // namespace

StateFile lay_out_weights(const ModelState& model, const SpaceLayout& whole, StoredType type) {
  SafetensorsHeader header = weights_header(whole, type);
  StateFile file;
  file.start = safetensors_start(header.tensors, header.metadata, "the weights");
  // The header may list parts of an entry, which follow one another.
  for (std::size_t entry = 0; entry < model.entries().size(); ++entry) {
    file.arrays.push_back({.entry = entry});
    const SpaceLayout::Slot& slot = whole.slots[entry];
    file.tensors.push_back({.name = slot.name, .type = type, .shape = slot.shape});
  }
  assign_offsets(file.tensors);
  return file;
}

StateFile lay_out_optimizer(const ModelState& model) {
  StateFile file;
  for (std::size_t e = 0; e < model.entries().size(); ++e) {
    const ModelState::Entry& entry = model.entries()[e];
    for (std::size_t i = 0; i < entry.fields.size(); ++i) {
      const ModelState::Field& field = entry.fields[i];
      file.arrays.push_back({.entry = e, .field = i});
      file.tensors.push_back(
          {.name = state_name(field.name, entry.name),
           .type = stored_type(field.dtype),
           .shape = field.count == entry.size ? entry.shape : Shape{field.count}});
    }
  }
  file.start = safetensors_start(file.tensors, {}, "the optimizer state");
  return file;
}

std::string state_name(std::string_view field, std::string_view parameter) {
  return fmt::format("{}.{}", field, parameter);
}

Writers find_writers(Communicator& ranks, const fs::path& folder) {
  Writers writers{.folder = ranks.share_text(folder.string(), 0, "checkpoint")};
  if (writers.folder.empty()) return writers;
  FileIdentity mine;
  keep_alive(ranks, "checkpoint", [&] {
    if (::access(writers.folder.c_str(), W_OK | X_OK) == 0) mine = identity_of(writers.folder);
  });
  const auto all = ranks.gather_values(mine, "checkpoint");
  writers.ranks = {0};
  for (int rank = 1; rank < ranks.size(); ++rank)
    if (all.front().number != 0 && all[static_cast<std::size_t>(rank)] == all.front())
      writers.ranks.push_back(rank);
  return writers;
}

ByteRange range_of_writer(std::uint64_t bytes, int rank, const std::vector<int>& writers) {
  const auto found = std::ranges::lower_bound(writers, rank);
  if (found == writers.end() || *found != rank) return {};
  const auto number = static_cast<std::uint64_t>(found - writers.begin());
  const std::uint64_t sections = sections_of(bytes);
  const auto border = [&](std::uint64_t before) {
    return std::min(bytes, (sections * before + writers.size() - 1) / writers.size() *
                               SectionSums::section_bytes);
  };
  return {border(number), border(number + 1)};
}

void keep_error(std::string& error, const std::function<void()>& body) {
  if (!error.empty()) return;
  try {
    body();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
}

void PartOutput::write(std::span<const std::byte> bytes) {
  keep_error(error_, [&] {
    if (!file_) file_.emplace(File::create_part(path_, offset_));
    file_->write(bytes);
  });
  if (!error_.empty()) file_.reset();  // rank 0 removes it, which some file systems delay
}

void PartOutput::finish() {
  keep_error(error_, [&] {
    if (file_) file_->finish();
  });
  if (!error_.empty()) file_.reset();
}

std::string first_error(Communicator& ranks, const std::string& mine) {
  const std::optional<int> failed = first_rank(ranks, !mine.empty(), "checkpoint");
  if (!failed) return {};
  const std::string error = ranks.share_text(mine, *failed, "checkpoint");
  return *failed == 0 ? error : fmt::format("rank {}: {}", *failed, error);
}

void write_together(const StateFile& file, ModelState& model, Communicator& ranks,
                    const std::vector<int>& writers, Output& mine) {
  check(!writers.empty(), "a file that ranks write together has a writer");
  const std::uint64_t bytes = file.bytes();
  const std::uint64_t rounds = (sections_of(bytes) + writers.size() - 1) / writers.size();
  const bool writes = std::ranges::binary_search(writers, ranks.rank());
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::vector<ModelState::Request> list;
    std::optional<Section> section;
    for (const int writer : writers) {
      const ByteRange part = range_of_writer(bytes, writer, writers);
      const std::uint64_t begin = part.begin + round * SectionSums::section_bytes;
      if (begin >= part.end) continue;
      const ByteRange where{begin, std::min(part.end, begin + SectionSums::section_bytes)};
      const bool here = writer == ranks.rank();
      if (here) section.emplace(file, where);
      request(file, model, where, writer, here ? &*section : nullptr, list);
    }
    model.redistribute(list);
    const auto write = [&] {
      if (section) mine.write(section->finish());
      if (round + 1 == rounds) mine.finish();
    };
    keep_alive(ranks, "checkpoint", writes ? write : std::function<void()>());
  }
}

SectionSums gather_sums(Communicator& ranks, const std::vector<int>& writers, std::uint64_t bytes,
                        const SectionSums& mine) {
  std::vector<std::uint32_t> own = mine.sums();
  if (ranks.rank() > 0) {
    if (!own.empty()) ranks.p2p({{true, 0, view_of(own)}}, {.label = "checkpoint"})->wait();
    return {};
  }
  std::vector<std::uint32_t> whole(sections_of(bytes));
  std::ranges::copy(own, whole.begin());
  std::vector<Transfer> transfers;
  for (const int writer : writers) {
    const ByteRange part = range_of_writer(bytes, writer, writers);
    if (writer > 0 && part.end > part.begin)
      transfers.push_back({false, writer,
                           view_of(std::span(whole).subspan(sections_of(part.begin),
                                                            sections_of(part.end - part.begin)))});
  }
  if (!transfers.empty()) ranks.p2p(std::move(transfers), {.label = "checkpoint"})->wait();
  return {bytes, std::move(whole)};
}

}  // namespace sluice
