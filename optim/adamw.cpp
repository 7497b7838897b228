#include "kernels/adamw.h"

#include <cmath>

#include "kernels/base/run.h"
#include "optim/optimizer.h"

namespace sluice {
namespace {

class AdamWOptimizer final : public Optimizer {
 public:
  AdamWOptimizer(ParameterSpace& space, const AdamWOptions& options)
      : space_(space),
        options_(options),
        first_(Tensor::zeros(space.master().device(), {space.size()}, space.master().dtype())),
        second_(Tensor::zeros(space.master().device(), {space.size()}, space.master().dtype())) {}

  std::string_view name() const override { return "adamw"; }

  void step(double rate, const Tensor& gradient_scale) override {
    ++updates_;
    const auto count = static_cast<double>(updates_);
    for (const auto& [offset, size, decay] : space_.runs()) {
      const auto part = [&, offset = offset, size = size](const Tensor& flat) {
        return flat.slice(offset, {size}).view();
      };
      run(AdamW{.master = part(space_.master()),
                .first_moment = part(first_),
                .second_moment = part(second_),
                .grad = part(space_.gradient()),
                .working = space_.has_master() ? part(space_.working()) : View{},
                .gradient_scale = gradient_scale ? gradient_scale.view() : View{},
                .rate = rate,
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .epsilon = options_.epsilon,
                .weight_decay = decay ? options_.weight_decay : 0,
                .correction1 = 1 - std::pow(options_.beta1, count),
                .correction2 = 1 - std::pow(options_.beta2, count)},
          first_.stream());
    }
  }

  std::vector<OptimizerState> state() const override {
    return {{"first_moment", first_}, {"second_moment", second_}};
  }

 private:
  ParameterSpace& space_;
  AdamWOptions options_;
  Tensor first_, second_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(ParameterSpace& space, const AdamWOptions& options) {
  return std::make_unique<AdamWOptimizer>(space, options);
}

}  // namespace sluice
