#include "parallel/comm/backend/nccl_communicator.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/cuda/stream_handle.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::shared_ptr<Lane> Lane::of(const DevicePtr& device) {
  static std::mutex mutex;
  static std::map<const DeviceContext*, std::weak_ptr<Lane>> lanes;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Lane>& known = lanes[device.get()];
  auto lane = known.lock();
  if (lane == nullptr) known = lane = std::make_shared<Lane>(device->runtime());
  return lane;
}

void Lane::drive() {
  while (!waiting.empty()) {
    try {
      if (!waiting.front()->issue()) return;
    } catch (const Error&) {
      waiting.pop_front();  // it never will be, and must not be in the way of others
      throw;
    }
    waiting.pop_front();
  }
}

NcclCommunicator::NcclCommunicator(const Transport& transport, DevicePtr on, double timeout,
                                   const std::function<std::string(const std::string&)>& from_first)
    : nccl(nccl_library()),
      device(std::move(on)),
      runtime(device->runtime()),
      lane(Lane::of(device)),
      stream(lane->stream),
      rank(transport.rank()),
      ranks(transport.size()),
      timeout_(timeout),
      exceptions_(std::uncaught_exceptions()) {
  ncclUniqueId id{};
  if (rank == 0) accept(nccl.get_unique_id(&id));
  const std::string text = from_first(std::string(id.internal, sizeof id.internal));
  check(text.size() == sizeof id.internal, "the ranks use different versions of NCCL");
  std::memcpy(id.internal, text.data(), text.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  cuda::stream_handle(stream);  // selects the GPU, to which NCCL binds the communicator
  try {
    accept(nccl.comm_init_rank_config(&comm, ranks, id, rank, &config));
    if (!wait_ready())
      fail(fmt::format("NCCL has not connected the {} ranks within {:g} s (--collective-timeout)",
                       ranks, timeout));
  } catch (const Error&) {
    abort();
    throw;
  }
}
void NcclCommunicator::accept(ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  fail(fmt::format("NCCL {} failed with '{}' ({}); NCCL_DEBUG=INFO makes it say more", nccl.version,
                   nccl.get_error_string(result), nccl.get_last_error(comm)));
}

bool NcclCommunicator::ready() const {
  check(comm != nullptr, "an NCCL communicator was used after its end");
  ncclResult_t state = ncclSuccess;
  accept(nccl.comm_get_async_error(comm, &state));
  accept(state);
  return state == ncclSuccess;
}

Event NcclCommunicator::take_event() {
  if (events_.empty()) return runtime.make_event();
  const Event event = events_.back();
  events_.pop_back();
  return event;
}
void NcclCommunicator::close() {
  if (comm == nullptr) return;
  // Operations that will not run must not be in the way of other communicators'.
  std::erase_if(lane->waiting, [this](const LaneEntry* entry) { return entry->group() == this; });
  if (unfinished > 0 || std::uncaught_exceptions() > exceptions_) return abort();
  try {
    cuda::stream_handle(stream);
    accept(nccl.comm_finalize(comm));
    if (!wait_ready()) return abort();
    nccl.comm_destroy(std::exchange(comm, nullptr));
  } catch (const Error&) {  // the code that noticed the fault first has reported it
    abort();
  }
}

bool NcclCommunicator::wait_ready() const {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_);
  while (!ready()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void NcclCommunicator::abort() {
  if (comm != nullptr) nccl.comm_abort(std::exchange(comm, nullptr));
}

}  // namespace sluice
