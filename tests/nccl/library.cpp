// A stand-in for libnccl.so.2 on the emulated GPU: it does what NCCL's documentation promises and
// no more, as late as it may, and refuses what the documentation forbids. Ranks are threads or
// processes of one computer. SLUICE_NCCL_STANDIN has its options, such as "seed=3 resident=1".

#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/nccl/kernel.h"

namespace sluice::nccl_standin {
namespace {

struct Options {
  std::uint64_t seed = 1;
  int resident = 1000;  ///< kernels that a GPU runs at a time: they occupy it while they wait
  int polls = 5;        ///< most calls of ncclCommGetAsyncError that answer "in progress"
  int fail_rank = -1, fail_call = -1;  ///< this rank's communicators fail after so many calls
  int never_joins = -1;                ///< this rank does not connect
  int wrong_call = -1;                 ///< this call of rank 0 has a wrong result
  int memory = 1 << 20;                ///< bytes for collectives, and for each peer of messages
  int lost_call = -1;                  ///< this call of rank 0 is not carried out
  std::string folder = "/dev/shm";     ///< where ranks meet
};

Options options() {
  static const std::set<std::string> known{"seed",      "resident",   "polls",
                                           "fail_rank", "fail_call",  "never_joins",
                                           "memory",    "wrong_call", "lost_call"};
  Options o;
  const char* given = std::getenv("SLUICE_NCCL_STANDIN");
  std::istringstream words(given != nullptr ? given : "");
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name == "folder") {
      o.folder = word.substr(equals + 1);
      continue;
    }
    if (!known.contains(name)) {
      std::fprintf(stderr, "SLUICE_NCCL_STANDIN: '%s' is no option of the stand-in for NCCL\n",
                   word.c_str());
      std::abort();
    }
    const int value = std::stoi(word.substr(equals + 1));
    if (name == "seed") o.seed = static_cast<std::uint64_t>(value);
    if (name == "resident") o.resident = value;
    if (name == "polls") o.polls = value;
    if (name == "fail_rank") o.fail_rank = value;
    if (name == "fail_call") o.fail_call = value;
    if (name == "never_joins") o.never_joins = value;
    if (name == "wrong_call") o.wrong_call = value;
    if (name == "memory") o.memory = value;
    if (name == "lost_call") o.lost_call = value;
  }
  return o;
}

thread_local std::string last_error;

}  // namespace
}  // namespace sluice::nccl_standin

using namespace sluice::nccl_standin;

struct ncclComm {
  enum class Phase { connecting, ready, launching, finalizing, finalized, destroyed };

  std::shared_ptr<Shared> shared;
  Options options;
  std::uint64_t random;
  Phase phase = Phase::connecting;
  int polls = 0;  ///< that will still answer "in progress"
  int calls = 0;
  std::uint64_t collectives = 0;                   ///< so far
  std::map<std::pair<bool, int>, int> messages{};  ///< so far, by direction (true: sent) and peer
  std::set<int> connected{};  ///< peers of messages so far; -1: for collectives
  DeviceMemory memory{};
  std::function<void()> launch{};

  /// The first operation of its kind takes memory.
  void connect(int to, cudaStream_t stream) {
    if (connected.insert(to).second) memory.take(stream, static_cast<std::size_t>(options.memory));
  }
  int draw(int most) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<int>((random >> 16) % (static_cast<std::uint64_t>(most) + 1));
  }
  void begin(Phase next) {
    phase = next;
    polls = draw(options.polls);
  }
};

