#include <cstring>
#include <limits>

#include "tests/fuzz/samples.h"
#include "tests/fuzz/small_job.h"

namespace sluice::fuzz {
namespace {

template <class Number>
std::string bytes_of_number(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// The job after a change of rank 1's header.
template <class Number>
std::string header(std::size_t offset, Number value) {
  return "r" + change(1, offset, bytes_of_number(value));
}

/// Changes rank 1's first operation.
std::string slot(std::size_t offset, const std::string& bytes) {
  return "r" + change(1, offsetof(RecordLayout, slots) + offset, bytes);
}

std::string status(std::size_t offset, const std::string& bytes) {
  return change(1, offsetof(RecordLayout, status) + offset, bytes);
}

}  // namespace

Samples rank_records_samples() {
  using std::string;
  const string unseen = "a\x1b\xC2\x9B\xE2\x80\xAE\xE2\x80\x8B\xFF";
  const string whole = bytes_of(small_job()[0]);
  const string missing = "rank 1 of 3 never got as far as its first record";
  constexpr auto last = std::numeric_limits<std::int64_t>::max();
  constexpr std::size_t signature = offsetof(RecordSlot, signature);
  return {
      {"accepted", "r", ""},
      {"accepted-change-past-the-end", "r" + change(0, 29951, "abc"), ""},
      {"accepted-unseen-host", "r" + change(1, offsetof(RecordHeader, host), unseen), ""},
      {"accepted-unseen-note", "r" + status(offsetof(RecordStatus, note), unseen), ""},
      {"accepted-unseen-error",
       "r" + status(offsetof(RecordStatus, outcome), bytes_of_number(2u)) +
           status(offsetof(RecordStatus, message), unseen),
       ""},
      {"accepted-unseen-communicator", slot(offsetof(RecordSlot, communicator), unseen), ""},
      {"accepted-unseen-label", slot(signature + offsetof(Signature, label), unseen), ""},
      {"accepted-text-without-end", "r" + status(offsetof(RecordStatus, note), string(108, 'x')),
       ""},
      {"accepted-half-written", "r" + status(0, bytes_of_number(std::uint64_t{1})), ""},
      {"accepted-kind-10", slot(signature + offsetof(Signature, kind), "\x0A"), ""},
      {"accepted-type-200", slot(signature + offsetof(Signature, dtype), "\xC8"), ""},
      {"accepted-order-32", slot(signature + offsetof(Signature, any_order), " "), ""},
      {"accepted-slot-of-another-place", slot(offsetof(RecordSlot, number), "\x01"), ""},
      {"accepted-began-at-0", slot(offsetof(RecordSlot, begin), string(8, '\0')), ""},
      {"accepted-began-last", slot(offsetof(RecordSlot, begin), bytes_of_number(last)), ""},
      {"accepted-ends-before-it-begins",
       slot(offsetof(RecordSlot, end), string("\x01\0\0\0\0\0\0\0", 8)), ""},
      {"accepted-started-first",
       header(offsetof(RecordHeader, started), std::numeric_limits<std::int64_t>::min()), ""},
      {"accepted-other-operation", slot(signature + offsetof(Signature, kind), string(1, '\1')),
       ""},
      {"magic", header(0, '\0'), missing},
      {"version", header(offsetof(RecordHeader, version), '\3'), missing},
      {"slots", header(offsetof(RecordHeader, slots), '\1'), missing},
      {"rank-of-another", header(offsetof(RecordHeader, rank), '\2'), missing},
      {"rank-minus", header(offsetof(RecordHeader, rank), -1), missing},
      {"rank-of-no-job", header(offsetof(RecordHeader, size), 1), missing},
      {"size-minus", header(offsetof(RecordHeader, size), -3), missing},
      {"size-2^30", header(offsetof(RecordHeader, size), 1 << 30), missing},
      {"pid-0", header(offsetof(RecordHeader, pid), 0), missing},
      {"pid-minus", header(offsetof(RecordHeader, pid), -1), missing},
      {"outcome", "r" + status(offsetof(RecordStatus, outcome), "\x03"), missing},
      {"two-of-them", header(0, '\0') + change(2, 0, string(1, '\0')),
       "ranks 1, 2 of 3 never got as far as their first record"},
      {"empty", "f", "there are no ranks' files"},
      {"cut", "f" + whole.substr(0, whole.size() - 1), "there are no ranks' files"},
      {"longer", "f" + whole + " ", "there are no ranks' files"},
      {"zeros", "f" + string(whole.size(), '\0'), "there are no ranks' files"},
      {"one-of-three", "f" + whole, "ranks 1, 2 of 3 never got as far"},
  };
}

}  // namespace sluice::fuzz
