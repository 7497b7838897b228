// Collectives on GPU memory by way of the host, on ranks that are threads with a device each. The
// emulated GPU empties its streams in an order that a seed decides, so an event that nobody waits
// for leaves a wrong number.
#include "parallel/comm/backend/staged_backend.h"

#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "engine/tensor.h"
#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "tests/parallel/checked_ranks.h"
#include "tests/support/gpu/gpu.h"
#include "tests/support/gpu/unpinned_runtime.h"

namespace sluice::test::staged_test {

namespace {

constexpr std::size_t largest = 256 << 10;

/// A rank with a GPU: collectives on its memory, and the same on the host's beside them.
struct GpuRank {
  std::shared_ptr<Transport> transport;
  DevicePtr device;
  Communicator gpu, host;

  GpuRank(std::shared_ptr<Transport> by, const DevicePtr& on, std::size_t bytes = largest)
      : transport(std::move(by)),
        device(on),
        gpu(make_staged_backend(transport, device, bytes), transport, nullptr, patient()),
        host(transport->subgroup(in_order(transport->size()), 1), nullptr, patient()) {}

  Runtime& runtime() const { return device->runtime(); }
  int rank() const { return gpu.rank(); }
  int size() const { return gpu.size(); }
  CallOptions options(std::string_view label) const {
    return {.label = label, .stream = device->stream()};
  }
};

void on_gpus(int ranks, std::uint64_t seed, const std::function<void(GpuRank&)>& body) {
  check_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    const auto own = seed * 100 + static_cast<std::uint64_t>(transport->rank());
    GpuRank rank(std::move(transport), open_gpu(own));
    body(rank);
  });
}

/// An array in a GPU's memory; everything happens in the computing stream.
template <class T>
struct OnGpu {
  GpuRank& rank;
  Tensor tensor;
  std::int64_t count;

  OnGpu(GpuRank& of, const std::vector<T>& values)
      : rank(of),
        tensor(Tensor::empty(of.device, {std::max<std::int64_t>(1, std::ssize(values))},
                             dtype_for<T>())),
        count(std::ssize(values)) {
    // Something else comes before the numbers, for those who look too early.
    rank.runtime().fill_zero(address(), tensor.bytes(), tensor.stream());
    write(values);
  }
  std::byte* address() const { return tensor.view().address; }
  View view() const { return {address(), dtype_for<T>(), {count}}; }
  View piece(std::int64_t at, std::int64_t length) const {
    return {address() + static_cast<std::size_t>(at) * sizeof(T), dtype_for<T>(), {length}};
  }
  std::size_t bytes() const { return static_cast<std::size_t>(count) * sizeof(T); }
  void write(const std::vector<T>& values) const {
    rank.runtime().copy_from_host(address(), reinterpret_cast<const std::byte*>(values.data()),
                                  bytes(), tensor.stream());
  }
  std::vector<T> read() const {
    std::vector<T> values(static_cast<std::size_t>(count));
    rank.runtime().copy_to_host(reinterpret_cast<std::byte*>(values.data()), address(), bytes(),
                                tensor.stream());
    return values;
  }
};

/// An operation on a rank's data, and on what the root has of all.
using Call = std::function<Handle(Communicator&, const View&, const View&, const CallOptions&)>;

/// Calls on the host and on the GPU, and checks that all of the memory is the same afterwards.
template <class T>
void expect_as_on_host(GpuRank& rank, std::size_t count, std::string_view what, const Call& call) {
  auto data = numbers<T>(rank.rank(), count, 1);
  auto all = numbers<T>(rank.rank(), count * static_cast<std::size_t>(rank.size()), 2);
  const OnGpu<T> gpu_data(rank, data), gpu_all(rank, all);
  const Handle operation = call(rank.gpu, gpu_data.view(), gpu_all.view(), rank.options(what));
  call(rank.host, view_of(data), view_of(all), {.label = what})->wait();
  operation->wait();
  expect_same(gpu_data.read(), data, what);
  expect_same(gpu_all.read(), all, what);
}

View part_of(const View& view, std::int64_t from, std::int64_t count) {
  return {view.address + static_cast<std::size_t>(from) * size_of(view.dtype), view.dtype, {count}};
}

