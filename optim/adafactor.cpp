#include "kernels/adafactor.h"

#include <cmath>

#include "kernels/base/run.h"
#include "optim/update_rule.h"

namespace sluice {
namespace {

class AdafactorRule final : public UpdateRule {
 public:
  explicit AdafactorRule(const AdafactorOptions& options) : options_(options) {}

  std::string_view name() const override { return "adafactor"; }

  std::vector<StateField> fields(const Chunk& chunk, DType sums) const override {
    if (chunk.row_length == 0) return {{"second_moment", sums, chunk.size}};
    return {{"row_second_moment", sums, chunk.size / chunk.row_length},
            {"column_second_moment", sums, chunk.row_length}};
  }

  std::int64_t scratch(const Chunk& chunk) const override {
    const std::int64_t columns = chunk.row_length > 0 ? chunk.row_length : chunk.size;
    return AdafactorBlocks{.rows = chunk.size / columns, .columns = columns}.size();
  }

  void update(const ChunkViews& views, const UpdateStep& step, Stream stream) const override {
    const auto count = static_cast<double>(step.count);
    run(Adafactor{.master = views.master,
                  .working = views.working,
                  .remainder = views.remainder,
                  .row_moment = views.state.size() == 2 ? views.state.front() : View{},
                  .column_moment = views.state.back(),
                  .grad = views.gradient,
                  .scratch = views.scratch,
                  .gradient_scale = step.gradient_scale,
                  .rate = step.rate,
                  .beta2 = 1 - std::pow(count, -options_.decay_power),
                  .epsilon1 = options_.epsilon1,
                  .epsilon2 = options_.epsilon2,
                  .clip = options_.clip,
                  .weight_decay = views.chunk.decay ? options_.weight_decay : 0,
                  .scale_by_weights = options_.scale_by_weights},
        stream);
  }

 private:
  AdafactorOptions options_;
};

}  // namespace

std::unique_ptr<UpdateRule> adafactor_rule(const AdafactorOptions& options) {
  return std::make_unique<AdafactorRule>(options);
}

}  // namespace sluice
