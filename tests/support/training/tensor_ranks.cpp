#include "tests/support/training/tensor_ranks.h"

#include "parallel/comm/backend/staged_backend.h"
#include "parallel/comm/transport/thread_transport.h"
#include "tests/support/gpu/gpu.h"

namespace sluice::test {

void on_tensor_ranks(int ranks, DeviceKind kind, const TensorRank& body) {
  run_on_threads(ranks, [&](std::unique_ptr<Transport> made) {
    const ThreadCount one(1);
    const std::shared_ptr<Transport> transport(std::move(made));
    const Communicator::Options options{.timeout = 60};
    const DevicePtr device = device_of_rank(kind, transport->rank());
    constexpr std::size_t largest = std::size_t{1} << 20;
    Communicator communicator = kind == DeviceKind::cpu
                                    ? Communicator(transport, nullptr, options)
                                    : Communicator(make_staged_backend(transport, device, largest),
                                                   transport, nullptr, options);
    CommunicatorGroup group(communicator, kind == DeviceKind::cpu);
    body(group, device);
  });
}

void Assembled::add(const ParameterSpace::Slot& slot, const Values& values) {
  const std::lock_guard lock(mutex_);
  const auto [at, first] =
      values_.try_emplace(slot.name, static_cast<std::size_t>(element_count(slot.whole())), 0.0);
  Values& whole = at->second;
  if (!slot.shard.divided() && !first && whole != values) differences_.push_back(slot.name);
  slot.shard.for_each_run(0, slot.size,
                          [&](std::int64_t place, std::int64_t index, std::int64_t count) {
                            std::copy_n(values.begin() + place, count, whole.begin() + index);
                          });
}

}  // namespace sluice::test
