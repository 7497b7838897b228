#include "parallel/comm/transport/mpi_transport.h"

#include <fmt/format.h>
#include <sched.h>
#if SLUICE_HAS_MPI
#include <mpi.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "parallel/comm/transport/launcher.h"

namespace sluice {

int launched_rank() {
  return find_launch(std::getenv).rank;
}

#if !SLUICE_HAS_MPI

MpiProcess::MpiProcess() : uncaught_(0) {
  // All ranks come here. Rank 0 reports the error, and its end makes the launcher end the others.
  if (launched_rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  fail(
      "this program was started as one of several ranks but built without MPI; install "
      "libopenmpi-dev and openmpi-bin and build again, or start it alone",
      ErrorKind::usage);
}
MpiProcess::~MpiProcess() {
  static_cast<void>(uncaught_);
}
std::unique_ptr<Transport> MpiProcess::world() {
  return make_self_transport();
}
std::unique_ptr<Mailbox> MpiProcess::mailbox() {
  return nullptr;
}
std::string MpiProcess::library() {
  return {};
}
void MpiProcess::abort(int exit_code) {
  std::_Exit(exit_code);
}

#else

namespace {

void require(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(
      fmt::format("{} failed: {}", what, std::string_view(text, static_cast<std::size_t>(length))));
}

/// MPI counts bytes in int, so a longer message is sent in pieces of this size.
constexpr std::size_t longest_piece = std::size_t{1} << 30;

class MpiMessage final : public Message {
 public:
  /// `post`(offset, bytes, request) starts the message of one piece.
  template <class Post>
  MpiMessage(std::size_t bytes, bool received, Post&& post) : received_(received) {
    std::size_t at = 0;
    do {
      const std::size_t piece = std::min(longest_piece, bytes - at);
      pieces_.push_back({MPI_REQUEST_NULL, static_cast<int>(piece)});
      require(post(at, pieces_.back().bytes, &pieces_.back().request), "posting an MPI message");
      at += piece;
    } while (at < bytes);
  }
  /// A rank that fails drops its messages, and frees the memory that they arrive in. A message that
  /// is being sent cannot be taken back: a peer may still receive what is in its place.
  ~MpiMessage() override {
    for (; next_ < pieces_.size(); ++next_) {
      MPI_Request& request = pieces_[next_].request;
      if (request == MPI_REQUEST_NULL) continue;
      if (received_) MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  bool done() override {
    for (; next_ < pieces_.size(); ++next_) {
      int done = 0, bytes = 0;
      MPI_Status status;
      require(MPI_Test(&pieces_[next_].request, &done, &status), "an MPI message");
      if (done == 0) return false;
      if (!received_) continue;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      if (bytes != pieces_[next_].bytes)
        fail(fmt::format("a message of {} bytes came where {} were expected", bytes,
                         pieces_[next_].bytes));
    }
    return true;
  }

 private:
  struct Piece {
    MPI_Request request;
    int bytes;
  };
  std::vector<Piece> pieces_;
  std::size_t next_ = 0;
  bool received_;
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MPI_Comm communicator) : communicator_(communicator) {
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    MPI_Comm_rank(communicator, &rank_);
    MPI_Comm_size(communicator, &size_);
  }
  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MessagePtr send(int to, int tag, std::span<const std::byte> bytes) override {
    return std::make_unique<MpiMessage>(
        bytes.size(), false, [&](std::size_t at, int piece, MPI_Request* request) {
          return MPI_Isend(bytes.data() + at, piece, MPI_BYTE, to, tag, communicator_, request);
        });
  }
  MessagePtr receive(int from, int tag, std::span<std::byte> bytes) override {
    return std::make_unique<MpiMessage>(
        bytes.size(), true, [&](std::size_t at, int piece, MPI_Request* request) {
          return MPI_Irecv(bytes.data() + at, piece, MPI_BYTE, from, tag, communicator_, request);
        });
  }
  std::unique_ptr<Transport> subgroup(std::span<const int> members, std::uint64_t id) override {
    MPI_Group all, some;
    require(MPI_Comm_group(communicator_, &all), "MPI_Comm_group");
    require(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some),
            "MPI_Group_incl");
    MPI_Comm communicator = MPI_COMM_NULL;
    require(MPI_Comm_create_group(communicator_, some, static_cast<int>(id % 32768), &communicator),
            "MPI_Comm_create_group");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    // Communicators are freed by MPI_Finalize only: there are few, and they live that long anyway.
    return std::make_unique<MpiTransport>(communicator);
  }

 private:
  MPI_Comm communicator_;
  int rank_ = 0;
  int size_ = 1;
};

/// Letters of any size from any rank. Codes of errors are ignored: a letter is lost then.
class MpiMailbox final : public Mailbox {
 public:
  explicit MpiMailbox(MPI_Comm communicator) : communicator_(communicator) {
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  }
  /// A letter under way cannot be taken back: MPI may read it until the process ends.
  ~MpiMailbox() override {
    if (!sent_.empty()) static_cast<void>(new std::list<Sent>(std::move(sent_)));
  }

  void send(int to, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    Sent& sent = sent_.emplace_back();
    sent.text = text;
    if (MPI_Isend(sent.text.data(), static_cast<int>(sent.text.size()), MPI_BYTE, to, 0,
                  communicator_, &sent.request) != MPI_SUCCESS)
      sent_.pop_back();
  }

  std::optional<Letter> fetch() override {
    const std::lock_guard lock(mutex_);
    int some = 0, bytes = 0;
    MPI_Message message;
    MPI_Status status;
    std::erase_if(sent_, [](Sent& each) {
      int done = 0;
      return MPI_Test(&each.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
    });
    if (MPI_Improbe(MPI_ANY_SOURCE, 0, communicator_, &some, &message, &status) != MPI_SUCCESS ||
        some == 0)
      return std::nullopt;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    Letter letter{.from = status.MPI_SOURCE,
                  .text = std::string(static_cast<std::size_t>(bytes), '\0')};
    if (MPI_Mrecv(letter.text.data(), bytes, MPI_BYTE, &message, &status) != MPI_SUCCESS)
      return std::nullopt;
    return letter;
  }

 private:
  struct Sent {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  MPI_Comm communicator_;
  std::mutex mutex_;
  std::list<Sent> sent_;  ///< what MPI may still read; a list, so that a text keeps its address
};

/// Ends with an error where ranks do not know of each other: each would do the whole work.
void refuse_wrongly_alone(const Launch& launch) {
  const std::string why = wrongly_alone(launch, MpiProcess::library());
  if (why.empty()) return;
  int started = 0;
  MPI_Initialized(&started);
  if (started != 0) MPI_Finalize();
  // The first to say so makes most launchers end the others.
  if (launch.rank > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  fail(why, ErrorKind::usage);
}

/// Returns the cores that this rank may use, divided by the ranks of `local` that may use the same.
int share_of_cores(MPI_Comm local, int ranks) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  std::vector<cpu_set_t> all(static_cast<std::size_t>(ranks));
  require(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, local),
          "MPI_Allgather");
  const auto together = std::ranges::count_if(
      all, [&](const cpu_set_t& other) { return CPU_EQUAL(&other, &mine) != 0; });
  return std::max(1, CPU_COUNT(&mine) / static_cast<int>(together));
}

}  // namespace

MpiProcess::MpiProcess() : uncaught_(std::uncaught_exceptions()) {
  const Launch launch = find_launch(std::getenv);
#ifdef OPEN_MPI
  // Under srun MPI_Init() would explain at length that it finds no PMI, and end the process.
  if (!launch.pmi) refuse_wrongly_alone(launch);
#endif
#ifdef MPICH_VERSION
  setenv("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1", 0);  // the program has said why
#endif
  int provided = 0;
  require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  // keep_alive() sends from another thread while the main one works.
  if (provided < MPI_THREAD_SERIALIZED)
    fail("this MPI lets only the main thread call it; take one that was built with threads");
  threads_ = provided == MPI_THREAD_MULTIPLE;
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) refuse_wrongly_alone(launch);
  MPI_Comm local = MPI_COMM_NULL;
  require(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local),
          "MPI_Comm_split_type");
  local_ = std::make_unique<MpiTransport>(local);
  local_rank_ = local_->rank();
  local_size_ = local_->size();
  // Open MPI binds each of up to two ranks to one core. Rank 0 decides for the hosts alike.
  int widen = rank == 0 && has_default_binding(std::getenv, parent_command()) ? 1 : 0;
  require(MPI_Bcast(&widen, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
  if (widen != 0) widen_binding(local_size_);
  cores_ = share_of_cores(local, local_size_);
}

MpiProcess::~MpiProcess() {
#ifdef MPICH_VERSION
  // MPICH's launcher would return 9 for the ranks that it kills, in place of this rank's exit code.
  // It drops what it has not yet read of this rank's output.
  if (exit_code_ != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    abort(exit_code_);
  }
#endif
  if (exit_code_ == 0 && std::uncaught_exceptions() == uncaught_) MPI_Finalize();
}

std::unique_ptr<Transport> MpiProcess::world() {
  MPI_Comm communicator = MPI_COMM_NULL;
  require(MPI_Comm_dup(MPI_COMM_WORLD, &communicator), "MPI_Comm_dup");
  return std::make_unique<MpiTransport>(communicator);
}

std::unique_ptr<Mailbox> MpiProcess::mailbox() {
  if (!threads_) return nullptr;
  MPI_Comm communicator = MPI_COMM_NULL;
  require(MPI_Comm_dup(MPI_COMM_WORLD, &communicator), "MPI_Comm_dup");
  return std::make_unique<MpiMailbox>(communicator);
}

std::string MpiProcess::library() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  // MPICH goes on with lines of its configuration.
  return text.substr(0, std::min(text.find_first_of(std::string_view("\n\0", 2)), std::size_t{80}));
}

void MpiProcess::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

#endif

}  // namespace sluice
