#include "apps/train/pass_graphs.h"

#include <algorithm>
#include <utility>

namespace sluice {

PassGraphs::PassGraphs(DevicePtr device, DType loss)
    : device_(std::move(device)), loss_(Tensor::empty(device_, {1}, loss)) {}

PassGraphs::~PassGraphs() {
  for (Passes& passes : all_)
    forget(passes);
}

void PassGraphs::forget(Passes& passes) {
  for (const Graph graph : passes.graphs)
    runtime().release(graph);
  passes.graphs.clear();
}

void PassGraphs::choose(const Inputs& inputs) {
  const std::uint64_t layout = device_->arena().layout();
  next_ = 0;
  const auto found = std::ranges::find_if(all_, [&](const Passes& passes) {
    return passes.inputs.tokens == inputs.tokens && passes.inputs.accumulate == inputs.accumulate;
  });
  current_ = static_cast<std::size_t>(found - all_.begin());
  if (found == all_.end()) {
    all_.push_back({.inputs = inputs, .layout = layout, .graphs = {}});
    way_ = Way::kernels;
    return;
  }
  const bool same = found->layout == layout && found->inputs.loss_scale == inputs.loss_scale;
  way_ = same && !found->graphs.empty() ? Way::repeat : Way::record;
  if (way_ == Way::repeat) return;
  forget(*found);
  found->layout = layout;
  found->inputs = inputs;
}

void PassGraphs::run(const std::function<void()>& work) {
  if (way_ == Way::kernels) return work();
  std::vector<Graph>& graphs = all_[current_].graphs;
  const Stream stream = device_->stream();
  if (way_ == Way::record) {
    runtime().begin_capture(stream);
    try {
      work();
    } catch (...) {
      runtime().abandon_capture(stream);
      forget(all_[current_]);
      throw;
    }
    graphs.push_back(runtime().end_capture(stream));
  }
  check(next_ < graphs.size(), "a micro-batch has more passes than were recorded");
  runtime().launch(graphs[next_++], stream);
}

void PassGraphs::keep_loss(const Tensor& loss) {
  check(loss.bytes() == loss_.bytes(), "a loss is one number");
  runtime().copy_within(loss_.view().address, loss.view().address, loss.bytes(), loss.stream());
}

}  // namespace sluice
