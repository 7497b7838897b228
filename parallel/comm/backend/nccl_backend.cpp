#include "parallel/comm/backend/nccl_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/stream_handle.h"
#include "parallel/comm/backend/host_backend.h"
#include "parallel/comm/backend/nccl_communicator.h"

namespace sluice {
namespace {

/// The most sends and receives in one NCCL group. A longer list could be split only if all ranks
/// split theirs alike, which a rank cannot know.
constexpr std::size_t largest_group = 255;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i16:
    case DType::u8:
    case DType::i8:
      break;
  }
  fail(fmt::format("numbers of type {} cannot be reduced", name_of(dtype)));
}

/// Returns true if the parts follow each other in rank order and have the same size.
bool are_even(const std::vector<Part>& parts) {
  for (std::size_t i = 1; i < parts.size(); ++i)
    if (parts[i].count != parts[0].count ||
        parts[i].offset != parts[0].offset + static_cast<std::int64_t>(i) * parts[0].count)
      return false;
  return true;
}

class NcclWork final : public Work, private LaneEntry {
 public:
  NcclWork(std::shared_ptr<NcclCommunicator> group, const CollectiveCall& call)
      : LaneEntry(group.get()),
        group_(std::move(group)),
        call_(call),
        written_(group_->take_event()),
        done_(group_->take_event()) {
    group_->runtime.record(written_, call_.stream);
    group_->lane->waiting.push_back(this);
    ++group_->unfinished;
  }
  /// An operation that is dropped early stays unfinished: other ranks wait for it, so the group
  /// must be aborted. One that was joined may be over without anybody having asked.
  ~NcclWork() override {
    std::erase(group_->lane->waiting, static_cast<LaneEntry*>(this));
    if (!over_ && !was_reached()) return;
    --group_->unfinished;
    group_->give_back({written_, done_});
  }

  /// Gives the operation to NCCL, which accepts it asynchronously; returns true once it has.
  bool issue() override {
    if (!asked_) {
      group_->runtime.wait(group_->stream, written_);
      ask();
      asked_ = true;
    }
    if (!group_->ready()) return false;
    if (padded_ > 0) unpack();
    group_->runtime.record(done_, group_->stream);
    return issued_ = true;
  }

  bool advance() override {
    if (over_) return true;
    group_->lane->drive();
    group_->ready();  // throws if another rank has failed
    return over_ = issued_ && group_->runtime.reached(done_);
  }
  bool joinable() const override { return issued_; }
  void join() override { group_->runtime.wait(call_.stream, done_); }

 private:
  bool was_reached() const {
    try {
      return issued_ && group_->runtime.reached(done_);
    } catch (const Error&) {  // a GPU that failed is being reported already
      return false;
    }
  }
  /// Makes the body's calls as one NCCL group. NCCL counts open groups per thread, so this one is
  /// always closed.
  template <class Body>
  void together(Body&& body) {
    const NcclLibrary& nccl = group_->nccl;
    group_->accept(nccl.group_start());
    try {
      body();
    } catch (...) {
      nccl.group_end();
      throw;
    }
    group_->accept(nccl.group_end());
  }
  std::byte* at(std::int64_t element) const {
    return call_.data.address + element * static_cast<std::int64_t>(size_of(call_.data.dtype));
  }
  std::size_t bytes_of(std::int64_t count) const {
    return static_cast<std::size_t>(count) * size_of(call_.data.dtype);
  }
  void send(int peer, const std::byte* from, std::size_t bytes) {
    if (bytes == 0) return;
    group_->accept(group_->nccl.send(from, bytes, ncclUint8, peer, group_->comm, handle_));
  }
  void receive(int peer, std::byte* to, std::size_t bytes) {
    if (bytes == 0) return;
    group_->accept(group_->nccl.recv(to, bytes, ncclUint8, peer, group_->comm, handle_));
  }

  // NCCL's reduce-scatter and all-gather want parts of one size. Others are copied to slots of one
  // size in the scratch memory, and back. The lane does all copies in order, so that operations can
  // share the slots.

