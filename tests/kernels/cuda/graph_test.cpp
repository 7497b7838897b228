#include <span>

#include "engine/tensor.h"
#include "kernels/base/run.h"
#include "kernels/reduce.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/gpu.h"

// A graph holds what its stream was given during a capture, and each launch runs it once.

namespace sluice::test::graph_test {

TEST_CASE("cuda: a graph repeats what was captured, with the numbers that are there then",
          "[cuda]") {
  if (!have_gpu()) return;
  const DevicePtr device = open_gpu(3);
  Runtime& runtime = device->runtime();
  const Stream stream = device->stream();
  const Tensor in = Tensor::from_host(device, {3}, DType::f32, std::vector<double>{1, 2, 3});
  const Tensor copied = Tensor::zeros(device, {3}, DType::f32);
  const Tensor total = Tensor::zeros(device, {1}, DType::f32);

  runtime.begin_capture(stream);
  run(Sum{.out = total.view(), .in = in.view(), .accumulate = true}, stream);
  runtime.copy_within(copied.view().address, in.view().address, in.bytes(), stream);
  const Graph graph = runtime.end_capture(stream);
  CHECK(total.item() == 0);
  for (int times = 1; times <= 3; ++times) {
    runtime.launch(graph, stream);
    CHECK(total.item() == 6 * times);
  }
  CHECK(copied.to_host() == std::vector<double>{1, 2, 3});

  // Work of the stream before and after a launch keeps its place.
  in.fill_zero();
  runtime.launch(graph, stream);
  total.fill_zero();
  runtime.launch(graph, stream);
  CHECK(total.item() == 0);
  CHECK(copied.to_host() == std::vector<double>{0, 0, 0});
  runtime.release(graph);
}

TEST_CASE("cuda: two graphs and a stream beside them", "[cuda]") {
  if (!have_gpu()) return;
  const DevicePtr device = open_gpu(4);
  Runtime& runtime = device->runtime();
  const Stream stream = device->stream(), other = runtime.make_stream();
  const Tensor in = Tensor::from_host(device, {1}, DType::f32, std::vector<double>{1});
  const Tensor a = Tensor::zeros(device, {1}, DType::f32),
               b = Tensor::zeros(device, {1}, DType::f32);
  const auto captured = [&](const Tensor& out) {
    runtime.begin_capture(stream);
    run(Sum{.out = out.view(), .in = in.view(), .accumulate = true}, stream);
    return runtime.end_capture(stream);
  };
  const Graph first = captured(a), second = captured(b);
  // Another stream goes on while one is captured.
  runtime.synchronize(stream);
  runtime.begin_capture(stream);
  runtime.fill_zero(in.view().address, in.bytes(), other);
  runtime.synchronize(other);
  runtime.release(runtime.end_capture(stream));
  CHECK(in.item() == 0);

  const float one = 1;
  in.copy_bytes_from(std::as_bytes(std::span(&one, 1)));
  runtime.launch(second, stream);
  CHECK(b.item() == 1);
  runtime.release(first);
  runtime.launch(second, stream);
  CHECK(b.item() == 2);
  CHECK(a.item() == 0);
  runtime.release(second);
}

}  // namespace sluice::test::graph_test