namespace {

thread_local int depth = 0;
thread_local std::vector<std::pair<ncclComm*, std::pair<Operation, cudaStream_t>>> group;

ncclResult_t refuse(ncclResult_t result, const std::string& text) {
  last_error = text;
  return result;
}

/// Gives a communicator's operations to its GPU, as one kernel.
void launch(ncclComm& comm, const std::vector<Operation>& operations, cudaStream_t stream) {
  std::vector<Task> tasks;
  for (const Operation& operation : operations) {
    const bool sends = operation.kind == Kind::send;
    const int rank = comm.shared->rank, peer = operation.root;
    comm.connect(operation.is_message() ? peer : -1, stream);
    std::string name = "c";
    if (operation.is_message())
      name = "m" + std::to_string(sends ? rank : peer) + "-" + std::to_string(sends ? peer : rank) +
             "-" + std::to_string(comm.messages[{sends, peer}]++);
    else
      name += std::to_string(comm.collectives++);
    tasks.push_back({operation, name});
  }
  const bool first = comm.shared->rank == 0;
  if (first && comm.calls == comm.options.lost_call) return;
  launch(comm.shared, std::move(tasks), stream, comm.options.resident,
         first && comm.calls == comm.options.wrong_call);
}

ncclResult_t flush() {
  const auto calls = std::exchange(group, {});
  std::map<ncclComm*, std::pair<std::vector<Operation>, cudaStream_t>> by_communicator;
  for (const auto& [comm, call] : calls) {
    by_communicator[comm].first.push_back(call.first);
    by_communicator[comm].second = call.second;
  }
  for (auto& [comm, call] : by_communicator) {
    ++comm->calls;
    comm->begin(ncclComm::Phase::launching);
    comm->launch = [to = comm, made = call] { launch(*to, made.first, made.second); };
  }
  return by_communicator.empty() ? ncclSuccess : ncclInProgress;
}

ncclResult_t call(ncclComm* comm, const Operation& operation, cudaStream_t stream) {
  if (comm == nullptr || comm->phase == ncclComm::Phase::destroyed)
    return refuse(ncclInvalidArgument, "a communicator was used after its end");
  if (comm->phase != ncclComm::Phase::ready)
    return refuse(ncclInvalidUsage, "a communicator was used while a call was in progress");
  const std::string fault = fault_of(operation, comm->shared->rank, comm->shared->ranks);
  if (!fault.empty()) return refuse(ncclInvalidUsage, fault);
  group.push_back({comm, {operation, stream}});
  return depth > 0 ? ncclSuccess : flush();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION(2, 18, 0);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const std::string folder = new_folder(options().folder);
  if (folder.size() >= sizeof id->internal) return refuse(ncclInvalidUsage, "folder is too long");
  std::memcpy(id->internal, folder.c_str(), folder.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return refuse(ncclInvalidUsage, "the stand-in never blocks");
  const Options given = options();
  // All are kept, so that a use after the end is seen.
  static std::mutex mutex;
  static std::vector<std::unique_ptr<ncclComm>> all;
  const std::lock_guard lock(mutex);
  all.push_back(std::unique_ptr<ncclComm>(new ncclComm{
      .shared = std::make_shared<Shared>(MeetingPlace(id.internal), rank, ranks),
      .options = given,
      .random = (given.seed * 1000003 + static_cast<std::uint64_t>(rank) * 7919) * 2 + 1}));
  ncclComm* const made = all.back().get();
  made->begin(ncclComm::Phase::connecting);
  if (given.never_joins != rank) made->shared->place.leave(of_rank("joined", rank), {});
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm == nullptr || comm->phase == ncclComm::Phase::destroyed)
    return refuse(ncclInvalidArgument, "a communicator was asked after its end");
  Shared& shared = *comm->shared;
  *state = ncclSuccess;
  if (shared.rank == comm->options.fail_rank && comm->calls >= comm->options.fail_call) {
    shared.error = "the network is gone";
    shared.failed = true;
  }
  if (shared.failed) {
    last_error = shared.error;
    *state = ncclRemoteError;
    return ncclSuccess;
  }
  const auto all_have_left = [&](const char* what) {
    for (int peer = 0; peer < shared.ranks; ++peer)
      if (!shared.place.has(of_rank(what, peer))) return false;
    return true;
  };
  using Phase = ncclComm::Phase;
  const bool busy = comm->phase == Phase::connecting || comm->phase == Phase::launching ||
                    comm->phase == Phase::finalizing;
  if (!busy) return ncclSuccess;
  *state = ncclInProgress;
  if (comm->polls-- > 0) return ncclSuccess;
  if (comm->phase == Phase::connecting) {
    if (!all_have_left("joined")) return ncclSuccess;
    comm->phase = Phase::ready;
  } else if (comm->phase == Phase::launching) {
    std::exchange(comm->launch, {})();
    comm->phase = Phase::ready;
  } else {
    if (!all_have_left("finalized") || shared.unfinished > 0) return ncclSuccess;
    comm->phase = Phase::finalized;
  }
  *state = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->phase != ncclComm::Phase::ready)
    return refuse(ncclInvalidUsage, "a communicator was finalized while a call was in progress");
  comm->begin(ncclComm::Phase::finalizing);
  comm->shared->place.leave(of_rank("finalized", comm->shared->rank), {});
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->phase != ncclComm::Phase::finalized)
    return refuse(ncclInvalidUsage, "a communicator was destroyed before it was finalized");
  comm->phase = ncclComm::Phase::destroyed;
  comm->memory.give_back();
  comm->shared->place.leave(of_rank("destroyed", comm->shared->rank), {});
  for (int peer = 0; peer < comm->shared->ranks; ++peer)
    if (!comm->shared->place.has(of_rank("destroyed", peer))) return ncclSuccess;
  comm->shared->place.remove_all();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->shared->aborted = true;
  comm->memory.give_back();
  comm->phase = ncclComm::Phase::destroyed;
  comm->shared->place.remove_all();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "invalid usage";
}

const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::all_reduce, in, out, count, type, op, -1}, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::reduce, in, out, count, type, op, root}, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::broadcast, in, out, count, type, ncclSum, root}, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::all_gather, in, out, count, type, ncclSum, -1}, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::reduce_scatter, in, out, count, type, op, -1}, stream);
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {Kind::send, in, nullptr, count, type, ncclSum, peer}, stream);
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {Kind::receive, nullptr, out, count, type, ncclSum, peer}, stream);
}
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (depth == 0) return refuse(ncclInvalidUsage, "a group was ended that nobody has begun");
  return --depth == 0 ? flush() : ncclSuccess;
}

}  // extern "C"
