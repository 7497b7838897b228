#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>

#include "engine/io/file.h"
#include "kernels/base/error.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/record_layout.h"

namespace sluice {
namespace {

// The file is read, not mapped: truncation meanwhile is then an Error and not a SIGBUS.

constexpr int attempts = 16;
constexpr std::int32_t max_ranks = 1 << 20;

template <typename Part>
bool same_bytes(const Part& a, const Part& b) {
  return std::memcmp(&a, &b, sizeof(Part)) == 0;
}

bool stable(std::uint64_t version) {
  return version % 2 == 0;
}

/// Copies a file that another process writes to, without torn parts. If two reads of a part give
/// the same bytes with the same even version, the part had these bytes at a moment between the
/// reads, in whatever order a read collects its bytes. Other slots become empty.
class Snapshot {
 public:
  explicit Snapshot(const File& file) : file_(file), last_(read()) {
    whole_.header = last_.header;
    for (int attempt = 0; attempt < attempts && !complete(); ++attempt)
      compare_with(read());
    // The status never becomes stable if the process was killed while writing it. At worst its
    // texts are half old and half new, which is better than no record of the rank.
    if (!status_taken_) whole_.status = last_.status;
  }

  const RecordLayout& bytes() const { return whole_; }

 private:
  RecordLayout read() const {
    RecordLayout bytes;
    file_.read_at(0, std::as_writable_bytes(std::span(&bytes, 1)));
    return bytes;
  }

  bool complete() const { return status_taken_ && slots_taken_ == taken_.size(); }

  void compare_with(const RecordLayout& next) {
    if (!status_taken_ && stable(next.status.version) && same_bytes(last_.status, next.status)) {
      whole_.status = next.status;
      status_taken_ = true;
    }
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      const RecordSlot& slot = next.slots[i];
      if (taken_[i] || !stable(slot.version) || !same_bytes(last_.slots[i], slot)) continue;
      whole_.slots[i] = slot;
      taken_[i] = true;
      ++slots_taken_;
    }
    last_ = next;
  }

  const File& file_;
  RecordLayout last_, whole_;
  bool status_taken_ = false;
  std::array<bool, FlightRecorder::operations_kept> taken_{};
  std::size_t slots_taken_ = 0;
};

/// Returns the text of a field on one line, whatever its bytes are.
template <std::size_t bytes>
std::string text_of(const std::array<char, bytes>& from) {
  std::string text(from.begin(), std::ranges::find(from, '\0'));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  return text;
}

bool valid(const RecordHeader& header) {
  return header.magic == RecordHeader::magic_value &&
         header.version == RecordHeader::version_value &&
         header.slots == FlightRecorder::operations_kept && header.size > 0 &&
         header.size <= max_ranks && header.rank >= 0 && header.rank < header.size &&
         header.pid > 0;
}

bool valid(const RecordSlot& slot, std::size_t place) {
  // Enumerators and the bool are compared as numbers, since the bytes may have any value.
  const auto bytes = std::bit_cast<std::array<std::uint8_t, sizeof(Signature)>>(slot.signature);
  const std::uint8_t kind = bytes[offsetof(Signature, kind)];
  const std::uint8_t dtype = bytes[offsetof(Signature, dtype)];
  return slot.version != 0 && slot.number % FlightRecorder::operations_kept == place &&
         kind < collective_names.size() && dtype < std::size(dtype_facts) &&
         bytes[offsetof(Signature, any_order)] <= 1 && slot.begin > 0 &&
         (slot.end == 0 || slot.end >= slot.begin);
}

RecordedOperation operation_of(const RecordSlot& slot) {
  RecordedOperation operation{.number = slot.number,
                              .communicator = text_of(slot.communicator),
                              .signature = slot.signature,
                              .begin = slot.begin,
                              .end = slot.end};
  operation.signature.set_label(text_of(slot.signature.label));
  return operation;
}

}  // namespace

std::optional<RankRecord> parse_record(const RecordLayout& ring) {
  constexpr auto last_outcome = static_cast<std::uint32_t>(RankRecord::Outcome::failed);
  if (!valid(ring.header) || ring.status.outcome > last_outcome) return std::nullopt;
  RankRecord record{.rank = ring.header.rank,
                    .size = ring.header.size,
                    .id = {.pid = ring.header.pid,
                           .host = text_of(ring.header.host),
                           .started = ring.header.process_started,
                           .namespace_ = ring.header.pid_namespace},
                    .gpu = text_of(ring.status.gpu),
                    .started = ring.header.started,
                    .outcome = static_cast<RankRecord::Outcome>(ring.status.outcome),
                    .ended = ring.status.ended,
                    .note = text_of(ring.status.note),
                    .message = text_of(ring.status.message),
                    .operations = {}};
  for (std::size_t place = 0; place < ring.slots.size(); ++place)
    if (valid(ring.slots[place], place))
      record.operations.push_back(operation_of(ring.slots[place]));
  std::ranges::sort(record.operations, {}, &RecordedOperation::number);
  return record;
}

std::optional<RecordLayout> copy_of_record(const std::filesystem::path& path) try {
  const File file = File::open(path);
  if (file.size() != sizeof(RecordLayout)) return std::nullopt;
  return Snapshot(file).bytes();
} catch (const Error&) {
  return std::nullopt;
}

std::optional<RankRecord> read_record(const std::filesystem::path& path) {
  const auto read_once = [&]() -> std::optional<RankRecord> {
    const auto bytes = copy_of_record(path);
    return bytes ? parse_record(*bytes) : std::nullopt;
  };
  auto record = read_once();
  if (!record) return std::nullopt;
  record->process = state_of(record->id);
  if (record->process != ProcessState::gone) return record;
  // The process may have written its last record between the first reading and its end.
  auto final_record = read_once();
  if (final_record) final_record->process = ProcessState::gone;
  return final_record;
}

std::vector<RankRecord> read_records(const std::filesystem::path& folder) {
  std::vector<RankRecord> records;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    auto record = read_record(file->path());
    if (record && file->path() == record_path(folder, record->rank))
      records.push_back(std::move(*record));
  }
  std::ranges::sort(records, {}, &RankRecord::rank);
  return records;
}

}  // namespace sluice