/// Every rank r sends 1 / (3 + r) of its data, from the middle on, to every rank. Ranks with an odd
/// number send nothing to rank 0.
std::vector<Transfer> exchange(const Communicator& c, const View& data, const View& all) {
  const auto length = [&](int from, int to) {
    return from % 2 == 1 && to == 0 ? 0 : data.size() / (3 + from);
  };
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < c.size(); ++peer)
    transfers.push_back({true, peer, part_of(data, data.size() / 2, length(c.rank(), peer))});
  for (int peer = 0; peer < c.size(); ++peer)
    transfers.push_back({false, peer, part_of(all, peer * data.size(), length(peer, c.rank()))});
  return transfers;
}

template <class T>
void check_every_collective(GpuRank& rank, std::size_t count) {
  const auto check = [&](std::string_view what, const Call& call) {
    expect_as_on_host<T>(rank, count, what, call);
  };
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::maximum})
    check("all_reduce", [op](Communicator& c, const View& data, const View&, CallOptions options) {
      options.op = op;
      return c.all_reduce(data, options);
    });
  const auto total = static_cast<std::int64_t>(count);
  std::vector<Part> last(static_cast<std::size_t>(rank.size()));
  last.back() = {0, total};
  for (const auto& parts : {even_parts(total, rank.size()), even_parts(total, rank.size(), 1),
                            uneven_parts(count, rank.size()), last}) {
    check("reduce_scatter",
          [&](Communicator& c, const View& data, const View&, const auto& options) {
            return c.reduce_scatter(data, parts, options);
          });
    check("all_gather", [&](Communicator& c, const View& data, const View&, const auto& options) {
      return c.all_gather(data, parts, options);
    });
  }
  for (int root = 0; root < rank.size(); ++root) {
    const auto at_root = [root](Communicator& c, const View& all) {
      return c.rank() == root ? all : View{};
    };
    check("reduce", [=](Communicator& c, const View& data, const View&, const auto& options) {
      return c.reduce(data, root, options);
    });
    check("broadcast", [=](Communicator& c, const View& data, const View&, const auto& options) {
      return c.broadcast(data, root, options);
    });
    check("gather", [=](Communicator& c, const View& data, const View& all, const auto& options) {
      return c.gather(data, at_root(c, all), root, options);
    });
    check("scatter", [=](Communicator& c, const View& data, const View& all, const auto& options) {
      return c.scatter(at_root(c, all), data, root, options);
    });
  }
  check("p2p", [](Communicator& c, const View& data, const View& all, const auto& options) {
    return c.p2p(exchange(c, data, all), options);
  });
}

}  // namespace

TEST_CASE("staged: every collective gives the bits of the host's", "[threads]") {
  if (!have_gpu()) return;
  std::uint64_t seed = 0;
  for (const int ranks : {1, 2, 3, 4})
    on_gpus(ranks, ++seed, [](GpuRank& rank) {
      for (const std::size_t count : {0U, 1U, 65U, 1000U, 9001U}) {
        check_every_collective<float>(rank, count);
        check_every_collective<BFloat16>(rank, count);
      }
      check_every_collective<double>(rank, 200);
      check_every_collective<std::int32_t>(rank, 200);
    });
}

TEST_CASE("staged: calls without a GPU's stream are on host memory", "[threads]") {
  if (!have_gpu()) return;
  on_gpus(3, 1, [](GpuRank& rank) {
    const OnGpu<float> data(rank, numbers<float>(rank.rank(), 3000));
    const Handle reduced_meanwhile = rank.gpu.all_reduce(data.view(), rank.options("on the GPU"));
    expect(rank.gpu.backend() == "staged", "the name of the backend");
    expect(rank.gpu.gather_values(rank.rank(), "ranks") == in_order(3), "gather_values");
    expect(rank.gpu.share_text("text", 1, "text") == "text", "share_text");
    rank.gpu.barrier("barrier")->wait();
    reduced_meanwhile->wait();
    expect_same(data.read(), reduced<float>(3, 3000, 0), "an all_reduce among others");
  });
}

