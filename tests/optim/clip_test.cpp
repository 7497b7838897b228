#include "kernels/reduce.h"

#include <cmath>

#include "optim/loss_scaler.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"

namespace sluice::test::clip_test {
namespace {

/// One f64.
View view_of(double& value) {
  return {reinterpret_cast<std::byte*>(&value), DType::f64, {1}};
}

}  // namespace

TEST_CASE("the clip factor bounds the norm", "[optimizer]") {
  // Gradients of two numbers, by the definition; limit and loss scale vary.
  const auto factor = [](double norm, double limit, double loss_scale = 1) {
    Values parts{0.36 * norm * norm, 0.64 * norm * norm};
    Values out(2);
    launch_cpu(ClipFactor{.norm = view_of(out[0]),
                          .factor = view_of(out[1]),
                          .partial = {reinterpret_cast<std::byte*>(parts.data()), DType::f64, {2}},
                          .limit = limit,
                          .loss_scale = loss_scale});
    if (std::isfinite(norm)) CHECK(out[0] == Approx(norm / loss_scale).epsilon(1e-12));
    return out[1];
  };
  CHECK(factor(0.5, 1) == 1);
  CHECK(factor(4, 1) == Approx(1 / (4 + 1e-6)).epsilon(1e-12));
  CHECK(factor(1, 1) == Approx(1 / (1 + 1e-6)).epsilon(1e-12));
  CHECK(factor(0, 1) == 1);
  CHECK(factor(1e30, 0) == 1);  // off
  CHECK(factor(1024, 1, 1024) == Approx(1 / (1 + 1e-6) / 1024).epsilon(1e-12));
  CHECK(factor(8, 0, 16) == Approx(1.0 / 16));
  CHECK(std::isnan(factor(INFINITY, 1)));
  CHECK(std::isnan(factor(NAN, 0)));
}

TEST_CASE("the loss scale follows GradScaler's rules", "[optimizer]") {
  LossScaler scaler(LossScaler::State{});
  CHECK(scaler.scale() == 65536);
  scaler.update(false);
  CHECK(scaler.scale() == 32768);
  for (int i = 0; i < 1999; ++i)
    scaler.update(true);
  CHECK(scaler.scale() == 32768);
  CHECK(scaler.state().good_updates == 1999);
  scaler.update(true);
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.state().good_updates == 0);
  // An overflow starts the count afresh.
  for (int i = 0; i < 1999; ++i)
    scaler.update(true);
  scaler.update(false);
  scaler.update(true);
  CHECK(scaler.scale() == 32768);
  CHECK(scaler.state().good_updates == 1);
  // It does not leave fp32.
  LossScaler large(LossScaler::State{.scale = std::ldexp(1.0, 127), .good_updates = 1999});
  large.update(true);
  CHECK(large.scale() == std::ldexp(1.0, 127));
  // The scale stays 1 without loss scaling.
  LossScaler off;
  off.update(false);
  CHECK(off.scale() == 1);
  CHECK_FALSE(off.enabled());
}

}  // namespace sluice::test::clip_test
