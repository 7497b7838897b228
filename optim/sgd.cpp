#include "kernels/sgd.h"

#include "kernels/base/run.h"
#include "optim/optimizer.h"

namespace sluice {
namespace {

class SgdOptimizer final : public Optimizer {
 public:
  SgdOptimizer(ParameterSpace& space, const SgdOptions& options)
      : space_(space),
        options_(options),
        velocity_(Tensor::zeros(space.master().device(), {space.size()}, space.master().dtype())) {}

  std::string_view name() const override { return "sgd"; }

  void step(double rate, const Tensor& gradient_scale) override {
    ++updates_;
    for (const auto& [offset, size, decay] : space_.runs()) {
      const auto part = [&, offset = offset, size = size](const Tensor& flat) {
        return flat.slice(offset, {size}).view();
      };
      run(Sgd{.master = part(space_.master()),
              .velocity = part(velocity_),
              .grad = part(space_.gradient()),
              .working = space_.has_master() ? part(space_.working()) : View{},
              .gradient_scale = gradient_scale ? gradient_scale.view() : View{},
              .rate = rate,
              .momentum = options_.momentum,
              .weight_decay = decay ? options_.weight_decay : 0},
          velocity_.stream());
    }
  }

  std::vector<OptimizerState> state() const override { return {{"velocity", velocity_}}; }

 private:
  ParameterSpace& space_;
  SgdOptions options_;
  Tensor velocity_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(ParameterSpace& space, const SgdOptions& options) {
  return std::make_unique<SgdOptimizer>(space, options);
}

}  // namespace sluice