TEST_CASE("staged: more operations than buffers, waited for in any order", "[threads]") {
  if (!have_gpu()) return;
  constexpr std::size_t operations = 11, count = 2000;
  for (std::uint64_t seed = 1; seed <= 6; ++seed)
    on_gpus(3, seed, [&](GpuRank& rank) {
      std::vector<OnGpu<float>> data;
      std::vector<Handle> handles;
      for (std::uint64_t i = 0; i < operations; ++i) {
        data.emplace_back(rank, numbers<float>(rank.rank(), count, i));
        handles.push_back(i % 3 == 1
                              ? rank.gpu.broadcast(data[i].view(), 1, rank.options("broadcast"))
                              : rank.gpu.all_reduce(data[i].view(), rank.options("sum")));
      }
      for (std::size_t i = 0; i < operations; ++i) {
        const std::size_t at = i * 7 % operations;
        handles[at]->wait();
        expect_same(data[at].read(),
                    at % 3 == 1 ? numbers<float>(1, count, at) : reduced<float>(3, count, at),
                    "one of many operations");
      }
    });
}

TEST_CASE("staged: what the stream does before and after an operation keeps its place",
          "[threads]") {
  if (!have_gpu()) return;
  constexpr std::size_t count = 700;
  constexpr std::uint64_t rounds = 7;
  for (std::uint64_t seed = 1; seed <= 12; ++seed)
    on_gpus(2, seed, [&](GpuRank& rank) {
      const OnGpu<float> data(rank, std::vector<float>(count));
      const std::vector<float> zeros(count);
      std::vector<OnGpu<float>> before, after, ones;
      ones.emplace_back(rank, std::vector<float>(count, 1));
      for (std::uint64_t i = 0; i < rounds; ++i) {
        before.emplace_back(rank, zeros);
        after.emplace_back(rank, zeros);
      }
      const auto keep = [&](const OnGpu<float>& copy) {
        rank.runtime().copy_within(copy.address(), data.address(), data.bytes(),
                                   rank.device->stream());
      };
      // The same array in every round, and the host waits for nothing but the other rank.
      for (std::uint64_t i = 0; i < rounds; ++i) {
        data.write(numbers<float>(rank.rank(), count, i));
        run(Add{.out = data.view(), .a = data.view(), .b = ones[0].view()}, rank.device->stream());
        keep(before[i]);
        const CallOptions options = rank.options("round");
        (i % 2 == 0 ? rank.gpu.all_reduce(data.view(), options)
                    : rank.gpu.broadcast(data.view(), 0, options))
            ->wait();
        keep(after[i]);
        rank.runtime().fill_zero(data.address(), data.bytes(), rank.device->stream());
      }
      for (std::uint64_t i = 0; i < rounds; ++i) {
        std::array<std::vector<float>, 2> mine;
        for (int r = 0; r < 2; ++r) {
          auto& values = mine[static_cast<std::size_t>(r)];
          values = numbers<float>(r, count, i);
          for (float& value : values)
            value += 1;
        }
        auto wanted = mine[0];
        for (std::size_t k = 0; k < count && i % 2 == 0; ++k)
          wanted[k] += mine[1][k];
        expect_same(before[i].read(), mine[static_cast<std::size_t>(rank.rank())], "before");
        expect_same(after[i].read(), wanted, "after");
      }
    });
}

TEST_CASE("staged: messages of two ranks keep their order", "[threads]") {
  if (!have_gpu()) return;
  constexpr std::size_t messages = 9, count = 500;
  for (std::uint64_t seed = 1; seed <= 12; ++seed)
    on_gpus(2, seed, [&](GpuRank& rank) {
      std::vector<OnGpu<float>> data;
      std::vector<Handle> handles;
      for (std::uint64_t i = 0; i < messages; ++i) {
        data.emplace_back(rank, numbers<float>(rank.rank(), count, i));
        handles.push_back(rank.gpu.p2p({{rank.rank() == 0, 1 - rank.rank(), data[i].view()}},
                                       rank.options("message")));
      }
      for (std::uint64_t i = messages; i-- > 0;) {
        handles[i]->wait();
        expect_same(data[i].read(), numbers<float>(0, count, i), "a message");
      }
    });
}

