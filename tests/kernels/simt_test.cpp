// The SIMT host target finds the mistakes that a GPU would answer with wrong numbers now and then.

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/warp.h"
#include "tests/support/catch.h"
#include "tests/support/error_message.h"
#include "tests/support/gpu/cuda_device.h"

namespace sluice::test::simt_test {
namespace {

using cuda::launch;
using cuda::warp_size;

constexpr unsigned threads = 128;
constexpr std::uint64_t few_seeds = 5, many_seeds = 20;

struct Numbers {
  float of_thread[threads];
};

bool contains_nan(const Values& values) {
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

/// Returns what a kernel leaves in an array that was all NaN.
Values outcome(std::uint64_t seed, void (*kernel)(float*), std::int64_t count, dim3 grid,
               dim3 block, std::size_t shared_bytes = 0) {
  CudaDevice device({.seed = seed});
  const DeviceArray out(device, DType::f32, count);
  launch(kernel, grid, block, shared_bytes, device.stream(), out.flat().data<float>());
  device.fetch();
  CHECK(out.guards_intact());
  return out.values();
}

/// The message with which a launch, or the wait for it, ends.
std::string message_of(void (*kernel)(float*), dim3 grid, dim3 block,
                       std::size_t shared_bytes = 0) {
  CudaDevice device;
  const DeviceArray out(device, DType::f32, threads);
  return error_message([&] {
    launch(kernel, grid, block, shared_bytes, device.stream(), out.flat().data<float>());
    device.runtime().synchronize(device.stream());
  });
}

template <bool with_barrier>
__global__ void reverse(float* out) {
  auto& shared = cuda::shared_memory<Numbers>();
  shared.of_thread[threadIdx.x] = static_cast<float>(threadIdx.x);
  if constexpr (with_barrier) __syncthreads();
  out[threadIdx.x] = shared.of_thread[threads - 1 - threadIdx.x];
}

/// Each warp needs its own numbers only: a warp barrier is enough, but it is needed.
template <bool with_barrier>
__global__ void reverse_warps(float* out) {
  auto& shared = cuda::shared_memory<Numbers>();
  shared.of_thread[threadIdx.x] = static_cast<float>(threadIdx.x);
  if constexpr (with_barrier) cuda::sync_warp();
  out[threadIdx.x] = shared.of_thread[threadIdx.x ^ (warp_size - 1)];
}

__global__ void read_shared(float* out) {
  out[threadIdx.x] = cuda::shared_memory<Numbers>().of_thread[threadIdx.x];
}

__global__ void leave_early(float* out) {
  if (blockIdx.x == 2 && threadIdx.x >= 40 && threadIdx.x < 50) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void part_in_a_shuffle(float* out) {
  float value = 1;
  if (threadIdx.x < 20) value = cuda::shuffle_xor(value, 1);
  out[threadIdx.x] = value;
}

__global__ void different_collectives(float* out) {
  float value = 1;
  if (threadIdx.x % 2 == 0)
    cuda::sync_warp();
  else
    value = cuda::shuffle_xor(value, 1);
  out[threadIdx.x] = value;
}

__global__ void collectives(float* out) {
  auto& shared = cuda::shared_memory<Numbers>();
  const auto mine = static_cast<float>(threadIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  out[threadIdx.x] = cuda::warp_sum(mine);
  out[threads + threadIdx.x] = cuda::warp_fold(-mine, cuda::maximum);
  out[2 * threads + threadIdx.x] = cuda::shuffle(mine, lane / 2);
  out[3 * threads + threadIdx.x] = cuda::shuffle_xor(mine, 5);
  out[4 * threads + threadIdx.x] = cuda::block_sum<threads / warp_size>(mine, shared.of_thread);
}

__global__ void visit(float* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  float& mine = out[block * blockDim.x * blockDim.y * blockDim.z + thread];
  mine = std::isnan(mine) ? static_cast<float>(thread) : -1.0f;
}

/// Warps in the order in which they come.
__global__ void sign_in(float* out) {
  cuda::sync_warp();
  if (threadIdx.x % warp_size != 0) return;
  unsigned place = 0;
  while (!std::isnan(out[place]))
    ++place;
  out[place] = static_cast<float>(threadIdx.x / warp_size);
}

__global__ void fail_in_one_block(float*) {
  if (blockIdx.x == 3 && threadIdx.x == 7) fail("thread 7 of block 3 gave up");
  __syncthreads();
}

__global__ void load_at_odd_address(float* out) {
  out[0] = cuda::load<4>(out + 1).values[0];
}

}  // namespace

TEST_CASE("simt: a barrier that was left out shows", "[cuda]") {
  bool wrong = false, wrong_warps = false;
  for (std::uint64_t seed = 1; seed <= few_seeds; ++seed) {
    wrong |= contains_nan(outcome(seed, reverse<false>, threads, {1}, {threads}, sizeof(Numbers)));
    wrong_warps |=
        contains_nan(outcome(seed, reverse_warps<false>, threads, {1}, {threads}, sizeof(Numbers)));
  }
  CHECK(wrong);
  CHECK(wrong_warps);
  for (std::uint64_t seed = 1; seed <= many_seeds; ++seed) {
    const Values all = outcome(seed, reverse<true>, threads, {1}, {threads}, sizeof(Numbers));
    const Values warps =
        outcome(seed, reverse_warps<true>, threads, {1}, {threads}, sizeof(Numbers));
    for (std::size_t i = 0; i < threads; ++i) {
      CHECK(all[i] == static_cast<double>(threads - 1 - i));
      CHECK(warps[i] == static_cast<double>(i ^ (warp_size - 1)));
    }
  }
}

TEST_CASE("simt: shared memory holds NaN at first", "[cuda]") {
  CudaDevice device;
  const DeviceArray out(device, DType::f32, threads);
  const View view = out.flat();
  // The second block to run finds nothing of the first one's numbers.
  launch(reverse<true>, {8}, {threads}, sizeof(Numbers), device.stream(), view.data<float>());
  launch(read_shared, {1}, {threads}, sizeof(Numbers), device.stream(), view.data<float>());
  device.fetch();
  for (const double value : out.values())
    CHECK(std::isnan(value));
}

TEST_CASE("simt: what a GPU of this capability does not have is refused", "[cuda]") {
  const auto nothing = [](float*) {};
  struct Limit {
    int capability;
    std::size_t bytes;
  };
  for (const auto& limit : {Limit{75, 64 << 10}, Limit{80, 163 << 10}, Limit{90, 227 << 10}}) {
    CudaDevice device({.capability = limit.capability});
    const auto with_bytes = [&](std::size_t bytes) {
      return error_message([&] {
        launch(+nothing, {1}, {32}, bytes, device.stream(), static_cast<float*>(nullptr));
        device.runtime().synchronize(device.stream());
      });
    };
    CHECK(with_bytes(limit.bytes) == "(no error)");
    CHECK_THAT(with_bytes(limit.bytes + 1), Contains("shared memory"));
  }
  CHECK(message_of(nothing, {1}, {1024}) == "(no error)");
  CHECK_THAT(message_of(nothing, {1}, {1056}), Contains("1024 threads"));
  CHECK_THAT(message_of(nothing, {1}, {33}), Contains("whole warps"));
  CHECK_THAT(message_of(nothing, {1, 65536}, {32}), Contains("grid"));
  CHECK_THAT(message_of(read_shared, {1}, {threads}, sizeof(Numbers) - 1),
             Contains("more shared memory than it was launched with"));
}

TEST_CASE("simt: a thread that leaves before a barrier is named", "[cuda]") {
  const std::string message = message_of(leave_early, {4}, {64});
  CHECK_THAT(message, Contains("block (2, 0, 0)"));
  CHECK_THAT(message, Contains("threads 0-31 wait at __syncthreads"));
  CHECK_THAT(message, Contains("threads 40-49 have left the kernel"));
}

TEST_CASE("simt: lanes that do not come to the same place are an error", "[cuda]") {
  const std::string message = message_of(part_in_a_shuffle, {1}, {32});
  CHECK_THAT(message, Contains("threads 0-19 wait at a shuffle"));
  CHECK_THAT(message, Contains("threads 20-31 have left the kernel"));
  const std::string different = message_of(different_collectives, {1}, {32});
  CHECK_THAT(different, Contains("a shuffle"));
  CHECK_THAT(different, Contains("a warp barrier"));
}

TEST_CASE("simt: collectives of a warp and of a block", "[cuda]") {
  for (std::uint64_t seed = 1; seed <= few_seeds; ++seed) {
    const Values out = outcome(seed, collectives, 5 * threads, {1}, {threads}, sizeof(Numbers));
    for (std::size_t i = 0; i < threads; ++i) {
      const std::size_t first = i / warp_size * warp_size;
      CHECK(out[i] == static_cast<double>(warp_size * first + 31 * 16));
      CHECK(out[threads + i] == -static_cast<double>(first));
      CHECK(out[2 * threads + i] == static_cast<double>(first + i % warp_size / 2));
      CHECK(out[3 * threads + i] == static_cast<double>(i ^ 5));
      CHECK(out[4 * threads + i] == threads * (threads - 1) / 2.0);
    }
  }
}

TEST_CASE("simt: every thread of every block runs once", "[cuda]") {
  for (std::uint64_t seed = 1; seed <= few_seeds; ++seed) {
    const Values out = outcome(seed, visit, 2 * 3 * 5 * 64, {2, 3, 5}, {4, 8, 2});
    for (std::size_t i = 0; i < out.size(); ++i)
      CHECK(out[i] == static_cast<double>(i % 64));
  }
}

TEST_CASE("simt: the order of warps differs between seeds and is the same for one", "[cuda]") {
  std::set<Values> orders;
  for (std::uint64_t seed = 1; seed <= few_seeds; ++seed) {
    const Values order = outcome(seed, sign_in, 8, {1}, {256});
    CHECK(std::set<double>(order.begin(), order.end()).size() == 8);
    CHECK(outcome(seed, sign_in, 8, {1}, {256}) == order);
    orders.insert(order);
  }
  CHECK(orders.size() >= 3);
}

TEST_CASE("simt: an error in a kernel reaches who waits", "[cuda]") {
  CudaDevice device;
  const DeviceArray out(device, DType::f32, threads);
  const auto start = [&](void (*kernel)(float*)) {
    launch(kernel, {5}, {threads}, sizeof(Numbers), device.stream(), out.flat().data<float>());
  };
  const auto wait = [&] { device.runtime().synchronize(device.stream()); };
  for (int round = 0; round < 3; ++round) {
    start(fail_in_one_block);
    CHECK_THAT(error_message(wait), Contains("thread 7 of block 3 gave up"));
    // The device goes on.
    start(reverse<true>);
    CHECK(error_message(wait) == "(no error)");
    device.fetch();
    CHECK(out.values()[0] == threads - 1);
  }
  // Copies wait too.
  start(fail_in_one_block);
  std::byte host[4];
  CHECK_THAT(error_message([&] {
               device.runtime().copy_to_host(host, out.flat().address, 4, device.stream());
             }),
             Contains("gave up"));
}

TEST_CASE("simt: a misaligned access is an error", "[cuda]") {
  CHECK_THAT(message_of(load_at_odd_address, {1}, {32}), Contains("misaligned"));
}

}  // namespace sluice::test::simt_test
