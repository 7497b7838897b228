#include "kernels/base/runtime.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "kernels/base/error.h"

namespace sluice {
namespace {

/// The smallest limit of a control group and its parents; the largest number if there is none.
std::size_t limit_upwards(const std::string& mount, std::string group, const char* file_name) {
  std::size_t limit = std::numeric_limits<std::size_t>::max();
  while (true) {
    std::ifstream file(mount + group + "/" + file_name);
    std::size_t bytes = 0;
    if (file >> bytes) limit = std::min(limit, bytes);  // "max" does not parse: no limit
    if (group.empty()) return limit;
    group.erase(group.rfind('/'));
  }
}

/// The limit of the process's own control group, version 1 or 2. In a container the group's path is
/// that of the host, but its files are at the mount's root, so both places are read.
std::size_t cgroup_limit() {
  std::size_t limit = std::numeric_limits<std::size_t>::max();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/a/b", "0::/a/b"
    const auto path = line.find(":/");
    if (path == std::string::npos) continue;
    const bool second = line.starts_with("0::");
    if (!second && line.find(":memory:") == std::string::npos) continue;
    std::string group = line.substr(path + 1);
    if (group == "/") group.clear();
    const std::string mount = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    limit = std::min(limit, limit_upwards(mount, std::move(group),
                                          second ? "memory.max" : "memory.limit_in_bytes"));
  }
  return limit;
}

/// The processor's model name.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "CPU";
}

class CpuRuntime final : public Runtime {
 public:
  Device device() const override { return {DeviceKind::cpu, 0}; }
  DeviceInfo info() const override {
    return {.name = processor_name(), .memory = capacity(), .free_memory = capacity()};
  }

  std::byte* reserve(std::size_t bytes) override {
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    // Large pages make the first touch of a gigabyte several times faster. This hint may fail.
    madvise(start, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(start);
  }
  void release(std::byte* start, std::size_t bytes) override { munmap(start, bytes); }

  std::size_t capacity() const override {
    const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
    rlimit addresses{};
    const bool limited =
        getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY;
    const std::size_t own = limited ? static_cast<std::size_t>(addresses.rlim_cur) : pages * page;
    return std::min({pages * page, cgroup_limit(), own});
  }

  void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes, Stream) override {
    std::memcpy(to, from, bytes);
  }
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes, Stream) override {
    std::memcpy(to, from, bytes);
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t bytes, Stream) override {
    std::memmove(to, from, bytes);
  }
  void fill_zero(std::byte* start, std::size_t bytes, Stream) override {
    std::memset(start, 0, bytes);
  }
};

class MetaRuntime final : public Runtime {
 public:
  explicit MetaRuntime(std::size_t workspace_bytes) : workspace_bytes_(workspace_bytes) {}
  Device device() const override { return {DeviceKind::meta, 0}; }
  DeviceInfo info() const override { return {.name = "meta", .memory = capacity()}; }
  std::byte* reserve(std::size_t) override {
    constexpr std::uintptr_t nowhere = std::uintptr_t{1} << 40;
    return reinterpret_cast<std::byte*>(nowhere);  // NOLINT(performance-no-int-to-ptr)
  }
  void release(std::byte*, std::size_t) override {}
  std::size_t capacity() const override { return std::size_t{1} << 46; }
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  void copy_from_host(std::byte*, const std::byte*, std::size_t, Stream) override {}
  void copy_to_host(std::byte* to, const std::byte*, std::size_t bytes, Stream) override {
    std::memset(to, 0, bytes);
  }
  void copy_within(std::byte*, const std::byte*, std::size_t, Stream) override {}
  void fill_zero(std::byte*, std::size_t, Stream) override {}

 private:
  std::size_t workspace_bytes_;
};

}  // namespace

std::byte* Runtime::reserve_pinned(std::size_t bytes) {
  void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

void Runtime::release_pinned(std::byte* start, std::size_t bytes) {
  munmap(start, bytes);
}

bool Runtime::pin(std::byte*, std::size_t) {
  return false;
}

void Runtime::unpin(std::byte*) {}

void Runtime::begin_capture(Stream) {
  fail("only a GPU has graphs");
}

Graph Runtime::end_capture(Stream) {
  fail("only a GPU has graphs");
}

void Runtime::launch(Graph, Stream) {
  fail("only a GPU has graphs");
}

std::unique_ptr<Runtime> make_cpu_runtime() {
  return std::make_unique<CpuRuntime>();
}

std::unique_ptr<Runtime> make_meta_runtime(std::size_t workspace_bytes) {
  return std::make_unique<MetaRuntime>(workspace_bytes);
}

}  // namespace sluice
