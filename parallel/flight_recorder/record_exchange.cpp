#include "parallel/flight_recorder/record_exchange.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "parallel/flight_recorder/record_layout.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The first character of a letter says what it is. In a question and its answer a digit follows, by
// which an answer that comes late is told from one to a later question.
constexpr char asks = 'a', replies = 'r', reports = 's';
constexpr std::size_t bytes_of_head = 2;

/// How often the thread looks for letters.
constexpr auto period = 10ms;

/// A record on its way: the state of its process, which only its own host knows, and its bytes.
constexpr std::size_t bytes_of_record = 1 + sizeof(RecordLayout);

/// Keeps a copy for people, unless the file is there: hosts may share the folder.
void keep_copy(const fs::path& path, std::string_view bytes) {
  std::error_code error;
  if (fs::exists(path, error)) return;
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Returns true if no lower rank of the list is able to answer for their host.
bool lowest_that_runs(int rank, const std::vector<int>& beside, const fs::path& folder) {
  return std::ranges::none_of(beside, [&](int other) {
    if (other >= rank) return false;
    const auto record = read_record(record_path(folder, other));
    return record && record->outcome == RankRecord::Outcome::none &&
           record->process == ProcessState::running;
  });
}

std::string letter_of_records(char question, const std::vector<int>& ranks,
                              const fs::path& folder) {
  std::string letter{replies, question};
  for (const int rank : ranks) {
    const auto path = record_path(folder, rank);
    const auto record = read_record(path);
    const auto bytes = copy_of_record(path);
    if (!record || !bytes) continue;
    letter += static_cast<char>(record->process);
    letter.append(reinterpret_cast<const char*>(&*bytes), sizeof(RecordLayout));
  }
  return letter;
}

}  // namespace

/// What the thread and those who ask have in common. No lock is held during a call of the mailbox.
struct RecordExchange::Letters {
  std::unique_ptr<Mailbox> mailbox;
  fs::path folder;
  int rank = 0;
  std::vector<int> beside, elsewhere;  ///< the ranks of this host and of the others
  std::vector<int> first_of;           ///< the first rank of each rank's host

  std::mutex mutex;  ///< of the members below
  std::condition_variable changed;
  bool stop = false, stopped = false;
  bool has_reported = false;           ///< another host
  std::vector<std::string> to_send;    ///< letters to all elsewhere
  char question = '0';                 ///< the last one
  std::map<int, std::string> answers;  ///< to the last question, by the host's first rank

  void run() {
    std::unique_lock lock(mutex);
    while (!stop) {
      const auto letters = std::exchange(to_send, {});
      lock.unlock();
      for (const std::string& letter : letters)
        for (const int other : elsewhere)
          mailbox->send(other, letter);
      while (auto letter = mailbox->fetch())
        take(std::move(*letter));
      lock.lock();
      changed.notify_all();
      changed.wait_for(lock, period, [this] { return stop || !to_send.empty(); });
    }
    stopped = true;
    changed.notify_all();
  }

  void take(Mailbox::Letter letter) {
    if (letter.text.size() < bytes_of_head) return;
    const char kind = letter.text[0], number = letter.text[1];
    if (kind == asks && lowest_that_runs(rank, beside, folder))
      mailbox->send(letter.from, letter_of_records(number, beside, folder));
    const std::lock_guard lock(mutex);
    if (kind == replies && number == question && letter.from >= 0 &&
        letter.from < static_cast<int>(first_of.size()))
      answers[first_of[static_cast<std::size_t>(letter.from)]] = std::move(letter.text);
    if (kind == reports) has_reported = true;
  }
};

