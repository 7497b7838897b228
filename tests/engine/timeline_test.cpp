#include "engine/timeline.h"

#include <chrono>
#include <thread>

#include "engine/tensor.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/gpu.h"

namespace sluice::test::timeline_test {
namespace {

void check_spans(const DevicePtr& device) {
  Timeline timeline(device);
  const Tensor tensor = Tensor::empty(device, {1 << 16}, DType::f32);
  for (int i = 0; i < 2; ++i) {
    const std::size_t span = timeline.begin("fill", Timeline::Lane::compute, tensor.stream());
    run(Fill{.out = tensor.view(), .value = 1}, tensor.stream());
    timeline.end(span);
  }
  const std::vector<Timeline::Span> spans = timeline.take();
  REQUIRE(spans.size() == 2);
  for (const Timeline::Span& span : spans) {
    CHECK(span.name == "fill");
    CHECK(span.start >= 0);
    CHECK(span.length > 0);
  }
  CHECK(spans[1].start >= Approx(spans[0].start + spans[0].length).margin(1e-6));
}

}  // namespace

TEST_CASE("spans of a CPU follow each other and have lengths", "[timeline]") {
  check_spans(make_cpu_device());
}

TEST_CASE("spans of a GPU follow each other and have lengths", "[timeline]") {
  if (have_gpu()) check_spans(open_gpu(1));
}

TEST_CASE("the host's own work beside a GPU is timed by the host", "[timeline]") {
  if (!have_gpu()) return;
  const DevicePtr device = open_gpu(1);
  Timeline timeline(device);
  timeline.end(timeline.begin("on the device", Timeline::Lane::compute, device->stream()));
  const std::size_t span = timeline.begin("on the host", Timeline::Lane::host, device->stream());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  timeline.end(span);
  const std::vector<Timeline::Span> spans = timeline.take();
  REQUIRE(spans.size() == 2);
  CHECK(spans[1].name == "on the host");
  CHECK(spans[1].lane == Timeline::Lane::host);
  CHECK(spans[1].length >= 2);
}

}  // namespace sluice::test::timeline_test
