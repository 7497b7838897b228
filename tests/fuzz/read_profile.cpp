#include <cmath>

#include "apps/plan/cost/device_profile.h"
#include "engine/io/utf8.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {
namespace {

void require_possible(const DeviceProfile& p) {
  constexpr std::size_t max_bytes = std::size_t{1} << 50;
  for (const std::size_t bytes : {p.memory, p.host_memory, p.workspace, p.context, p.process})
    require(bytes <= max_bytes, "more memory than anybody has");
  require(p.capability >= 0 && p.capability <= 10'000, "a capability out of range");
  require(p.multiprocessors >= 0 && p.multiprocessors <= 1 << 20, "multiprocessors out of range");
  for (const double rate : {p.wide_flops, p.narrow_flops, p.memory_rate, p.to_device_rate,
                            p.to_host_rate, p.host_rate, p.link_bandwidth, p.link_latency})
    require(std::isfinite(rate) && rate >= 0 && rate <= 1e24, "a rate out of range");
  require(p.memory_rate > 0 && p.link_bandwidth > 0, "a rate that would be divided by is 0");
  require(p.wide_flops + p.narrow_flops > 0, "a machine that cannot compute");
  require(!p.name.empty() && p.name.size() <= 1000, "a name that no table has room for");
}

bool same(const DeviceProfile& a, const DeviceProfile& b) {
  const auto all = [](const DeviceProfile& p) {
    return std::tie(p.name, p.gpu, p.capability, p.multiprocessors, p.memory, p.host_memory,
                    p.workspace, p.context, p.process, p.wide_flops, p.narrow_flops, p.memory_rate,
                    p.to_device_rate, p.to_host_rate, p.host_rate, p.link_bandwidth,
                    p.link_latency);
  };
  return all(a) == all(b);
}

}  // namespace

void read_device_profile(Bytes input) {
  const Bytes bytes = input.substr(std::min<std::size_t>(1, input.size()));
  const bool card = input.starts_with('n');
  const DeviceProfile profile =
      card ? known_profile(std::string(bytes)) : load_profile(put("probe.json", bytes));
  require_possible(profile);
  if (card) require(same(known_profile(profile.name), profile), "a card's own name is not its own");
  save_profile(scratch() / "again.json", profile);
  require(same(load_profile(scratch() / "again.json"), profile), "a profile differs once written");
}

}  // namespace sluice::fuzz
