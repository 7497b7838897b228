#include <set>

#include "engine/autograd.h"
#include "engine/observer.h"
#include "engine/ops/attention.h"
#include "engine/ops/dropout.h"
#include "tests/support/catch.h"
#include "tests/support/fixture.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::gpt2_dropout_test {
namespace {

/// Finds out the number of each place in the model where dropout acts, from what it dropped there.
class Sites final : public Observer {
 public:
  Sites(const DropoutSource& source, int heads) : source_(source), heads_(heads) {}

  void computed(const Node& node, std::span<Tensor* const> outputs) override {
    const NoGrad no_grad;
    if (node.name() == "dropout") {
      const Tensor ones =
          Tensor::from_host(outputs[0]->device(), outputs[0]->shape(), DType::f64,
                            Values(static_cast<std::size_t>(outputs[0]->size()), 1));
      const auto kept = [](const Tensor& tensor) {
        std::vector<bool> bits;
        for (const double value : tensor.to_host())
          bits.push_back(value != 0);
        return bits;
      };
      find([&](std::uint64_t site) {
        return kept(dropout(ones, source_.mask(site))) == kept(*outputs[0]);
      });
    } else if (node.name() == "attention") {
      const Tensor qkv = node.saved().at(0).tensor;
      find([&](std::uint64_t site) {
        return attention(qkv, {.heads = heads_, .mask = source_.mask(site)}).to_host() ==
               outputs[0]->to_host();
      });
    }
  }
  void handed_over(const Node&, const Edge&, const Tensor&) override {}

  std::vector<std::uint64_t> found;

 private:
  template <class Matches>
  void find(Matches&& matches) {
    for (std::uint64_t site = 0; site < 50; ++site)
      if (matches(site)) found.push_back(site);
  }

  DropoutSource source_;
  int heads_;
};

}  // namespace

TEST_CASE("no two places in the model drop alike") {
  const ThreadCount one(1);
  const auto device = make_cpu_device();
  const auto made = random_model(small_config(), device, DType::f64);
  const auto ids = Tensor::from_tokens(device, {2, 16}, random_ids(32, 64, 1));
  const DropoutSource source{.seed = 1, .step = 2, .first_sample = 3, .probability = 0.4F};
  Sites sites(source, 2);
  {
    const Observed observed(sites);
    made.model->loss(ids, ids, {}, source);
  }
  // The embedding, and in each of two layers attention, its output and the MLP's output.
  CHECK(sites.found.size() == 1 + 2 * 3);
  CHECK(std::set(sites.found.begin(), sites.found.end()).size() == sites.found.size());
}

}  // namespace sluice::test::gpt2_dropout_test