TEST_CASE("staged: an operation that fits into no buffer is refused", "[threads]") {
  if (!have_gpu()) return;
  const auto attempt = [](std::size_t count, bool gather) {
    run_on_threads(2, [&](std::unique_ptr<Transport> transport) {
      GpuRank rank(std::move(transport), open_gpu(1), 4096);
      const OnGpu<float> data(rank, std::vector<float>(count));
      const OnGpu<float> all(rank, std::vector<float>(2 * count));
      if (gather)
        rank.gpu
            .gather(data.view(), rank.rank() == 0 ? all.view() : View{}, 0, rank.options("gather"))
            ->wait();
      else
        rank.gpu.all_reduce(data.view(), rank.options("sum"))->wait();
    });
  };
  attempt(1024, false);
  REQUIRE_THROWS_WITH(attempt(1025, false),
                      Catch::StartsWith("all_reduce of 4100 bytes does not fit into a buffer of "
                                        "4096 bytes"));
  attempt(336, true);
  REQUIRE_THROWS_WITH(attempt(345, true), Catch::StartsWith("gather of 4168 bytes does not fit"));
}

TEST_CASE("staged: operations that are given up leave nothing behind", "[threads]") {
  if (!have_gpu()) return;
  constexpr std::size_t count = 3000;
  for (std::uint64_t seed = 1; seed <= 8; ++seed)
    check_threads(2, [&](std::unique_ptr<Transport> by) {
      const std::shared_ptr<Transport> transport = std::move(by);
      const int me = transport->rank();
      const DevicePtr device = open_gpu(seed * 100 + static_cast<std::uint64_t>(me));
      const auto mine = numbers<float>(me, count);
      std::unique_ptr<Work> late;
      {
        GpuRank rank(transport, device);
        const auto backend = make_staged_backend(transport, device, largest);
        const OnGpu<float> given(rank, mine), got(rank, mine), other(rank, mine);
        const auto start = [&](Collective kind, const View& data, int tag) {
          return backend->start({.kind = kind, .data = data, .root = 1, .stream = device->stream()},
                                tag);
        };
        const auto finish = [](Work& work) {
          while (!work.advance())
            std::this_thread::yield();
        };
        // Rank 0 gives up what rank 1 never starts: in a buffer, and waiting for one.
        std::vector<std::unique_ptr<Work>> works;
        const auto start_in_vain = [&](int operations) {
          for (int i = 0; i < operations && me == 0; ++i) {
            const int tag = 800 + 8 * static_cast<int>(works.size());
            works.push_back(start(Collective::all_reduce, given.view(), tag));
          }
        };
        start_in_vain(3);
        // The operation is over, but nobody waits for the copy back.
        auto arrived = start(Collective::broadcast, got.view(), 1600);
        finish(*arrived);
        arrived.reset();
        // Later work in the stream still comes after the copy.
        rank.runtime().fill_zero(got.address(), got.bytes(), device->stream());
        rank.runtime().synchronize(device->stream());
        start_in_vain(4);
        works.clear();
        // Operations that were given up have returned their buffers.
        for (int i = 0; i < 9; ++i) {
          other.write(mine);
          const auto work = start(Collective::all_reduce, other.view(), 3200 + 8 * i);
          finish(*work);
          work->join();
          expect_same(other.read(), reduced<float>(2, count, 0), "after others were given up");
        }
        expect_same(got.read(), std::vector<float>(count), "a copy that nobody had waited for");
        // Outlives the backend that it is of.
        late = start(Collective::all_reduce, other.view(), 2400);
      }
      device->runtime().synchronize(device->stream());
      late.reset();
      device->runtime().synchronize(device->stream());
    });
}

TEST_CASE("staged: memory that cannot be pinned makes it slower, not wrong", "[threads]") {
  if (!have_gpu()) return;
  check_threads(3, [](std::unique_ptr<Transport> transport) {
    const auto seed = static_cast<std::uint64_t>(transport->rank());
    GpuRank rank(std::move(transport), std::make_shared<DeviceContext>(
                                           std::make_unique<UnpinnedRuntime>(seed, 1), 64 << 20));
    check_every_collective<float>(rank, 1000);
  });
}

}  // namespace sluice::test::staged_test