  std::byte* slot(int rank) const {
    return call_.scratch.address + static_cast<std::size_t>(rank) * bytes_of(padded_);
  }
  void pack(int rank) {
    const auto& [offset, count] = call_.parts[static_cast<std::size_t>(rank)];
    group_->runtime.copy_within(slot(rank), at(offset), bytes_of(count), group_->stream);
  }
  void unpack(int rank) {
    const auto& [offset, count] = call_.parts[static_cast<std::size_t>(rank)];
    group_->runtime.copy_within(at(offset), slot(rank), bytes_of(count), group_->stream);
  }
  /// Copies the results: this rank's sums, or the parts of the other ranks.
  void unpack() {
    if (call_.kind == Collective::reduce_scatter) return unpack(group_->rank);
    for (int rank = 0; rank < group_->ranks; ++rank)
      if (rank != group_->rank) unpack(rank);
  }

  /// The number of sends, receives or collective operations in the NCCL group of this operation.
  std::size_t messages() const {
    switch (call_.kind) {
      case Collective::p2p:
        return call_.transfers.size();
      case Collective::gather:
      case Collective::scatter:
        return static_cast<std::size_t>(group_->rank == call_.root ? group_->ranks : 1);
      case Collective::reduce_scatter:
      case Collective::all_gather:
        return padded_ > 0 || are_even(call_.parts) ? 1 : call_.parts.size();
      default:
        return 1;
    }
  }

  void ask() {
    if (call_.kind != Collective::p2p && call_.data.size() == 0) return;
    handle_ = cuda::stream_handle(group_->stream);  // also selects the GPU
    if (!call_.parts.empty() && !are_even(call_.parts) &&
        call_.scratch.size() >= padded_bytes(call_.parts, call_.data.dtype))
      padded_ = padded_count(call_.parts);
    if (messages() > largest_group)
      fail(fmt::format("{} of more than {} messages is too much for NCCL at once; use staged",
                       name_of(call_.kind), largest_group));
    switch (call_.kind) {
      case Collective::all_reduce:
      case Collective::reduce:
      case Collective::reduce_scatter:
        return ask_to_reduce();
      case Collective::gather:
      case Collective::scatter:
        return ask_the_root();
      case Collective::broadcast:
        return ask_to_broadcast();
      case Collective::all_gather:
        return ask_to_gather();
      case Collective::p2p:
        return together([&] {
          for (const auto& [sends, peer, data] : call_.transfers) {
            const std::size_t bytes = static_cast<std::size_t>(data.size()) * size_of(data.dtype);
            sends ? send(peer, data.address, bytes) : receive(peer, data.address, bytes);
          }
        });
      case Collective::barrier:
      case Collective::split:
        fail("a barrier has no GPU memory to work on");
    }
  }

  void ask_to_reduce() {
    const NcclLibrary& nccl = group_->nccl;
    const ncclDataType_t type = type_of(call_.data.dtype);
    const ncclRedOp_t op = call_.op == ReduceOp::sum ? ncclSum : ncclMax;
    const auto count = static_cast<std::size_t>(call_.data.size());
    if (call_.kind == Collective::all_reduce)
      return group_->accept(nccl.all_reduce(at(0), at(0), count, type, op, group_->comm, handle_));
    if (call_.kind == Collective::reduce)
      return group_->accept(
          nccl.reduce(at(0), at(0), count, type, op, call_.root, group_->comm, handle_));
    const auto& parts = call_.parts;
    if (padded_ > 0) {
      for (int rank = 0; rank < group_->ranks; ++rank)
        pack(rank);
      return group_->accept(nccl.reduce_scatter(slot(0), slot(group_->rank),
                                                static_cast<std::size_t>(padded_), type, op,
                                                group_->comm, handle_));
    }
    if (are_even(parts)) {
      const Part& mine = parts[static_cast<std::size_t>(group_->rank)];
      return group_->accept(nccl.reduce_scatter(at(parts[0].offset), at(mine.offset),
                                                static_cast<std::size_t>(mine.count), type, op,
                                                group_->comm, handle_));
    }
    together([&] {
      for (std::size_t root = 0; root < parts.size(); ++root) {
        std::byte* const part = at(parts[root].offset);
        if (parts[root].count > 0)
          group_->accept(nccl.reduce(part, part, static_cast<std::size_t>(parts[root].count), type,
                                     op, static_cast<int>(root), group_->comm, handle_));
      }
    });
  }

  void ask_to_broadcast() {
    const std::size_t bytes = bytes_of(call_.data.size());
    // Two ranks, such as stages of a pipeline, need no ring.
    if (group_->ranks == 2)
      return group_->rank == call_.root ? send(1 - call_.root, at(0), bytes)
                                        : receive(call_.root, at(0), bytes);
    group_->accept(
        group_->nccl.broadcast(at(0), at(0), bytes, ncclUint8, call_.root, group_->comm, handle_));
  }

