// Barriers in shared memory, and copies that end on them, on the SIMT host target.

#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx/tma.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/cuda_device.h"

namespace sluice::test::simt_tma_test {
namespace {

using cuda::launch;

constexpr unsigned threads = 128;

struct OneBarrier {
  cuda::Mbarrier barrier;
};

/// Threads 0 to `comes` arrive at a barrier for `arrivals`, and all wait for it.
__global__ void meet(float* out, unsigned arrivals, unsigned comes) {
  auto& shared = cuda::shared_memory<OneBarrier>();
  if (threadIdx.x == 0) cuda::mbarrier_init(shared.barrier, arrivals);
  __syncthreads();
  if (threadIdx.x < comes) {
    out[threadIdx.x] = 1;
    cuda::mbarrier_arrive(shared.barrier);
  }
  cuda::mbarrier_wait(shared.barrier, 0);
  if (threadIdx.x >= comes) out[threadIdx.x] = out[threadIdx.x % comes];
}

std::string message_of_meeting(unsigned arrivals, unsigned comes) {
  CudaDevice device;
  const DeviceArray out(device, DType::f32, threads);
  return error_message([&] {
    launch(meet, {1}, {threads}, sizeof(OneBarrier), device.stream(), out.flat().data<float>(),
           arrivals, comes);
    device.runtime().synchronize(device.stream());
  });
}

constexpr unsigned box_rows = 8, box_columns = 64;

struct Box {
  alignas(1024) BFloat16 elements[box_rows * box_columns];
  cuda::Mbarrier arrived;
};

/// Copies a box that begins in head 1, at position 2, and writes its elements in order.
__global__ void copy_box(const __grid_constant__ cuda::TensorMap map, float* out, bool waits) {
  auto& shared = cuda::shared_memory<Box>();
  if (threadIdx.x == 0) {
    cuda::mbarrier_init(shared.arrived, 1);
    cuda::mbarrier_publish();
    cuda::mbarrier_arrive_expecting(shared.arrived, sizeof(shared.elements));
    cuda::tma_load(shared.elements, map, 0, 1, 2, 0, shared.arrived);
  }
  __syncthreads();
  if (waits) cuda::mbarrier_wait(shared.arrived, 0);
  for (unsigned i = threadIdx.x; i < box_rows * box_columns; i += threads) {
    const unsigned row = i / box_columns, column = i % box_columns;
    const unsigned place = row * box_columns + (column / 8 ^ row % 8) * 8 + column % 8;
    out[i] = static_cast<float>(shared.elements[place]);
  }
}

constexpr std::int64_t width = 40, heads = 2, positions = 5;

Values copied_box(std::uint64_t seed, bool waits) {
  CudaDevice device({.seed = seed});
  Values numbers;
  for (std::int64_t i = 0; i < positions * heads * width; ++i)
    numbers.push_back(static_cast<double>(i % 251));
  const DeviceArray tensor(device, DType::bf16, numbers);
  const DeviceArray out(device, DType::f32, box_rows * box_columns);
  const cuda::TensorMap map =
      cuda::tensor_map({.address = tensor.flat().address,
                        .dtype = DType::bf16,
                        .sizes = {width, heads, positions, 1},
                        .strides = {width * 2, heads * width * 2, positions * heads * width * 2},
                        .box = {box_columns, 1, box_rows, 1}});
  launch(copy_box, {1}, {threads}, sizeof(Box), device.stream(), map, out.flat().data<float>(),
         waits);
  device.fetch();
  return out.values();
}

}  // namespace

TEST_CASE("simt: threads meet at an mbarrier", "[cuda]") {
  CHECK(message_of_meeting(5, 5) == "(no error)");
  CHECK_THAT(message_of_meeting(6, 5), Contains("wait at an mbarrier"));
}

TEST_CASE("simt: threads see what was written before the others arrived", "[cuda]") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CudaDevice device({.seed = seed});
    const DeviceArray out(device, DType::f32, threads);
    launch(meet, {1}, {threads}, sizeof(OneBarrier), device.stream(), out.flat().data<float>(), 40u,
           40u);
    device.fetch();
    CHECK(out.values() == Values(threads, 1.0));
  }
}

TEST_CASE("simt: a box of a tensor is copied, with zeros outside of the tensor", "[cuda]") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Values box = copied_box(seed, true);
    for (std::int64_t row = 0; row < box_rows; ++row)
      for (std::int64_t column = 0; column < box_columns; ++column) {
        CAPTURE(seed, row, column);
        const std::int64_t position = 2 + row;
        const bool inside = position < positions && column < width;
        const std::int64_t index = (position * heads + 1) * width + column;
        REQUIRE(box[static_cast<std::size_t>(row * box_columns + column)] ==
                (inside ? static_cast<double>(index % 251) : 0.0));
      }
  }
}

TEST_CASE("simt: a wait for a copy that was left out shows", "[cuda]") {
  int late = 0, after_the_end = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string message =
        error_message([&] { late += std::isnan(copied_box(seed, false)[0]); });
    after_the_end += message.find("has ended before its copies") != std::string::npos;
  }
  CHECK(late + after_the_end > 5);
  CHECK(after_the_end > 0);
}

TEST_CASE("simt: a tensor that the copy unit does not take is refused", "[cuda]") {
  CudaDevice device;
  const DeviceArray tensor(device, DType::bf16, Values(64, 1.0));
  cuda::MappedTensor mapped{.address = tensor.flat().address,
                            .dtype = DType::bf16,
                            .sizes = {16, 1, 1, 1},
                            .strides = {32, 32, 32},
                            .box = {64, 1, 1, 1}};
  CHECK(error_message([&] { cuda::tensor_map(mapped); }) == "(no error)");
  mapped.strides[1] = 24;
  CHECK_THAT(error_message([&] { cuda::tensor_map(mapped); }), Contains("16 bytes"));
  mapped.strides[1] = 32;
  mapped.address = tensor.flat().address + 2;
  CHECK_THAT(error_message([&] { cuda::tensor_map(mapped); }), Contains("aligned"));
}

}  // namespace sluice::test::simt_tma_test
