#include "parallel/comm/device_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "engine/process_state.h"
#include "parallel/comm/backend/self_test.h"
#include "parallel/comm/backend/staged_backend.h"
#include "parallel/comm/communicator.h"

namespace sluice {
namespace {

/// Returns why NCCL would refuse these GPUs; empty if it takes them. A UUID identifies one GPU
/// everywhere: the same one under two host names means two containers on one computer. NCCL takes
/// ranks with different NCCL_HOSTID for ranks of different computers, which share nothing.
std::string shared_gpu(const std::vector<RankDevice>& ranks) {
  std::map<std::pair<std::string, std::string>, std::size_t> owners;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankDevice& mine = ranks[rank];
    const auto [owner, is_new] = owners.try_emplace({mine.uuid, mine.host_id}, rank);
    if (!is_new)
      return fmt::format("ranks {} and {} share the GPU {} of {}, which NCCL refuses",
                         owner->second, rank, mine.uuid, ranks[owner->second].host);
  }
  return {};
}

/// Returns why the ranks have no NCCL in common; empty if they have.
std::string missing_nccl(const std::vector<RankDevice>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].nccl.empty()) return fmt::format("rank {}: {}", rank, ranks[rank].nccl_error);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank].nccl != ranks[0].nccl)
      return fmt::format("rank 0 has NCCL {} and rank {} has {}", ranks[0].nccl, rank,
                         ranks[rank].nccl);
  return {};
}

std::vector<RankDevice> ask_all(Communicator& ranks, Runtime& runtime, bool nccl_wanted) {
  constexpr std::string_view label = "choice of a backend";
  const auto hosts = ranks.gather_texts(this_process().host, label);
  const auto uuids = ranks.gather_texts(runtime.info().uuid, label);
  const char* const host_id = std::getenv("NCCL_HOSTID");
  const auto host_ids = ranks.gather_texts(host_id ? host_id : "", label);
  std::vector<RankDevice> devices;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    devices.push_back({.host = hosts[rank], .uuid = uuids[rank], .host_id = host_ids[rank]});
  // NCCL's library has 200 MB, so it is loaded only if it can be used. All ranks decide alike.
  if (!nccl_wanted || !shared_gpu(devices).empty()) return devices;
  std::string why;
  const auto versions = ranks.gather_texts(nccl_version(why), label);
  const auto reasons = ranks.gather_texts(why, label);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    devices[rank].nccl = versions[rank];
    devices[rank].nccl_error = reasons[rank];
  }
  return devices;
}

/// Returns how self-tests have failed, each sentence with the first rank that says it; empty if
/// none has failed. All ranks decide alike.
std::string fault_of(Backend& nccl, const std::shared_ptr<Transport>& transport, Runtime& runtime,
                     std::byte* memory, double timeout) {
  const std::string mine =
      self_test(nccl, transport->rank(), transport->size(), runtime, memory, timeout);
  // Another rank may still wait for its operation.
  Communicator ranks(transport, nullptr, {.name = "self-test", .timeout = 2 * timeout});
  const auto all = ranks.gather_texts(mine, "self-test");
  std::string faults;
  for (auto text = all.begin(); text != all.end(); ++text)
    if (!text->empty() && std::find(all.begin(), text, *text) == text)
      faults += fmt::format("{}rank {}: {}", faults.empty() ? "" : "; ", text - all.begin(), *text);
  return faults;
}

/// A little device memory, taken from the system.
class SystemMemory {
 public:
  SystemMemory(Runtime& runtime, std::size_t bytes)
      : runtime_(runtime), bytes_(bytes), start_(runtime.reserve(bytes)) {
    if (start_ == nullptr)
      fail(fmt::format("the GPU has no {} bytes left for the self-test of NCCL", bytes));
  }
  ~SystemMemory() { runtime_.release(start_, bytes_); }
  SystemMemory(const SystemMemory&) = delete;
  SystemMemory& operator=(const SystemMemory&) = delete;

  std::byte* start() const { return start_; }

 private:
  Runtime& runtime_;
  std::size_t bytes_;
  std::byte* start_;
};

}  // namespace

std::string nccl_version(std::string& why) try {
  if constexpr (SLUICE_HAS_NCCL) return loaded_nccl();
  why =
      "this program was built without NCCL; build it where the CUDA toolkit and the package "
      "libnccl-dev are installed";
  return {};
} catch (const Error& error) {
  why = error.what();
  return {};
}

BackendChoice choose_backend(const std::vector<RankDevice>& ranks,
                             std::optional<GpuExchange> asked) {
  if (asked == GpuExchange::staged) return {false, "staged: as asked for"};
  if (!asked && ranks.size() == 1) return {false, "staged: a rank alone sends nothing"};
  std::string obstacle = shared_gpu(ranks);
  if (obstacle.empty()) obstacle = missing_nccl(ranks);
  if (obstacle.empty())
    return {true, fmt::format("nccl {}: one GPU for each of {} rank{}", ranks[0].nccl, ranks.size(),
                              ranks.size() == 1 ? "" : "s")};
  if (asked == GpuExchange::nccl)
    fail(fmt::format("nccl was asked for, but {}; use auto or staged", obstacle), ErrorKind::usage);
  return {false, "staged: " + obstacle};
}

DeviceLink connect_devices(const std::shared_ptr<Transport>& transport, const DevicePtr& device,
                           std::optional<GpuExchange> asked, double timeout) {
  check(device->device().kind == DeviceKind::cuda, "a backend for GPUs was asked for without one");
  BackendChoice choice;
  {
    Communicator ranks(transport, nullptr, {.name = "devices", .timeout = timeout});
    const bool nccl_wanted =
        asked.value_or(GpuExchange::nccl) == GpuExchange::nccl && (asked || ranks.size() > 1);
    choice = choose_backend(ask_all(ranks, device->runtime(), nccl_wanted), asked);
  }
  if constexpr (SLUICE_HAS_NCCL)
    if (choice.nccl) {
      // To free memory waits for what occupies the GPU, which the end of `link` ends.
      const SystemMemory memory(device->runtime(), self_test_bytes(transport->size()));
      const auto from_first = [&](const std::string& text) {
        Communicator ranks(transport, nullptr, {.name = "nccl", .timeout = timeout});
        return ranks.share_text(text, 0, "unique id");
      };
      DeviceLink link{.nccl = connect_nccl(*transport, device, timeout, from_first),
                      .reason = choice.reason};
      const std::string fault = fault_of(*make_nccl_backend(transport, link.nccl), transport,
                                         device->runtime(), memory.start(), timeout);
      if (fault.empty()) return link;
      if (asked)
        fail(fmt::format("nccl was asked for and failed its self-test: {}; use staged", fault));
      link.nccl.reset();
      choice.reason = fmt::format("staged: NCCL failed its self-test: {}", fault);
    }
  return {.nccl = nullptr, .reason = choice.reason};
}

std::unique_ptr<Backend> make_device_backend(const DeviceLink& link,
                                             const std::shared_ptr<Transport>& transport,
                                             const DevicePtr& device, std::size_t largest_bytes) {
  if constexpr (SLUICE_HAS_NCCL)
    if (link.nccl != nullptr) return make_nccl_backend(transport, link.nccl);
  return make_staged_backend(transport, device, largest_bytes);
}

}  // namespace sluice