  void ask_to_gather() {
    const NcclLibrary& nccl = group_->nccl;
    const auto& parts = call_.parts;
    if (padded_ > 0) {
      pack(group_->rank);
      return group_->accept(nccl.all_gather(slot(group_->rank), slot(0), bytes_of(padded_),
                                            ncclUint8, group_->comm, handle_));
    }
    if (are_even(parts)) {
      const Part& mine = parts[static_cast<std::size_t>(group_->rank)];
      return group_->accept(nccl.all_gather(at(mine.offset), at(parts[0].offset),
                                            bytes_of(mine.count), ncclUint8, group_->comm,
                                            handle_));
    }
    together([&] {
      for (std::size_t root = 0; root < parts.size(); ++root) {
        std::byte* const part = at(parts[root].offset);
        if (parts[root].count > 0)
          group_->accept(nccl.broadcast(part, part, bytes_of(parts[root].count), ncclUint8,
                                        static_cast<int>(root), group_->comm, handle_));
      }
    });
  }

  void ask_the_root() {
    const std::size_t bytes = bytes_of(call_.data.size());
    const bool gathers = call_.kind == Collective::gather;
    if (group_->rank != call_.root)
      return together(
          [&] { gathers ? send(call_.root, at(0), bytes) : receive(call_.root, at(0), bytes); });
    const auto of = [&](int rank) {
      return call_.all.address + static_cast<std::size_t>(rank) * bytes;
    };
    if (gathers)
      group_->runtime.copy_within(of(group_->rank), at(0), bytes, group_->stream);
    else
      group_->runtime.copy_within(at(0), of(group_->rank), bytes, group_->stream);
    together([&] {
      for (int peer = 0; peer < group_->ranks; ++peer) {
        if (peer == group_->rank) continue;
        gathers ? receive(peer, of(peer), bytes) : send(peer, of(peer), bytes);
      }
    });
  }

  std::shared_ptr<NcclCommunicator> group_;
  CollectiveCall call_;
  Event written_, done_;
  cudaStream_t handle_ = nullptr;
  std::int64_t padded_ = 0;  ///< elements in a slot; 0: the operation needs no slots
  bool asked_ = false, issued_ = false, over_ = false;
};

}  // namespace

/// Operations that were dropped early outlive it, but the communicator ends with it.
class NcclConnection {
 public:
  explicit NcclConnection(std::shared_ptr<NcclCommunicator> group) : group_(std::move(group)) {}
  ~NcclConnection() { group_->close(); }
  NcclConnection(const NcclConnection&) = delete;
  NcclConnection& operator=(const NcclConnection&) = delete;

  const std::shared_ptr<NcclCommunicator>& group() const { return group_; }

 private:
  std::shared_ptr<NcclCommunicator> group_;
};

namespace {

class NcclBackend final : public Backend {
 public:
  NcclBackend(std::shared_ptr<Transport> transport, std::shared_ptr<NcclConnection> connection)
      : host_(make_host_backend(std::move(transport))), connection_(std::move(connection)) {}

  std::string_view name() const override { return "nccl"; }
  bool one_at_a_time() const override { return true; }
  std::unique_ptr<Work> start(const CollectiveCall& call, int tag) override {
    if (call.stream.device.kind != DeviceKind::cuda) return host_->start(call, tag);
    auto work = std::make_unique<NcclWork>(connection_->group(), call);
    connection_->group()->lane->drive();
    return work;
  }

 private:
  std::unique_ptr<Backend> host_;
  std::shared_ptr<NcclConnection> connection_;
};

}  // namespace

std::string loaded_nccl() {
  return nccl_library().version;
}

std::shared_ptr<NcclConnection> connect_nccl(
    const Transport& transport, const DevicePtr& device, double timeout,
    const std::function<std::string(const std::string&)>& from_first) {
  return std::make_shared<NcclConnection>(
      std::make_shared<NcclCommunicator>(transport, device, timeout, from_first));
}

std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Transport> transport,
                                           std::shared_ptr<NcclConnection> connection) {
  return std::make_unique<NcclBackend>(std::move(transport), std::move(connection));
}

}  // namespace sluice