RecordExchange::RecordExchange(std::unique_ptr<Mailbox> mailbox, fs::path folder, int rank,
                               std::vector<RankPlace> places)
    : folder_(std::move(folder)),
      rank_(rank),
      places_(std::move(places)),
      letters_(std::make_shared<Letters>()) {
  for (int other = 0; other < static_cast<int>(places_.size()); ++other) {
    if (first_of(other) == other && other != here()) others_.push_back(other);
    (first_of(other) == here() ? letters_->beside : letters_->elsewhere).push_back(other);
    letters_->first_of.push_back(first_of(other));
  }
  letters_->mailbox = std::move(mailbox);
  letters_->folder = folder_;
  letters_->rank = rank_;
  letters_->stopped = !letters_->mailbox || !several_hosts();
  if (!letters_->stopped) std::thread([letters = letters_] { letters->run(); }).detach();
}

std::vector<int> RecordExchange::ranks_here() const {
  return letters_->beside;
}

RecordExchange::~RecordExchange() {
  std::unique_lock lock(letters_->mutex);
  letters_->stop = true;
  letters_->changed.notify_all();
  letters_->changed.wait_for(lock, 1s, [this] { return letters_->stopped; });
}

/// Returns the records of a host from its answer.
std::vector<RankRecord> RecordExchange::records_of(const std::string& letter) const {
  std::vector<RankRecord> found;
  for (std::size_t at = bytes_of_head; at + bytes_of_record <= letter.size();
       at += bytes_of_record) {
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
  return found;
}

std::vector<RankRecord> RecordExchange::collect(std::chrono::milliseconds patience) {
  auto all = read_records(folder_);
  std::map<int, std::string> answers;
  if (several_hosts()) {
    std::unique_lock lock(letters_->mutex);
    letters_->answers.clear();
    letters_->question =
        letters_->question == '9' ? '0' : static_cast<char>(letters_->question + 1);
    letters_->to_send.push_back({asks, letters_->question});
    letters_->changed.notify_all();
    letters_->changed.wait_for(lock, letters_->mailbox ? patience : 0ms,
                               [this] { return letters_->answers.size() >= others_.size(); });
    answers = letters_->answers;
  }
  std::map<int, std::vector<RankRecord>> answered;  // by the first rank of the host
  for (const auto& [first, letter] : answers)
    if (auto found = records_of(letter); !found.empty()) answered[first] = std::move(found);
  // What a host itself says of its ranks is better than what a shared folder shows of them.
  std::erase_if(all, [&](const RankRecord& r) { return answered.contains(first_of(r.rank)); });
  for (auto& [first, found] : answered)
    std::ranges::move(found, std::back_inserter(all));
  for (int rank = 0; rank < static_cast<int>(places_.size()); ++rank) {
    if (first_of(rank) == here() || answered.contains(first_of(rank))) continue;
    auto known = std::ranges::find(all, rank, &RankRecord::rank);
    if (known == all.end()) {
      known = all.insert(all.end(), RankRecord());
      known->rank = rank;
      known->size = static_cast<int>(places_.size());
    }
    known->id.host = places_[static_cast<std::size_t>(rank)].host;
    known->silent = true;
  }
  std::ranges::sort(all, {}, &RankRecord::rank);
  return all;
}

void RecordExchange::tell_reported() {
  if (!several_hosts()) return;
  {
    const std::lock_guard lock(letters_->mutex);
    letters_->to_send.push_back({reports, '0'});
    letters_->changed.notify_all();
  }
  // The caller is about to end the process, and MPI may have to connect the ranks first.
  std::this_thread::sleep_for(200ms);
}

bool RecordExchange::reported_elsewhere() const {
  const std::lock_guard lock(letters_->mutex);
  return letters_->has_reported;
}

bool RecordExchange::await_turn() {
  const auto before = std::ranges::count_if(others_, [&](int first) { return first < here(); });
  const auto end = Clock::now() + 2s * std::min<std::ptrdiff_t>(before, 2);
  std::unique_lock lock(letters_->mutex);
  letters_->changed.wait_until(lock, end, [this] { return letters_->has_reported; });
  return !letters_->has_reported;
}

}  // namespace sluice
