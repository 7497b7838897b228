#include "tests/parallel/gpu_ranks.h"

namespace sluice::test {
namespace {

/// An operation on a rank's data, and on what the root has of all.
using Call = std::function<Handle(Communicator&, const View&, const View&, const CallOptions&)>;

/// Calls on the host and on the GPU, and checks that all of the memory is the same afterwards.
/// `scratch`: bytes of scratch memory on the GPU.
template <class T>
void expect_as_on_host(GpuRank& rank, std::size_t count, std::string_view what, const Call& call,
                       std::int64_t scratch = 0) {
  auto data = numbers<T>(rank.rank(), count, 1);
  auto all = numbers<T>(rank.rank(), count * static_cast<std::size_t>(rank.size()), 2);
  const OnGpu<T> gpu_data(rank, data), gpu_all(rank, all);
  CallOptions options = rank.options(what);
  const Tensor slots = Tensor::zeros(rank.device, {std::max<std::int64_t>(scratch, 1)}, DType::u8);
  if (scratch > 0) options.scratch = slots.view();
  const Handle operation = call(rank.gpu, gpu_data.view(), gpu_all.view(), options);
  call(rank.host, view_of(data), view_of(all), {.label = what})->wait();
  operation->wait();
  expect_same(gpu_data.read(), data, what);
  expect_same(gpu_all.read(), all, what);
}

View part_of(const View& view, std::int64_t from, std::int64_t count) {
  return {view.address + static_cast<std::size_t>(from) * size_of(view.dtype), view.dtype, {count}};
}

/// Every rank r sends 1 / (3 + r) of its data, from the middle or a third on, to every rank. Ranks
/// with an odd number send nothing to rank 0.
std::vector<Transfer> exchange(const Communicator& c, const View& data, const View& all) {
  const auto length = [&](int from, int to) {
    return from % 2 == 1 && to == 0 ? 0 : data.size() / (3 + from);
  };
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < c.size(); ++peer)
    transfers.push_back(
        {true, peer, part_of(data, data.size() / (2 + peer % 2), length(c.rank(), peer))});
  for (int peer = 0; peer < c.size(); ++peer)
    transfers.push_back({false, peer, part_of(all, peer * data.size(), length(peer, c.rank()))});
  return transfers;
}

}  // namespace

template <class T>
void check_every_collective(GpuRank& rank, std::size_t count) {
  const auto check = [&](std::string_view what, const Call& call, std::int64_t scratch = 0) {
    expect_as_on_host<T>(rank, count, what, call, scratch);
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
    for (const std::int64_t scratch : {std::int64_t{0}, padded_bytes(parts, dtype_for<T>())}) {
      check(
          "reduce_scatter",
          [&](Communicator& c, const View& data, const View&, const auto& options) {
            return c.reduce_scatter(data, parts, options);
          },
          scratch);
      check(
          "all_gather",
          [&](Communicator& c, const View& data, const View&, const auto& options) {
            return c.all_gather(data, parts, options);
          },
          scratch);
    }
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

template void check_every_collective<float>(GpuRank&, std::size_t);
template void check_every_collective<BFloat16>(GpuRank&, std::size_t);
template void check_every_collective<double>(GpuRank&, std::size_t);
template void check_every_collective<std::int32_t>(GpuRank&, std::size_t);

}  // namespace sluice::test
