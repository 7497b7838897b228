// Streams, events, copies and the instructions of the warp on the SIMT host target.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx/cp_async.h"
#include "kernels/cuda/ptx/matrix.h"
#include "kernels/cuda/simt/device.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/cuda_device.h"

namespace sluice::test::simt_stream_test {
namespace {

using cuda::launch;

constexpr unsigned threads = 64;
constexpr std::uint64_t few_seeds = 5, many_seeds = 20;

__global__ void write(float* out, float value) {
  out[threadIdx.x] = value;
}

__global__ void copy(float* out, const float* in) {
  out[threadIdx.x] = in[threadIdx.x];
}

/// One stream writes 1, then 2; what another one that follows it sees.
double seen_from_other_stream(std::uint64_t seed, bool with_wait) {
  CudaDevice device({.seed = seed});
  Runtime& runtime = device.runtime();
  const Stream other = runtime.make_stream();
  const Event written = runtime.make_event();
  const DeviceArray shared(device, DType::f32, threads), out(device, DType::f32, threads);
  runtime.synchronize(device.stream());
  auto* const numbers = shared.flat().data<float>();
  launch(write, {1}, {threads}, 0, device.stream(), numbers, 1.0f);
  launch(write, {1}, {threads}, 0, device.stream(), numbers, 2.0f);
  runtime.record(written, device.stream());
  if (with_wait) runtime.wait(other, written);
  launch(copy, {1}, {threads}, 0, other, out.flat().data<float>(), numbers);
  runtime.synchronize(other);
  device.fetch();
  return out.values()[0];
}

/// Memory that a GPU copies from and to on its own.
struct Pinned {
  Runtime& runtime;
  float* numbers;

