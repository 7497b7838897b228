#include "parallel/comm/backend/staged_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "engine/host_memory.h"
#include "parallel/comm/backend/host_backend.h"

namespace sluice {
namespace {

constexpr int buffers = 4;

std::size_t byte_count(const View& view) {
  return static_cast<std::size_t>(view.size()) * size_of(view.dtype);
}

/// Rounds up to 64 bytes, so that each array in a buffer is aligned for SIMD instructions.
std::size_t padded(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// Returns the bytes that a call takes in a buffer. Except for p2p they are equal on all ranks, so
/// that all ranks refuse a call that is too large.
std::size_t staged_bytes(const CollectiveCall& call, int ranks) {
  std::size_t bytes = 0;
  switch (call.kind) {
    case Collective::barrier:
    case Collective::split:
      return 0;
    case Collective::p2p:
      for (const Transfer& transfer : call.transfers)
        bytes += padded(byte_count(transfer.data));
      return bytes;
    case Collective::gather:
    case Collective::scatter:
      return padded(byte_count(call.data)) +
             byte_count(call.data) * static_cast<std::size_t>(ranks);
    default:
      return byte_count(call.data);
  }
}

/// Returns the bytes of scratch memory that the host backend needs for a reduction.
std::int64_t scratch_of(const CollectiveCall& call, int ranks) {
  const auto with = [&](const std::vector<Part>& parts) {
    return scratch_bytes(parts, call.data.dtype);
  };
  if (call.kind == Collective::reduce_scatter) return with(call.parts);
  if (call.kind == Collective::reduce) return with(equal_parts(call.data.size(), ranks));
  if (call.kind == Collective::all_reduce) return with(even_parts(call.data.size(), ranks));
  return 0;
}

/// A range of the caller's memory and its place in a buffer.
struct Piece {
  std::byte* device;
  std::byte* host;
  std::size_t bytes;
};

/// The ranges that are copied to the host before an operation, and those copied back after it.
class Route {
 public:
  Route(CollectiveCall& call, std::byte* buffer, int rank, int ranks)
      : call_(call), buffer_(buffer), parts_(call.parts), rank_(rank), alone_(ranks == 1) {
    device_ = call.data;
    if (call.kind == Collective::p2p) {
      route_transfers();
      return;
    }
    call.data.address = buffer;
    std::byte* const all = call.all.address;
    if (all != nullptr) call.all.address = buffer + padded(byte_count(device_));
    route_data();
    if (all == nullptr) return;
    auto& whole = call.kind == Collective::gather ? up : down;
    whole.push_back({all, call.all.address, byte_count(call.all)});
  }

  std::vector<Piece> down, up;

 private:
  void route_data() {
    const Part whole{0, device_.size()};
    const bool root = call_.root == rank_;
    switch (call_.kind) {
      case Collective::all_reduce:
        if (alone_) return;
        add(down, whole);
        return add(up, whole);
      case Collective::reduce:
        if (alone_) return;
        add(down, whole);
        if (root) add(up, whole);
        return;
      case Collective::broadcast:
        if (!alone_) add(root ? down : up, whole);
        return;
      case Collective::all_gather:
        for (int r = 0; r < static_cast<int>(parts_.size()); ++r)
          if (!alone_) add(r == rank_ ? down : up, parts_[static_cast<std::size_t>(r)]);
        return;
      case Collective::reduce_scatter:
        if (alone_) return;
        for (const Part& part : parts_)
          add(down, part);
        return add(up, parts_[static_cast<std::size_t>(rank_)]);
      case Collective::gather:
        return add(down, whole);
      case Collective::scatter:
        return add(up, whole);
      case Collective::barrier:
      case Collective::split:
      case Collective::p2p:
        return;
    }
  }

  void route_transfers() {
    std::byte* place = buffer_;
    for (Transfer& transfer : call_.transfers) {
      const Piece piece{transfer.data.address, place, byte_count(transfer.data)};
      if (piece.bytes > 0) (transfer.send ? down : up).push_back(piece);
      transfer.data.address = place;
      place += padded(piece.bytes);
    }
  }

  void add(std::vector<Piece>& pieces, const Part& part) {
    const std::size_t width = size_of(device_.dtype);
    const std::size_t offset = static_cast<std::size_t>(part.offset) * width;
    const std::size_t bytes = static_cast<std::size_t>(part.count) * width;
    if (bytes == 0) return;
    // Adjacent parts take one copy.
    if (!pieces.empty() && pieces.back().host + pieces.back().bytes == buffer_ + offset)
      pieces.back().bytes += bytes;
    else
      pieces.push_back({device_.address + offset, buffer_ + offset, bytes});
  }

  CollectiveCall& call_;
  std::byte* buffer_;
  const std::vector<Part> parts_;
  int rank_;
  bool alone_;
  View device_;
};

struct Buffer {
  PinnedBuffer memory{};
  bool taken = false;
  Event drained{};  ///< recorded after the copies of the last operation that used the buffer
  std::vector<std::byte> scratch{};
};

class StagedWork;

/// The state shared by the operations of a backend. They keep it alive, so that the memory outlasts
/// the copies of an operation that is dropped late.
class Staging {
 public:
  Staging(std::shared_ptr<Transport> transport, DevicePtr on, std::size_t largest_bytes)
      : device(std::move(on)),
        runtime(device->runtime()),
        host(make_host_backend(transport)),
        largest(largest_bytes),
        rank(transport->rank()),
        ranks(transport->size()),
        to_host(runtime.make_stream()),
        to_device(runtime.make_stream()) {
    // A single rank stages next to nothing.
    pool_.resize(ranks == 1 ? 1 : buffers);
    for (Buffer& buffer : pool_) {
      buffer.drained = runtime.make_event();
      buffer.memory = {device, largest};
    }
  }
  ~Staging() {
    try {
      runtime.synchronize(to_host);
      runtime.synchronize(to_device);
    } catch (const Error&) {  // the code that first saw the device fail has reported it
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Returns null, or a buffer that no copy uses any more.
  Buffer* take_buffer() {
    for (Buffer& buffer : pool_)
      if (!buffer.taken && runtime.reached(buffer.drained)) {
        buffer.taken = true;
        return &buffer;
      }
    return nullptr;
  }
  /// Frees a buffer once `last` has done all work queued so far.
  void give_back(Buffer& buffer, Stream last) {
    runtime.record(buffer.drained, last);
    buffer.taken = false;
  }

  Event take_event() {
    if (events_.empty()) return runtime.make_event();
    const Event event = events_.back();
    events_.pop_back();
    return event;
  }
  void give_back(Event event) { events_.push_back(event); }

  void drive();

  const DevicePtr device;
  Runtime& runtime;
  const std::unique_ptr<Backend> host;
  const std::size_t largest;
  const int rank, ranks;
  const Stream to_host, to_device;
  std::deque<StagedWork*> waiting;  ///< operations that the host backend has not been given yet

 private:
  std::vector<Buffer> pool_;
  std::vector<Event> events_;
};

class StagedWork final : public Work {
 public:
  StagedWork(std::shared_ptr<Staging> staging, CollectiveCall call, int tag)
      : staging_(std::move(staging)), call_(std::move(call)), stream_(call_.stream), tag_(tag) {
    written_ = staging_->take_event();
    fetched_ = staging_->take_event();
    delivered_ = staging_->take_event();
    staging_->runtime.record(written_, stream_);
    staging_->waiting.push_back(this);
  }
  ~StagedWork() override {
    try {
      std::erase(staging_->waiting, this);
      // Even if no code called wait(), later work in the stream must see what was copied back.
      StagedWork::join();
      work_.reset();  // its messages refer to the buffer
      if (buffer_ != nullptr) staging_->give_back(*buffer_, staging_->to_host);
      for (const Event event : {written_, fetched_, delivered_})
        staging_->give_back(event);
    } catch (const Error&) {  // as in Staging's destructor; what is not given back is lost
    }
  }

  /// Takes a buffer and starts to fill it; returns false if none is free.
  bool fetch() {
    if (buffer_ != nullptr) return true;
    buffer_ = staging_->take_buffer();
    if (buffer_ == nullptr) return false;
    Route route(call_, buffer_->memory.data(), staging_->rank, staging_->ranks);
    down_ = std::move(route.down);
    up_ = std::move(route.up);
    Runtime& runtime = staging_->runtime;
    if (!down_.empty()) {
      runtime.wait(staging_->to_host, written_);
      for (const Piece& piece : down_)
        runtime.copy_to_host(piece.host, piece.device, piece.bytes, staging_->to_host);
      runtime.record(fetched_, staging_->to_host);
    }
    return true;
  }
  bool fetched() const { return down_.empty() || staging_->runtime.reached(fetched_); }

  void begin_on_host() {
    call_.stream = {};
    call_.scratch = {};
    const std::int64_t bytes = scratch_of(call_, staging_->ranks);
    if (bytes > 0) {
      auto& scratch = buffer_->scratch;
      scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(bytes)));
      call_.scratch = View(scratch.data(), DType::u8, {bytes});
    }
    work_ = staging_->host->start(call_, tag_);
  }

  bool advance() override {
    if (over_) return true;
    staging_->drive();
    if (!work_ || !work_->advance()) return false;
    work_->join();
    if (!up_.empty()) {
      Runtime& runtime = staging_->runtime;
      // Earlier work in the caller's stream may still read the memory that is overwritten here.
      runtime.wait(staging_->to_device, written_);
      for (const Piece& piece : up_)
        runtime.copy_from_host(piece.device, piece.host, piece.bytes, staging_->to_device);
      runtime.record(delivered_, staging_->to_device);
      delivering_ = true;
    }
    staging_->give_back(*std::exchange(buffer_, nullptr), staging_->to_device);
    return over_ = true;
  }

  void join() override {
    if (delivering_ && !joined_) staging_->runtime.wait(stream_, delivered_);
    joined_ = true;
  }

 private:
  std::shared_ptr<Staging> staging_;
  CollectiveCall call_;  ///< refers to the buffer, once there is one
  Stream stream_;
  int tag_;
  Event written_{}, fetched_{}, delivered_{};
  std::vector<Piece> down_, up_;
  Buffer* buffer_ = nullptr;
  std::unique_ptr<Work> work_;
  bool delivering_ = false, joined_ = false, over_ = false;
};

/// Advances the operations that wait for a buffer or a copy, in order: p2p messages between two
/// ranks match in the order in which they reach the host backend.
void Staging::drive() {
  for (StagedWork* work : waiting)
    if (!work->fetch()) break;
  while (!waiting.empty() && waiting.front()->fetch() && waiting.front()->fetched()) {
    StagedWork* work = waiting.front();
    waiting.pop_front();
    work->begin_on_host();
  }
}

class StagedBackend final : public Backend {
 public:
  StagedBackend(std::shared_ptr<Transport> transport, const DevicePtr& device,
                std::size_t largest_bytes)
      : staging_(std::make_shared<Staging>(std::move(transport), device, largest_bytes)) {}

  std::string_view name() const override { return "staged"; }
  std::unique_ptr<Work> start(const CollectiveCall& call, int tag) override {
    if (call.stream.device.kind != DeviceKind::cuda) return staging_->host->start(call, tag);
    const std::size_t bytes = staged_bytes(call, staging_->ranks);
    if (bytes > staging_->largest)
      fail(
          fmt::format("{} of {} bytes does not fit into a buffer of {} bytes, through which this "
                      "GPU's data goes to other ranks; do it in several smaller ones",
                      name_of(call.kind), bytes, staging_->largest));
    auto work = std::make_unique<StagedWork>(staging_, call, tag);
    work->advance();
    return work;
  }

 private:
  std::shared_ptr<Staging> staging_;
};

}  // namespace

std::unique_ptr<Backend> make_staged_backend(std::shared_ptr<Transport> transport,
                                             const DevicePtr& device, std::size_t largest_bytes) {
  return std::make_unique<StagedBackend>(std::move(transport), device, largest_bytes);
}

}  // namespace sluice
