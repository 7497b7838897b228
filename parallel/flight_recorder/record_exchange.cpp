#include "parallel/flight_recorder/record_exchange.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "parallel/flight_recorder/record_layout.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// The first character of a letter says what it is.
constexpr char ask = 'a', records = 'r', reported = 's';

/// A record on its way: the state of its process, which only its own computer knows, and its bytes.
constexpr std::size_t bytes_of_record = 1 + sizeof(RecordLayout);

/// Keeps a copy for people, unless the file is there: computers may share the folder.
void keep_copy(const fs::path& path, std::string_view bytes) {
  std::error_code error;
  if (fs::exists(path, error)) return;
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

RecordExchange::RecordExchange(std::unique_ptr<Mailbox> mailbox, fs::path folder, int rank,
                               std::vector<RankPlace> places)
    : mailbox_(std::move(mailbox)),
      folder_(std::move(folder)),
      rank_(rank),
      places_(std::move(places)) {
  const int here = places_[static_cast<std::size_t>(rank)].first;
  for (std::size_t other = 0; other < places_.size(); ++other)
    if (places_[other].first == static_cast<int>(other) && places_[other].first != here)
      others_.push_back(static_cast<int>(other));
}

void RecordExchange::serve() {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // collect() answers too
  if (!lock || !mailbox_ || !several_hosts()) return;
  while (const auto letter = mailbox_->fetch())
    handle(*letter);
}

void RecordExchange::handle(const Mailbox::Letter& letter) {
  if (letter.text.empty()) return;
  if (letter.text[0] == ask && answers_for_its_host()) mailbox_->send(letter.from, records_here());
  if (letter.text[0] == records) take(letter.text.substr(1));
  if (letter.text[0] == reported) reported_ = true;
}

/// Returns true for the lowest rank of this computer that is able to answer.
bool RecordExchange::answers_for_its_host() const {
  for (int lower = places_[static_cast<std::size_t>(rank_)].first; lower < rank_; ++lower) {
    const auto record = read_record(record_path(folder_, lower));
    if (record && record->process == ProcessState::running) return false;
  }
  return true;
}

std::string RecordExchange::records_here() const {
  std::string letter(1, records);
  const int here = places_[static_cast<std::size_t>(rank_)].first;
  for (std::size_t rank = 0; rank < places_.size(); ++rank) {
    if (places_[rank].first != here) continue;
    const auto path = record_path(folder_, static_cast<int>(rank));
    const auto record = read_record(path);
    const auto bytes = copy_of_record(path);
    if (!record || !bytes) continue;
    letter += static_cast<char>(record->process);
    letter.append(reinterpret_cast<const char*>(&*bytes), sizeof(RecordLayout));
  }
  return letter;
}

/// Takes the records of a computer from its answer.
void RecordExchange::take(const std::string& letter) {
  std::vector<RankRecord> found;
  for (std::size_t at = 0; at + bytes_of_record <= letter.size(); at += bytes_of_record) {
    RecordLayout bytes;
    std::memcpy(&bytes, letter.data() + at + 1, sizeof bytes);
    auto record = parse_record(bytes);
    if (!record || static_cast<std::size_t>(record->rank) >= places_.size()) continue;
    const auto state = static_cast<unsigned char>(letter[at]);
    if (state <= static_cast<unsigned char>(ProcessState::unknown))
      record->process = static_cast<ProcessState>(state);
    keep_copy(record_path(folder_, record->rank),
              std::string_view(letter).substr(at + 1, sizeof bytes));
    found.push_back(std::move(*record));
  }
  if (!found.empty())
    answers_[places_[static_cast<std::size_t>(found.front().rank)].first] = std::move(found);
}

std::vector<RankRecord> RecordExchange::collect(std::chrono::milliseconds patience) {
  const std::lock_guard lock(mutex_);
  auto all = read_records(folder_);
  const int here = places_[static_cast<std::size_t>(rank_)].first;
  const auto first_of = [&](int rank) { return places_[static_cast<std::size_t>(rank)].first; };
  answers_.clear();
  if (mailbox_)
    for (std::size_t rank = 0; rank < places_.size(); ++rank)
      if (places_[rank].first != here)
        mailbox_->send(static_cast<int>(rank), std::string_view(&ask, 1));
  const auto end = Clock::now() + patience;
  while (mailbox_ && answers_.size() < others_.size() && Clock::now() < end) {
    while (const auto letter = mailbox_->fetch())
      handle(*letter);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  // What a computer itself says of its ranks is better than what a shared folder shows of them.
  std::erase_if(all, [&](const RankRecord& r) { return answers_.contains(first_of(r.rank)); });
  for (auto& [first, answered] : answers_)
    std::ranges::move(answered, std::back_inserter(all));
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (first_of(rank) == here || answers_.contains(first_of(rank))) continue;
    auto known = std::ranges::find(all, rank, &RankRecord::rank);
    if (known == all.end()) {
      known = all.insert(all.end(), RankRecord());
      known->rank = rank;
      known->size = static_cast<int>(places_.size());
    }
    known->id.host = places_[i].host;
    known->silent = true;
  }
  std::ranges::sort(all, {}, &RankRecord::rank);
  return all;
}

void RecordExchange::tell_reported() {
  const std::lock_guard lock(mutex_);
  if (!mailbox_) return;
  const int here = places_[static_cast<std::size_t>(rank_)].first;
  for (std::size_t rank = 0; rank < places_.size(); ++rank)
    if (places_[rank].first != here)
      mailbox_->send(static_cast<int>(rank), std::string_view(&reported, 1));
}

bool RecordExchange::reported_elsewhere() {
  serve();
  return reported_;
}

bool RecordExchange::await_turn() {
  const int here = places_[static_cast<std::size_t>(rank_)].first;
  const auto before = std::ranges::count_if(others_, [&](int first) { return first < here; });
  const auto end = Clock::now() + std::chrono::seconds(2) * std::min<std::ptrdiff_t>(before, 2);
  while (!reported_elsewhere() && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return !reported_;
}

}  // namespace sluice