  explicit Pinned(CudaDevice& device)
      : runtime(device.runtime()),
        numbers(reinterpret_cast<float*>(runtime.reserve_pinned(threads * sizeof(float)))) {
    fill(-1);
  }
  ~Pinned() { runtime.release_pinned(bytes(), threads * sizeof(float)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  std::byte* bytes() const { return reinterpret_cast<std::byte*>(numbers); }
  void fill(float value) const { std::fill_n(numbers, threads, value); }
};

struct alignas(16) Tile {
  float numbers[4 * threads];
};

/// The ways to wait for copies to shared memory.
enum class Waiting { none, all, first_of_two, without_barrier };

/// Each thread fetches four numbers, then reads what the next thread has fetched. The second half
/// of the numbers is not valid: zeros.
template <Waiting waiting>
__global__ void fetch_asynchronously(float* out, const float* in) {
  auto& tile = cuda::shared_memory<Tile>();
  const unsigned mine = 4 * threadIdx.x;
  cuda::cp_async_16(cuda::shared_address(tile.numbers + mine), in + mine,
                    threadIdx.x < threads / 2);
  cuda::cp_async_commit();
  if constexpr (waiting == Waiting::first_of_two) {
    cuda::cp_async_commit();  // a group of nothing, which may still be on its way
    cuda::cp_async_wait<1>();
  }
  if constexpr (waiting == Waiting::all || waiting == Waiting::without_barrier)
    cuda::cp_async_wait<0>();
  if constexpr (waiting != Waiting::without_barrier) __syncthreads();
  const unsigned next = (threadIdx.x + 1) % threads;
  for (unsigned i = 0; i < 4; ++i)
    out[4 * threadIdx.x + i] = tile.numbers[4 * next + i];
}

template <Waiting waiting>
Values fetched_asynchronously(std::uint64_t seed) {
  CudaDevice device({.seed = seed});
  const DeviceArray in(device, DType::f32, random_values(4 * threads, 1));
  const DeviceArray out(device, DType::f32, 4 * threads);
  launch(fetch_asynchronously<waiting>, {1}, {threads}, sizeof(Tile), device.stream(),
         out.flat().data<float>(), in.flat().data<float>());
  device.fetch();
  return out.values();
}

bool all_nan(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

template <class T>
struct alignas(16) Operands {
  T a[16][16], b[8][16];  ///< b by columns
};

/// The rows that the lanes give to ldmatrix, so that the registers are those that mma wants.
template <class T>
__global__ void multiply(float* out, const float* a, const float* b) {
  auto& shared = cuda::shared_memory<Operands<T>>();
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32)
    shared.a[i / 16][i % 16] = cuda::from_float<T>(a[i]);
  for (unsigned i = lane; i < 128; i += 32)
    shared.b[i % 8][i / 8] = cuda::from_float<T>(b[i]);
  __syncthreads();
  std::uint32_t rows[4], columns[4];
  // Matrix m of a: its rows from 8 (m % 2), its columns from 8 (m / 2).
  cuda::ldmatrix_x4<false>(rows, cuda::shared_address(&shared.a[lane % 16][lane / 16 * 8]));
  // Both halves of b, twice.
  cuda::ldmatrix_x4<false>(columns, cuda::shared_address(&shared.b[lane % 8][lane / 8 % 2 * 8]));
  float d[4] = {100, 200, 300, 400};
  cuda::mma_16x8x16<T>(d, rows, {columns[0], columns[1]}, d);
  const unsigned row = lane / 4, column = lane % 4 * 2;
  for (unsigned i = 0; i < 4; ++i)
    out[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}

/// out[m][l][i]: what lane l gets of matrix m.
template <bool transposed>
__global__ void load_matrices(float* out, const float* in) {
  auto& shared = cuda::shared_memory<Operands<BFloat16>>();
  for (unsigned i = threadIdx.x; i < 256; i += 32)
    shared.a[i / 16][i % 16] = cuda::from_float<BFloat16>(in[i]);
  __syncthreads();
  std::uint32_t words[4];
  const unsigned matrix = threadIdx.x / 8, row = threadIdx.x % 8;
  cuda::ldmatrix_x4<transposed>(
      words, cuda::shared_address(&shared.a[row + matrix % 2 * 8][matrix / 2 * 8]));
  for (unsigned m = 0; m < 4; ++m) {
    BFloat16 pair[2];
    std::memcpy(pair, &words[m], sizeof pair);
    for (unsigned i = 0; i < 2; ++i)
      out[(m * 32 + threadIdx.x) * 2 + i] = cuda::to_float(pair[i]);
  }
}

Values loaded(void (*kernel)(float*, const float*), const Values& numbers) {
  CudaDevice device;
  const DeviceArray in(device, DType::f32, numbers);
  const DeviceArray out(device, DType::f32, 256);
  launch(kernel, {1}, {32}, sizeof(Operands<BFloat16>), device.stream(), out.flat().data<float>(),
         in.flat().data<float>());
  device.fetch();
  return out.values();
}

}  // namespace

TEST_CASE("simt: a wait between streams that was left out shows", "[cuda]") {
  bool wrong = false;
  for (std::uint64_t seed = 1; seed <= many_seeds; ++seed) {
    wrong |= seen_from_other_stream(seed, false) != 2;
    CHECK(seen_from_other_stream(seed, true) == 2);
  }
  CHECK(wrong);
}

TEST_CASE("simt: copies from pageable memory are done with it when they return", "[cuda]") {
  CudaDevice device;
  Runtime& runtime = device.runtime();
  const DeviceArray on_device(device, DType::f32, threads);
  std::vector<std::byte> host = bytes_of(DType::f32, Values(threads, 3));
  runtime.copy_from_host(on_device.flat().address, host.data(), host.size(), device.stream());
  std::fill(host.begin(), host.end(), std::byte{0});
  std::vector<std::byte> back(host.size());
  runtime.copy_to_host(back.data(), on_device.flat().address, back.size(), device.stream());
  CHECK(values_of(DType::f32, back) == Values(threads, 3));
}

TEST_CASE("simt: copies of pinned memory happen in their turn", "[cuda]") {
  CudaDevice device;
  Runtime& runtime = device.runtime();
  const DeviceArray first(device, DType::f32, threads), second(device, DType::f32, threads);
  const Pinned from(device), to(device);
  const std::size_t bytes = threads * sizeof(float);
  runtime.synchronize(device.stream());
  from.fill(1);
  runtime.copy_from_host(first.flat().address, from.bytes(), bytes, device.stream());
  runtime.copy_within(second.flat().address, first.flat().address, bytes, device.stream());
  launch(write, {1}, {threads}, 0, device.stream(), first.flat().data<float>(), 7.0f);
  runtime.copy_to_host(to.bytes(), second.flat().address, bytes, device.stream());
  // Nobody has waited: nothing has arrived, and what is to be copied can still change.
  CHECK(to.numbers[0] == -1);
  from.fill(2);
  runtime.synchronize(device.stream());
  CHECK(to.numbers[0] == 2);
  CHECK(to.numbers[threads - 1] == 2);
  device.fetch();
  CHECK(first.values() == Values(threads, 7));
}

TEST_CASE("simt: an event stands for what its stream had been given", "[cuda]") {
  for (std::uint64_t seed = 1; seed <= few_seeds; ++seed) {
    CudaDevice device({.seed = seed});
    Runtime& runtime = device.runtime();
    const DeviceArray on_device(device, DType::f32, threads);
    const Pinned to(device);
    const Event copied = runtime.make_event();
    launch(write, {1}, {threads}, 0, device.stream(), on_device.flat().data<float>(), 5.0f);
    runtime.copy_to_host(to.bytes(), on_device.flat().address, threads * sizeof(float),
                         device.stream());
    runtime.record(copied, device.stream());
    launch(write, {1}, {threads}, 0, device.stream(), on_device.flat().data<float>(), 6.0f);
    runtime.synchronize(copied);
    CHECK(to.numbers[0] == 5);
    device.fetch();
    CHECK(on_device.values() == Values(threads, 6));
  }
}

TEST_CASE("simt: who asks for an event often enough finds it reached", "[cuda]") {
  bool at_once = false, later = false;
  for (std::uint64_t seed = 1; seed <= many_seeds; ++seed) {
    CudaDevice device({.seed = seed});
    Runtime& runtime = device.runtime();
    const DeviceArray on_device(device, DType::f32, threads);
    const Pinned to(device);
    const Event copied = runtime.make_event();
    CHECK(runtime.reached(copied));  // no record, nothing to wait for
    runtime.synchronize(device.stream());
    launch(write, {1}, {threads}, 0, device.stream(), on_device.flat().data<float>(), 5.0f);
    runtime.copy_to_host(to.bytes(), on_device.flat().address, threads * sizeof(float),
                         device.stream());
    runtime.record(copied, device.stream());
    launch(write, {1}, {threads}, 0, device.stream(), on_device.flat().data<float>(), 6.0f);
    int asked = 1;
    for (; !runtime.reached(copied); ++asked)
      REQUIRE(asked < 10);
    CHECK(to.numbers[0] == 5);
    at_once |= asked == 1;
    later |= asked > 1;
    device.fetch();
    CHECK(on_device.values() == Values(threads, 6));
  }
  CHECK(at_once);
  CHECK(later);
}

TEST_CASE("simt: a launch may have to wait for kernels of other libraries", "[cuda]") {
  bool at_once = false, later = false;
  for (std::uint64_t seed = 1; seed <= many_seeds; ++seed) {
    CudaDevice device({.seed = seed});
    const DeviceArray numbers(device, DType::f32, threads);
    int asked = 0;
    bool over = false;
    simt::enqueue_when(
        device.runtime().make_stream(), [&] { return ++asked > 10; }, [&] { over = true; });
    int launches = 0;
    while (!over) {
      REQUIRE(++launches <= 100);
      launch(write, {1}, {threads}, 0, device.stream(), numbers.flat().data<float>(), 1.0f);
    }
    at_once |= launches == 1;
    later |= launches > 1;
    device.fetch();
  }
  CHECK(at_once);
  CHECK(later);
}

TEST_CASE("simt: who waits does so for the record that was the last one then", "[cuda]") {
  for (std::uint64_t seed = 1; seed <= many_seeds; ++seed) {
    CudaDevice device({.seed = seed});
    Runtime& runtime = device.runtime();
    const Stream other = runtime.make_stream(), third = runtime.make_stream();
    const Event event = runtime.make_event();
    const DeviceArray shared(device, DType::f32, threads), out(device, DType::f32, threads);
    runtime.synchronize(device.stream());
    launch(write, {1}, {threads}, 0, device.stream(), shared.flat().data<float>(), 1.0f);
    launch(write, {1}, {threads}, 0, device.stream(), shared.flat().data<float>(), 2.0f);
    runtime.record(event, device.stream());
    runtime.wait(other, event);
    runtime.record(event, third);  // which has nothing to do, and is done with it first
    launch(copy, {1}, {threads}, 0, other, out.flat().data<float>(), shared.flat().data<float>());
    runtime.synchronize(event);
    runtime.synchronize(other);
    device.fetch();
    CHECK(out.values() == Values(threads, 2));
  }
}

TEST_CASE("simt: memory is filled with zeros in the order of the stream", "[cuda]") {
  CudaDevice device;
  const DeviceArray numbers(device, DType::f32, threads);
  launch(write, {1}, {threads}, 0, device.stream(), numbers.flat().data<float>(), 5.0f);
  device.runtime().fill_zero(numbers.flat().address, 16, device.stream());
  device.fetch();
  CHECK(numbers.values()[3] == 0);
  CHECK(numbers.values()[4] == 5);
  CHECK(numbers.guards_intact());
}

TEST_CASE("simt: the host cannot touch device memory", "[cuda]") {
  CudaDevice device;
  const DeviceArray numbers(device, DType::f32, threads);
  device.fetch();
  const volatile std::byte* const address = numbers.flat().address;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    _exit(static_cast<int>(*address) & 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("simt: an asynchronous copy lands when it is waited for", "[cuda]") {
  const Values source = random_values(4 * threads, 1);
  bool wrong = false;
  for (std::uint64_t seed = 1; seed <= few_seeds; ++seed) {
    // Some copies land early, some would land when they are waited for.
    const Values unfinished = fetched_asynchronously<Waiting::none>(seed);
    CHECK(std::ranges::any_of(unfinished, [](double v) { return std::isnan(v); }));
    CHECK_FALSE(all_nan(unfinished));
    const Values out = fetched_asynchronously<Waiting::all>(seed);
    CHECK(fetched_asynchronously<Waiting::first_of_two>(seed) == out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t from = (i + 4) % out.size();
      CHECK(out[i] == (from < out.size() / 2 ? static_cast<float>(source[from]) : 0));
    }
    wrong |= fetched_asynchronously<Waiting::without_barrier>(seed) != out;
  }
  CHECK(wrong);
}

TEST_CASE("simt: ldmatrix and mma multiply matrices", "[cuda]") {
  const auto product = [](auto type) {
    using T = decltype(type);
    CudaDevice device;
    const Values a = random_values(256, 1), b = random_values(128, 2);
    const DeviceArray on_a(device, DType::f32, a), on_b(device, DType::f32, b);
    const DeviceArray out(device, DType::f32, 128);
    launch(multiply<T>, {1}, {32}, sizeof(Operands<T>), device.stream(), out.flat().data<float>(),
           on_a.flat().data<float>(), on_b.flat().data<float>());
    device.fetch();
    const auto round = [](double x) {
      return static_cast<double>(static_cast<float>(T(static_cast<float>(x))));
    };
    const Values result = out.values();
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 8; ++j) {
        double expected = 100 * static_cast<double>(1 + j % 2 + i / 8 * 2);
        for (std::size_t k = 0; k < 16; ++k)
          expected += round(a[i * 16 + k]) * round(b[k * 8 + j]);
        CHECK(result[i * 8 + j] == Approx(expected).epsilon(1e-6));
      }
    }
  };
  product(Half{});
  product(BFloat16{});
}

TEST_CASE("simt: ldmatrix gives each lane its pair", "[cuda]") {
  Values numbers(256);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<double>(i);
  const Values plain = loaded(load_matrices<false>, numbers);
  const Values transposed = loaded(load_matrices<true>, numbers);
  for (std::size_t m = 0; m < 4; ++m) {
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t i = 0; i < 2; ++i) {
        const std::size_t along = lane % 4 * 2 + i, across = lane / 4;
        const auto at = [&](std::size_t row, std::size_t column) {
          return numbers[(row + m % 2 * 8) * 16 + column + m / 2 * 8];
        };
        CHECK(plain[(m * 32 + lane) * 2 + i] == at(across, along));
        CHECK(transposed[(m * 32 + lane) * 2 + i] == at(along, across));
      }
    }
  }
}

}  // namespace sluice::test::simt_stream_test
