#pragma once

#include <span>

#include "engine/tensor_group.h"
#include "engine/timeline.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// A TensorGroup (the tensor-parallel ranks of a model) on top of a communicator.
class CommunicatorGroup final : public TensorGroup {
 public:
  /// `ranks` works on the memory of the model and must outlive the group. `scratch`: sums allocate
  /// scratch memory on the data's device, which must be the host.
  CommunicatorGroup(Communicator& ranks, bool scratch) : ranks_(ranks), scratch_(scratch) {}

  /// Records the waits for sums ("wait") and, except with NCCL, sums ("reduce" on the network's
  /// lane).
  void set_timeline(Timeline* timeline) { timeline_ = timeline; }

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  std::function<Tensor()> all_reduce(const Tensor& partial, const Shape& tokens,
                                     std::string_view what) override;
  Tensor all_gather(const Tensor& stream, const Shape& tokens, std::string_view what) override;
  Tensor gather(const Tensor& mine, std::span<const std::int64_t> counts,
                std::string_view what) override;
  /// All-reduces `data` in place; it is on `device`. `any_order`: see CollectiveCall.
  void sum(const View& data, const DevicePtr& device, bool any_order, std::string_view what);

 private:
  Communicator& ranks_;
  bool scratch_;
  Timeline* timeline_ = nullptr;
};

}  // namespace sluice
