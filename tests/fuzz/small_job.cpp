#include "tests/fuzz/small_job.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace sluice::fuzz {
namespace {

constexpr std::int64_t second = 1'000'000'000;

template <std::size_t size>
void put_text(std::array<char, size>& to, std::string_view text) {
  std::ranges::copy(text, to.begin());
}

RecordSlot operation(std::uint64_t number, std::int64_t begin, std::int64_t end) {
  RecordSlot slot;
  slot.version = 2;
  slot.number = number;
  slot.begin = begin;
  slot.end = end;
  put_text(slot.communicator, "world");
  slot.signature = {
      .sequence = number, .count = 1000, .kind = Collective::all_reduce, .dtype = DType::f32};
  slot.signature.set_label("gradients 3");
  return slot;
}

}  // namespace

SmallJob small_job() {
  SmallJob job;
  for (int rank = 0; rank < small_job_ranks; ++rank) {
    RecordLayout& record = job[static_cast<std::size_t>(rank)];
    record.header.magic = RecordHeader::magic_value;
    record.header.version = RecordHeader::version_value;
    record.header.slots = FlightRecorder::operations_kept;
    record.header.rank = rank;
    record.header.size = small_job_ranks;
    record.header.pid = 4710 + rank;
    record.header.started = 100 * second;
    put_text(record.header.host, "another host");
    put_text(record.status.note, "step 12");
    record.slots[0] = operation(0, 101 * second, 102 * second);
    if (rank < 2) record.slots[1] = operation(1, 103 * second, 0);
  }
  return job;
}

std::string change(int rank, std::size_t offset, const std::string& bytes) {
  std::string text;
  for (const std::size_t byte :
       {static_cast<std::size_t>(rank), offset & 0xFF, offset >> 8, bytes.size()})
    text += static_cast<char>(byte);
  return text + bytes;
}

std::string bytes_of(const RecordLayout& record) {
  std::string bytes(sizeof record, '\0');
  std::memcpy(bytes.data(), &record, sizeof record);
  return bytes;
}

}  // namespace sluice::fuzz
