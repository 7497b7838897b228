#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "engine/device_context.h"
#include "parallel/comm/backend/nccl_library.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

class NcclCommunicator;

/// An operation that a lane holds.
class LaneEntry {
 public:
  explicit LaneEntry(const NcclCommunicator* group) : group_(group) {}

  /// Gives the operation to NCCL, which accepts it asynchronously; returns true once it has.
  virtual bool issue() = 0;
  const NcclCommunicator* group() const { return group_; }

 protected:
  ~LaneEntry() = default;

 private:
  const NcclCommunicator* group_;
};

/// The order in which a GPU gets the operations of its communicators. An operation occupies the GPU
/// while it waits for other ranks, and there may be room for one: if two ranks had operations of
/// two communicators in different orders, each would wait for the other. So the communicators of a
/// GPU share a lane, and its operations run in the order in which the program starts them.
struct Lane {
  explicit Lane(Runtime& runtime) : stream(runtime.make_stream()) {}
  static std::shared_ptr<Lane> of(const DevicePtr& device);

  /// Gives operations to NCCL one at a time.
  void drive();

  const Stream stream;
  std::deque<LaneEntry*> waiting{};  ///< operations that the GPU has not been given yet, in order
};

/// A communicator of NCCL, shared by the operations of a backend.
class NcclCommunicator {
 public:
  /// All ranks of the transport call this together. `from_first` broadcasts rank 0's text. Throws
  /// Error if they are not connected within `timeout` seconds.
  NcclCommunicator(const Transport& transport, DevicePtr on, double timeout,
                   const std::function<std::string(const std::string&)>& from_first);
  ~NcclCommunicator() { close(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Throws Error if NCCL's answer to a call is a fault.
  void accept(ncclResult_t result) const;
  /// Returns true if NCCL has handed the requested work to the GPU. Throws Error for a fault, also
  /// for one of other ranks.
  bool ready() const;

  Event take_event();
  void give_back(std::initializer_list<Event> events) {
    events_.insert(events_.end(), events.begin(), events.end());
  }

  /// Ends the communicator: finalizes it, or aborts it if an operation will never be over.
  void close();

  const NcclLibrary& nccl;
  const DevicePtr device;
  Runtime& runtime;
  const std::shared_ptr<Lane> lane;
  const Stream stream;
  const int rank, ranks;
  ncclComm_t comm = nullptr;
  int unfinished = 0;

 private:
  bool wait_ready() const;
  void abort();

  double timeout_;
  int exceptions_;
  std::vector<Event> events_;
};

}  // namespace sluice
