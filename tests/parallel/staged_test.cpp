// Collectives on GPU memory by way of the host, on ranks that are threads with a device each. The
// emulated GPU empties its streams in an order that a seed decides, so an event that nobody waits
// for leaves a wrong number.
#include "parallel/comm/backend/staged_backend.h"

#include <array>
#include <thread>

#include "kernels/base/run.h"
#include "kernels/elementwise.h"
#include "tests/parallel/gpu_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/unpinned_runtime.h"

namespace sluice::test::staged_test {

namespace {

constexpr std::size_t largest = 256 << 10;

MakeBackend staged(std::size_t bytes = largest) {
  return [bytes](const std::shared_ptr<Transport>& transport, const DevicePtr& device) {
    return make_staged_backend(transport, device, bytes);
  };
}

void on_gpus(int ranks, std::uint64_t seed, const std::function<void(GpuRank&)>& body) {
  check_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    const auto own = seed * 100 + static_cast<std::uint64_t>(transport->rank());
    GpuRank rank(std::move(transport), open_gpu(own), staged());
    body(rank);
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
      GpuRank rank(std::move(transport), open_gpu(1), staged(4096));
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
                      StartsWith("all_reduce of 4100 bytes does not fit into a buffer of "
                                 "4096 bytes"));
  // A p2p needs room for all its messages.
  const auto exchange = [](std::size_t messages) {
    run_on_threads(2, [&](std::unique_ptr<Transport> transport) {
      GpuRank rank(std::move(transport), open_gpu(1), staged(4096));
      std::vector<OnGpu<float>> data;
      std::vector<Transfer> transfers;
      for (std::size_t i = 0; i < messages; ++i) {
        data.emplace_back(rank, std::vector<float>(512));
        transfers.push_back({rank.rank() == 0, 1 - rank.rank(), data.back().view()});
      }
      rank.gpu.p2p(std::move(transfers), rank.options("messages"))->wait();
    });
  };
  exchange(2);
  REQUIRE_THROWS_WITH(exchange(3), StartsWith("p2p of 6144 bytes does not fit"));
  attempt(336, true);
  REQUIRE_THROWS_WITH(attempt(345, true), StartsWith("gather of 4168 bytes does not fit"));
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
        GpuRank rank(transport, device, staged());
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
    GpuRank rank(
        std::move(transport),
        std::make_shared<DeviceContext>(std::make_unique<UnpinnedRuntime>(seed, 1), 64 << 20),
        staged());
    check_every_collective<float>(rank, 1000);
  });
}

}  // namespace sluice::test::staged_test
