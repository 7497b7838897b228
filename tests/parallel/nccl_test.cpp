// Collectives of GPUs by NCCL, for which a library stands in (tests/nccl), on ranks that are
// threads with an emulated GPU each.
#include "parallel/comm/backend/nccl_backend.h"

#include <fmt/format.h>

#include "parallel/comm/device_backend.h"
#include "tests/parallel/gpu_ranks.h"
#include "tests/parallel/nccl_standin.h"
#include "tests/support/catch.h"

namespace sluice::test::nccl_test {
namespace {

void on_gpus(int ranks, std::uint64_t seed, const std::function<void(GpuRank&)>& body) {
  set_standin(fmt::format("seed={}", seed));
  check_threads(ranks, [&](std::unique_ptr<Transport> transport) {
    const auto own = seed * 100 + static_cast<std::uint64_t>(transport->rank());
    GpuRank rank(std::move(transport), open_gpu(own), by_nccl());
    body(rank);
  });
}

}  // namespace

TEST_CASE("nccl: every collective gives the bits of the host's", "[threads]") {
  std::uint64_t seed = 0;
  for (const int ranks : {1, 2, 3, 5})
    on_gpus(ranks, ++seed, [](GpuRank& rank) {
      for (const std::size_t count : {0U, 1U, 65U, 1000U}) {
        check_every_collective<float>(rank, count);
        check_every_collective<BFloat16>(rank, count);
      }
      check_every_collective<double>(rank, 200);
      check_every_collective<std::int32_t>(rank, 200);
    });
}

TEST_CASE("nccl: a connected GPU gives no more of its memory to any operation", "[threads]") {
  constexpr std::size_t each = 1000;
  set_standin(fmt::format("memory={}", each));
  check_threads(3, [&](std::unique_ptr<Transport> by) {
    const std::shared_ptr<Transport> transport = std::move(by);
    // None of the program's memory is there yet.
    const auto device = std::make_shared<DeviceContext>(
        gpu_runtime(static_cast<std::uint64_t>(transport->rank()) + 1));
    const auto free = [&] { return device->runtime().info().free_memory; };
    const std::size_t before = free();
    DeviceLink link = connect_devices(transport, device, GpuExchange::nccl, 60);
    const std::size_t after = free();
    expect(before - after == 3 * each, "the memory of collectives and of messages to two ranks");
    device->reserve(std::size_t{64} << 20);
    {
      Communicator one(make_device_backend(link, transport, device, 0), transport, nullptr,
                       patient());
      const std::shared_ptr<Transport> second = transport->subgroup(in_order(3), 1);
      Communicator other(make_device_backend(link, second, device, 0), second, nullptr, patient());
      const Tensor data = Tensor::from_host(device, {2}, DType::f32, std::vector<double>{1, 2});
      const CallOptions options{.label = "data", .stream = data.stream()};
      one.all_reduce(data.view(), options)->wait();
      other.broadcast(data.view(), 0, options)->wait();
      expect(data.to_host() == std::vector<double>{3, 6}, "a sum by backends that share a link");
    }
    expect(free() == after, "no operation takes memory, and the link outlives the backends");
    link = {};
    expect(free() == before, "the end of a link gives the memory back");
  });
}

TEST_CASE("nccl: what the stream does before and after an operation keeps its place", "[threads]") {
  constexpr std::size_t count = 700;
  for (std::uint64_t seed = 1; seed <= 12; ++seed)
    on_gpus(2, seed, [&](GpuRank& rank) {
      const OnGpu<float> data(rank, std::vector<float>(count)),
          kept(rank, std::vector<float>(count));
      for (std::uint64_t round = 0; round < 5; ++round) {
        data.write(numbers<float>(rank.rank(), count, round));
        rank.gpu.all_reduce(data.view(), rank.options("round"))->wait();
        rank.runtime().copy_within(kept.address(), data.address(), data.bytes(),
                                   rank.device->stream());
        rank.runtime().fill_zero(data.address(), data.bytes(), rank.device->stream());
        expect_same(kept.read(), reduced<float>(2, count, round), "a sum");
      }
    });
}

TEST_CASE("nccl: a joined sum leaves the host free, and the stream waits for it", "[threads]") {
  constexpr std::size_t count = 300;
  for (std::uint64_t seed = 1; seed <= 12; ++seed)
    on_gpus(2, seed, [&](GpuRank& rank) {
      for (std::uint64_t round = 0; round < 4; ++round) {
        // Rank 1 starts its sum when rank 0 has joined its own. The first sum waits until the ranks
        // agree on what they do, so there both start before they meet.
        const bool waits = round > 0 && rank.rank() == 1;
        if (waits) rank.host.barrier("rank 0 has joined")->wait();
        const OnGpu<float> data(rank, numbers<float>(rank.rank(), count, round));
        rank.gpu.all_reduce(data.view(), rank.options("sum"))->join();
        if (!waits) rank.host.barrier("rank 0 has joined")->wait();
        expect_same(data.read(), reduced<float>(2, count, round), "a joined sum");
      }
    });
}

TEST_CASE("nccl: eleven ranks join their sums", "[threads]") {
  on_gpus(11, 1, [](GpuRank& rank) {
    const OnGpu<float> data(rank, std::vector<float>(20, 1));
    for (int round = 0; round < 4; ++round) {
      rank.gpu.all_reduce(data.view(), rank.options("sum"))->join();
      if (rank.rank() % 3 == 0) data.read();  // blocks the host until the GPU is done
    }
    rank.gpu.finish();
    expect(data.read() == std::vector<float>(20, 11 * 11 * 11 * 11), "a sum of sums");
  });
}

TEST_CASE("nccl: ranks that differ notice it at the first sum of a kind that they join",
          "[threads]") {
  on_gpus(2, 1, [](GpuRank& rank) {
    const OnGpu<float> data(rank, std::vector<float>(64));
    std::string said;
    try {
      rank.gpu.all_reduce(data.piece(0, 64 - rank.rank()), rank.options("sum"))->join();
    } catch (const Error& error) {
      said = error.what();
    }
    expect(said.find("64 f32") != std::string::npos && said.find("63 f32") != std::string::npos,
           "a sentence with both: " + said);
  });
}

TEST_CASE("nccl: finish() waits for joined sums, and says it if the ranks differ", "[threads]") {
  on_gpus(2, 1, [](GpuRank& rank) {
    const OnGpu<float> data(rank, std::vector<float>(64, 1));
    const auto sum = [&] { return rank.gpu.all_reduce(data.view(), rank.options("sum")); };
    sum()->wait();
    const Handle joined = sum();
    joined->join();
    rank.gpu.finish();
    expect(joined->over(), "a joined sum is over");
    // Rank 1 leaves out a sum, so its next one meets another of rank 0.
    std::string said;
    try {
      if (rank.rank() == 0) sum()->join();
      rank.gpu.all_reduce(data.view(), rank.options("other"))->join();
      rank.gpu.finish();
    } catch (const Error& error) {
      said = error.what();
    }
    expect(said.find("have lost each other") != std::string::npos, "a sentence: " + said);
  });
}

TEST_CASE("nccl: communicators of a mesh need room for one kernel", "[threads]") {
  // Each of four ranks is in a row and in a column. The GPU of each can run one kernel of NCCL,
  // which takes every operation at once, or some later than others.
  constexpr std::size_t count = 50;
  constexpr std::uint64_t operations = 6;
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    set_standin(fmt::format("seed={} resident=1 polls={}", seed, seed % 2 == 0 ? 0 : 5));
    check_threads(4, [&](std::unique_ptr<Transport> by) {
      const std::shared_ptr<Transport> transport = std::move(by);
      const int me = transport->rank();
      const DevicePtr device = open_gpu(seed * 100 + static_cast<std::uint64_t>(me));
      const int row = me / 2, column = me % 2;
      const int row_members[] = {2 * row, 2 * row + 1}, column_members[] = {column, column + 2};
      GpuRank rows(transport->subgroup(row_members, 20), device, by_nccl());
      GpuRank columns(transport->subgroup(column_members, 21), device, by_nccl());
      std::vector<OnGpu<float>> data;
      std::vector<Handle> handles;
      for (std::uint64_t i = 0; i < operations; ++i) {
        GpuRank& ranks = i % 2 == 0 ? rows : columns;
        data.emplace_back(ranks, numbers<float>(ranks.rank(), count, i));
        handles.push_back(ranks.gpu.all_reduce(data.back().view(), ranks.options("sum")));
      }
      for (std::uint64_t i = operations; i-- > 0;) {
        handles[i]->wait();
        expect_same(data[i].read(), reduced<float>(2, count, i), "a sum in a mesh");
      }
    });
  }
}

TEST_CASE("nccl: more ranks than a group may have messages add up", "[threads]") {
  constexpr int ranks = 260;
  on_gpus(ranks, 1, [](GpuRank& rank) {
    const OnGpu<std::int32_t> data(rank, {1, rank.rank()});
    rank.gpu.all_reduce(data.view(), rank.options("sum"))->wait();
    expect(data.read() == std::vector<std::int32_t>{ranks, ranks * (ranks - 1) / 2}, "a sum");
  });
}

}  // namespace sluice::test::nccl_test
