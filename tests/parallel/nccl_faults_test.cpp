// What goes wrong between ranks with NCCL ends with a sentence, not with a wait for ever.
#include <mutex>
#include <set>
#include <thread>

#include "parallel/comm/device_backend.h"
#include "tests/parallel/nccl_standin.h"
#include "tests/support/catch.h"

namespace sluice::test::nccl_faults_test {
namespace {

using Start = std::function<CollectiveCall(int rank, const View& data)>;

/// Ranks start what `start` says, without the checks of a communicator, and wait at most two
/// seconds. Returns what they say.
std::string sentences(const std::string& options, const Start& start, int ranks = 2) {
  set_standin(options);
  std::mutex mutex;
  std::set<std::string> said;
  run_on_threads(ranks, [&](std::unique_ptr<Transport> by) {
    const std::shared_ptr<Transport> transport = std::move(by);
    const int rank = transport->rank();
    const auto say = [&](const std::string& text) {
      const std::lock_guard lock(mutex);
      said.insert(text);
    };
    try {
      const DevicePtr device = open_gpu(static_cast<std::uint64_t>(rank) + 1);
      const auto backend = by_nccl(1)(transport, device);
      const Tensor data = Tensor::empty(device, {128}, DType::f32);
      device->runtime().fill_zero(data.view().address, data.bytes(), device->stream());
      const Tensor scratch = Tensor::zeros(device, {4096}, DType::u8);
      CollectiveCall call = start(rank, data.slice(0, {64}).view());
      call.scratch = scratch.view();
      call.stream = device->stream();
      const auto work = backend->start(call, 8);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (!work->advance()) {
        if (std::chrono::steady_clock::now() > deadline) fail("it waits for ever");
        std::this_thread::yield();
      }
    } catch (const Error& error) {
      say(error.what());
    }
  });
  std::string all;
  for (const std::string& text : said)
    all += text + "\n";
  return all;
}

CollectiveCall sum_of(const View& data) {
  return {.kind = Collective::all_reduce, .data = data};
}

}  // namespace

TEST_CASE("nccl: ranks that agree say nothing", "[threads]") {
  CHECK(sentences("", [](int, const View& data) { return sum_of(data); }) == "");
}

TEST_CASE("nccl: ranks that do different things are told what", "[threads]") {
  const auto shorter = [](const View& data) { return View(data.address, data.dtype, {63}); };
  CHECK_THAT(
      sentences(
          "", [&](int rank, const View& data) { return sum_of(rank == 0 ? data : shorter(data)); }),
      Contains("all_reduce of 64") && Contains("all_reduce of 63"));
  CHECK_THAT(sentences(
                 "",
                 [](int rank, const View& data) {
                   return CollectiveCall{.kind = Collective::broadcast, .data = data, .root = rank};
                 },
                 3),
             Contains("root 0") && (Contains("root 1") || Contains("root 2")));
  CHECK_THAT(sentences(
                 "",
                 [](int rank, const View& data) {
                   auto call = sum_of(data);
                   if (rank == 1) call.kind = Collective::broadcast;
                   call.root = 0;
                   return call;
                 },
                 3),
             Contains("all_reduce") && Contains("broadcast"));
}

TEST_CASE("nccl: parts of different sizes are one operation of NCCL", "[threads]") {
  // The ranks differ in the sizes, so that they are told what each has called.
  for (const auto& [kind, name] : {std::pair{Collective::reduce_scatter, "reduce_scatter"},
                                   std::pair{Collective::all_gather, "all_gather"}}) {
    CAPTURE(name);
    const std::string said = sentences("", [called = kind](int rank, const View& data) {
      return CollectiveCall{
          .kind = called, .data = data, .parts = {{0, 3}, {3, rank == 0 ? 7 : 100}}};
    });
    CHECK_THAT(said, Contains(name) && !Contains("reduce of") && !Contains("broadcast"));
  }
}

TEST_CASE("nccl: a rank that does not connect ends the others' wait") {
  CHECK_THAT(sentences("never_joins=1", [](int, const View& data) { return sum_of(data); }),
             Contains("has not connected the 2 ranks within 1 s (--collective-timeout)"));
}

TEST_CASE("nccl: a fault of the network is reported", "[threads]") {
  CHECK_THAT(
      sentences("fail_rank=0 fail_call=1", [](int, const View& data) { return sum_of(data); }),
      Contains("remote process exited or there was a network error") &&
          Contains("the network is gone"));
}

TEST_CASE("nccl: NCCL must pass a self-test", "[threads]") {
  const auto reason = [](const std::string& options, std::optional<GpuExchange> asked = {},
                         double timeout = 60) {
    set_standin(options);
    std::string text;
    check_threads(3, [&](std::unique_ptr<Transport> by) {
      const std::shared_ptr<Transport> transport = std::move(by);
      const DevicePtr device = open_gpu(static_cast<std::uint64_t>(transport->rank()) + 1);
      const DeviceLink link = connect_devices(transport, device, asked, timeout);
      Communicator gpus(make_device_backend(link, transport, device, 4096), transport, nullptr,
                        patient());
      // Whatever the choice is, it works.
      const Tensor data = Tensor::from_host(device, {1}, DType::f32, std::vector<double>{2});
      gpus.all_reduce(data.view(), {.label = "sum", .stream = data.stream()})->wait();
      expect(data.to_host() == std::vector<double>{6}, "a sum");
      if (transport->rank() == 0) text = link.reason;
    });
    return text;
  };
  CHECK(reason("") == "nccl 2.18.0: one GPU for each of 3 ranks");
  CHECK(reason("wrong_call=1") ==
        "staged: NCCL failed its self-test: rank 0: all_reduce gave wrong numbers");
  CHECK(reason("wrong_call=5").ends_with("rank 0: all_gather gave wrong numbers"));
  CHECK(reason("wrong_call=6").ends_with("rank 0: p2p gave wrong numbers"));
  CHECK_THAT(reason("fail_rank=1 fail_call=2", {}, 2), Contains("rank 1: NCCL 2.18.0 failed"));
  CHECK_THAT(reason("lost_call=2", {}, 2), Contains("reduce has not ended within 2 s"));
  // Who asks for NCCL gets it or an error.
  CHECK(reason("", GpuExchange::nccl) == "nccl 2.18.0: one GPU for each of 3 ranks");
  set_standin("wrong_call=4");
  check_threads(3, [](std::unique_ptr<Transport> by) {
    const std::shared_ptr<Transport> transport = std::move(by);
    const DevicePtr device = open_gpu(static_cast<std::uint64_t>(transport->rank()) + 1);
    std::string error;
    try {
      connect_devices(transport, device, GpuExchange::nccl, 60);
    } catch (const Error& caught) {
      error = caught.what();
    }
    expect(error ==
               "nccl was asked for and failed its self-test: rank 0: reduce_scatter gave wrong "
               "numbers; use staged",
           error);
  });
}

}  // namespace sluice::test::nccl_faults_test
