#include "kernels/sgd.h"

#include "kernels/base/run.h"
#include "optim/update_rule.h"

namespace sluice {
namespace {

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(const SgdOptions& options) : options_(options) {}

  std::string_view name() const override { return "sgd"; }

  std::vector<StateField> fields(const Chunk& chunk, DType sums) const override {
    return {{"velocity", sums, chunk.size}};
  }

  void update(const ChunkViews& views, const UpdateStep& step, Stream stream) const override {
    check(!views.remainder, "SGD updates whole master weights; it has no split ones");
    run(Sgd{.master = views.master,
            .velocity = views.state[0],
            .grad = views.gradient,
            .working = views.working,
            .gradient_scale = step.gradient_scale,
            .rate = step.rate,
            .momentum = options_.momentum,
            .weight_decay = views.chunk.decay ? options_.weight_decay : 0},
        stream);
  }

 private:
  SgdOptions options_;
};

}  // namespace

std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options) {
  return std::make_unique<SgdRule>(options);
}

}  // namespace sluice
