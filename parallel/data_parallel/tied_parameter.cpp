#include "parallel/data_parallel/tied_parameter.h"

#include <algorithm>

#include "engine/autograd.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

const ParameterSpace::Slot& slot_of(const ParameterSpace& space, const std::string& name) {
  const auto* slot = space.find(name);
  check(slot != nullptr, "a parameter is tied that this rank does not have");
  return *slot;
}

}  // namespace

TiedParameter::TiedParameter(ParameterSpace& space, const std::string& name, Communicator& ends,
                             std::int64_t piece)
    : space_(space), slot_(slot_of(space, name)), ends_(ends) {
  const DType sums = space.gradients().dtype(false);
  if (ends.size() > 1) {
    const MemoryScope scope(*space.device(), MemoryUse::staging);
    const std::int64_t bytes =
        std::min(piece, slot_.size) * static_cast<std::int64_t>(size_of(sums));
    scratch_ = Tensor::empty(space.device(), {bytes}, DType::u8);
    return;
  }
  const MemoryScope scope(*space.device(), MemoryUse::gradients);
  second_ = space.working().slice(slot_.offset, slot_.shape, slot_.spare_rows);
  second_.set_requires_grad(true);
  const Shape rows{slot_.shape[0] + slot_.spare_rows, slot_.shape[1]};
  second_gradient_ =
      Tensor::zeros(space.device(), rows, sums).slice(0, slot_.shape, slot_.spare_rows);
  set_gradient_buffer(second_, second_gradient_);
}

void TiedParameter::forget_gradients() {
  if (second_) forget_gradient(second_);
}

void TiedParameter::add_gradients() {
  zero_unused_gradient(*slot_.tensor);
  const std::int64_t begin = slot_.gradient_offset;
  const Tensor gradient = space_.gradients().written(false, begin, begin + slot_.size);
  if (second_) {
    zero_unused_gradient(second_);
    const View sum = gradient.view();
    run(Add{.out = sum, .a = sum, .b = second_gradient_.view({slot_.size})}, gradient.stream());
    return;
  }
  const std::int64_t piece = scratch_.size() / static_cast<std::int64_t>(size_of(gradient.dtype()));
  for (std::int64_t first = 0; first < slot_.size; first += piece) {
    const Tensor part = gradient.slice(first, {std::min(piece, slot_.size - first)});
    ends_
        .all_reduce(
            part.view(),
            {.label = "tied " + slot_.name, .stream = part.stream(), .scratch = scratch_.view()})
        ->wait();
  }
}

}  // namespace sluice
