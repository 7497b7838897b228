#include <algorithm>
#include <sstream>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "parallel/flight_recorder/post_mortem.h"
#include "parallel/flight_recorder/rank_report.h"
#include "tests/fuzz/harness.h"
#include "tests/fuzz/small_job.h"

namespace sluice::fuzz {
namespace {

namespace fs = std::filesystem;

/// Takes the first bytes of what is left.
Bytes take(Bytes& rest, std::size_t count) {
  const Bytes taken = rest.substr(0, count);
  rest.remove_prefix(taken.size());
  return taken;
}

std::size_t number(Bytes bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// The files of the small job after the changes that the input lists.
std::array<std::string, small_job_ranks> changed(Bytes changes) {
  std::array<std::string, small_job_ranks> files;
  std::ranges::transform(small_job(), files.begin(), bytes_of);
  while (!changes.empty()) {
    std::string& file = files[number(take(changes, 1)) % files.size()];
    const std::size_t offset = number(take(changes, 2)) % file.size();
    const std::size_t wanted = number(take(changes, 1));
    const Bytes bytes = take(changes, std::min(wanted, file.size() - offset));
    file.replace(offset, bytes.size(), bytes);
  }
  return files;
}

bool plain(const std::string& text, std::size_t most) {
  return text.size() <= most && std::ranges::none_of(text, [](char c) {
           return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
         });
}

void require_possible(const RankRecord& record) {
  require(record.size > 0 && record.rank >= 0 && record.rank < record.size, "a rank out of range");
  require(record.id.pid > 0, "a process number that is none");
  require(record.outcome <= RankRecord::Outcome::failed, "an outcome that there is not");
  require(plain(record.note, sizeof RecordStatus::note) &&
              plain(record.message, sizeof RecordStatus::message) &&
              plain(record.id.host, sizeof RecordHeader::host),
          "a text that is too long or no line");
  require(record.operations.size() <= FlightRecorder::operations_kept,
          "more operations than are kept");
  const RecordedOperation* before = nullptr;
  for (const RecordedOperation& operation : record.operations) {
    require(before == nullptr || before->number < operation.number, "operations out of order");
    require(operation.begin > 0, "an operation that began before all time");
    require(operation.open() || operation.end >= operation.begin,
            "an operation that ends too soon");
    require(static_cast<std::size_t>(operation.signature.kind) < collective_names.size(),
            "a collective that there is not");
    require(plain(operation.communicator, FlightRecorder::communicator_bytes),
            "a name that is no line");
    before = &operation;
  }
}

/// Written by a rank once more, a record tells the same.
void require_same_again(const RankRecord& record) {
  const fs::path folder = scratch() / "again";
  fs::create_directories(folder);
  fs::remove(record_path(folder, record.rank));
  {
    FlightRecorder file(folder, record.rank, record.size);
    for (const RecordedOperation& operation : record.operations)
      file.begin(operation.communicator, operation.signature);
    file.note(record.note);
    file.fail(record.message);
  }
  const auto again = read_record(record_path(folder, record.rank));
  fs::remove(record_path(folder, record.rank));
  require(again.has_value(), "a record cannot be read once written");
  require(again->note == record.note && again->message == record.message,
          "texts differ once written");
  require(again->operations.size() == record.operations.size(), "operations are lost once written");
  for (std::size_t i = 0; i < record.operations.size(); ++i)
    require(again->operations[i].communicator == record.operations[i].communicator &&
                again->operations[i].signature == record.operations[i].signature,
            "an operation differs once written");
}

/// Checks what post_mortem prints: a sentence, and for each rank an empty line, a line and one line
/// for each of its last five operations.
void require_report(const std::vector<RankRecord>& records) {
  std::size_t expected = 1;
  for (const RankRecord& record : records)
    expected += 2 + std::min<std::size_t>(5, record.operations.size());
  std::istringstream report(rank_report(records, "", true));
  std::size_t lines = 0;
  for (std::string line; std::getline(report, line); ++lines)
    if (!line.empty()) require_showable(line, 10'000);
  require(lines == expected, "a report of " + std::to_string(lines) + " lines");
}

}  // namespace

void read_rank_records(Bytes input) {
  const fs::path folder = scratch() / "ranks";
  fs::remove_all(folder);
  if (input.starts_with('f')) {
    put("ranks/rank-0.ring", input.substr(1));
  } else {
    const auto files = changed(input.substr(std::min<std::size_t>(1, input.size())));
    for (int rank = 0; rank < small_job_ranks; ++rank)
      put(fs::path("ranks") / ("rank-" + std::to_string(rank) + ".ring"),
          files[static_cast<std::size_t>(rank)]);
  }
  const auto records = read_records(folder);
  if (records.empty()) fail("there are no ranks' files", ErrorKind::usage);
  for (const RankRecord& record : records) {
    require_possible(record);
    require_same_again(record);
  }
  require_report(records);
  // The sentence explains what has happened to a rank without a record.
  if (records.size() < small_job_ranks) fail(excerpt(post_mortem(records, small_job_ranks)));
}

}  // namespace sluice::fuzz
