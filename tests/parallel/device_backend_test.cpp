// Which way GPUs' data takes between ranks, and the sentence that says why.
#include "parallel/comm/device_backend.h"

#include "parallel/comm/communicator.h"
#include "tests/parallel/checked_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/gpu/gpu.h"

namespace sluice::test::device_backend_test {

namespace {

RankDevice with_nccl(std::string host, std::string uuid, std::string version = "2.28.9") {
  return {.host = std::move(host), .uuid = std::move(uuid), .nccl = std::move(version)};
}

RankDevice without_nccl(std::string host, std::string uuid) {
  return {.host = std::move(host), .uuid = std::move(uuid), .nccl_error = "NCCL cannot be loaded"};
}

void expect_choice(const std::vector<RankDevice>& ranks, std::optional<GpuExchange> asked,
                   bool nccl, const std::string& reason) {
  const BackendChoice choice = choose_backend(ranks, asked);
  CHECK(choice.nccl == nccl);
  CHECK(choice.reason == reason);
}

}  // namespace

TEST_CASE("ranks that have a GPU each and NCCL use it") {
  const std::vector<RankDevice> four{with_nccl("a", "GPU-1"), with_nccl("a", "GPU-2"),
                                     with_nccl("b", "GPU-3"), with_nccl("b", "GPU-4")};
  for (const std::optional<GpuExchange> asked :
       {std::optional<GpuExchange>(), std::optional(GpuExchange::nccl)})
    expect_choice(four, asked, true, "nccl 2.28.9: one GPU for each of 4 ranks");
  expect_choice(four, GpuExchange::staged, false, "staged: as asked for");
}

TEST_CASE("ranks that share a GPU go by way of the host") {
  const std::string reason = "ranks 1 and 3 share the GPU GPU-2 of a, which NCCL refuses";
  std::vector<RankDevice> four{with_nccl("a", "GPU-1"), with_nccl("a", "GPU-2"),
                               with_nccl("b", "GPU-3"), with_nccl("a", "GPU-2")};
  expect_choice(four, std::nullopt, false, "staged: " + reason);
  // Two containers on one computer.
  four[3].host = "c";
  expect_choice(four, std::nullopt, false, "staged: " + reason);
  CHECK_THROWS_WITH(choose_backend(four, GpuExchange::nccl),
                    "nccl was asked for, but " + reason + "; use auto or staged");
  try {
    choose_backend(four, GpuExchange::nccl);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
  }
}

TEST_CASE("ranks that share a GPU use NCCL if NCCL_HOSTID puts them on computers of their own") {
  std::vector<RankDevice> two{with_nccl("a", "GPU-1"), with_nccl("a", "GPU-1")};
  two[0].host_id = two[1].host_id = "x";
  const std::string reason = "ranks 0 and 1 share the GPU GPU-1 of a, which NCCL refuses";
  expect_choice(two, std::nullopt, false, "staged: " + reason);
  two[1].host_id = "y";
  expect_choice(two, GpuExchange::nccl, true, "nccl 2.28.9: one GPU for each of 2 ranks");
}

TEST_CASE("one rank without NCCL, or with another one, keeps all from it") {
  std::vector<RankDevice> two{with_nccl("a", "GPU-1"), without_nccl("b", "GPU-2")};
  expect_choice(two, std::nullopt, false, "staged: rank 1: NCCL cannot be loaded");
  CHECK_THROWS_WITH(choose_backend(two, GpuExchange::nccl),
                    Contains("but rank 1: NCCL cannot be loaded"));
  two[1] = with_nccl("b", "GPU-2", "2.27.3");
  expect_choice(two, std::nullopt, false, "staged: rank 0 has NCCL 2.28.9 and rank 1 has 2.27.3");
}

TEST_CASE("a rank alone needs no NCCL, and can have it") {
  expect_choice({without_nccl("a", "GPU-1")}, std::nullopt, false,
                "staged: a rank alone sends nothing");
  expect_choice({with_nccl("a", "GPU-1")}, GpuExchange::nccl, true,
                "nccl 2.28.9: one GPU for each of 1 rank");
}

TEST_CASE("ranks on one GPU find out by asking each other", "[threads]") {
  if (!have_gpu()) return;
  check_threads(3, [](std::unique_ptr<Transport> by) {
    const std::shared_ptr<Transport> transport = std::move(by);
    const DevicePtr device = open_gpu(1);
    const std::string uuid = device->runtime().info().uuid;
    expect(uuid.starts_with("GPU-") && uuid.size() > 4, "the UUID of a GPU");
    const DeviceLink link = connect_devices(transport, device, std::nullopt, 60);
    expect(link.reason.starts_with("staged: ranks 0 and 1 share the GPU " + uuid), link.reason);
    // The transport is as good as new.
    Communicator ranks(make_device_backend(link, transport, device, 4096), transport, nullptr,
                       patient());
    expect(ranks.backend() == "staged", "the backend that was chosen");
    expect(ranks.gather_values(ranks.rank(), "ranks") == in_order(3), "gather_values");
    bool refused = false;
    try {
      connect_devices(transport, device, GpuExchange::nccl, 60);
    } catch (const Error& error) {
      refused = error.kind() == ErrorKind::usage;
    }
    expect(refused, "nccl on a GPU that ranks share");
  });
}

TEST_CASE("NCCL can be loaded, or there is a reason why not") {
  std::string why;
  const std::string version = nccl_version(why);
  CHECK(version.empty() != why.empty());
}

}  // namespace sluice::test::device_backend_test
