#include "apps/plan/cost/device_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/parse/meant.h"
#include "apps/plan/cost/calibrate.h"
#include "engine/host_memory.h"
#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "engine/tensor.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double giga = 1e9;
constexpr std::size_t mebi = std::size_t{1} << 20;
constexpr std::size_t gibi = std::size_t{1} << 30;

/// The workspace size that NVIDIA advises for cuBLASLt; the CUDA runtime here uses the same size.
constexpr std::size_t usual_workspace(int capability) {
  return (capability >= 90 ? 64 : 32) * mebi;
}
/// Host memory of the program, its libraries and the loader's buffers.
constexpr std::size_t usual_cpu_process = 192 * mebi;

struct Known {
  const char* key;
  const char* name;
  int capability, multiprocessors;
  int gigabytes;  ///< as marketed
  std::size_t memory;
  double teraflops, memory_rate, link_rate;  ///< 16-bit; GB/s; GB/s in one direction alone
  double peer_rate, peer_latency;            ///< GB/s to another GPU in the node; microseconds
  double host_rate;                          ///< GB/s of host memory in a suitable host
};
// Rates of large 16-bit products, below the peaks. They are assumed, but for those of the H200: one
// computed 720 TFLOP/s in products of 8192 x 8192 x 8192 and copied 45 GB/s each way. Peer rates
// are the data sheets', in one direction: NVLink 3 (600 GB/s both ways together) and 4 (900).
// GeForce cards have no peer access over PCIe (3.0: 16 GB/s, 4.0: 32), so transfers pass through
// host memory at half that rate. Latencies are those in NCCL's tuning table for one ring step over
// NVLink and over PCIe (hwLat in src/graph/tuning.cc, protocol Simple).
constexpr Known known[] = {
    {"2080ti", "RTX 2080 Ti", 75, 68, 11, 11 * gibi, 50, 616, 12, 8, 5.7, 35},
    {"3090", "RTX 3090", 86, 82, 24, 24 * gibi, 62, 936, 25, 16, 5.7, 40},
    {"4090", "RTX 4090", 89, 128, 24, 24 * gibi, 150, 1008, 25, 16, 5.7, 55},
    {"a100", "A100 80 GB", 80, 108, 80, 80 * gibi, 250, 1935, 25, 300, 3.4, 120},
    {"h100", "H100 80 GB", 90, 132, 80, 79 * gibi, 600, 3350, 55, 450, 3.4, 200},
    {"h200", "H200", 90, 132, 141, 139 * gibi, 720, 4800, 55, 450, 3.4, 200},
};

/// Words to ignore around a card's name, as in "NVIDIA GeForce RTX 3090", "A100-SXM4-80GB", "H100
/// PCIe".
constexpr std::string_view around[] = {"nvidia", "geforce", "rtx",  "tesla", "tensor", "core",
                                       "gpu",    "pcie",    "sxm",  "sxm2",  "sxm4",   "sxm5",
                                       "nvl",    "hbm2e",   "hbm3", "hbm3e"};

/// The name of a card, parsed from what a person has written.
struct CardName {
  std::string key;    ///< "a100", as in `known`
  int gigabytes = 0;  ///< memory size; 0: not stated
};

CardName read_card(const std::string& text) {
  std::string spaced = lower(text);
  std::ranges::replace_if(
      spaced, [](char c) { return c == '-' || c == '_'; }, ' ');
  CardName card;
  std::istringstream words(spaced);
  for (std::string word, before; words >> word; before = word) {
    if (word.starts_with("rtx") && word.size() > 3) word.erase(0, 3);
    const bool memory = word == "gb" || word == "gib";
    if (memory && card.key.ends_with(before)) {  // the words of "80 GB"
      card.key.resize(card.key.size() - before.size());
      word = before + word;
    }
    const auto [end, error] =
        std::from_chars(word.data(), word.data() + word.size(), card.gigabytes);
    const std::string_view unit(end, static_cast<std::size_t>(word.data() + word.size() - end));
    if (error == std::errc() && (unit == "g" || unit == "gb" || unit == "gib")) continue;
    card.gigabytes = 0;
    if (std::ranges::find(around, word) == std::end(around)) card.key += word;
  }
  return card;
}

/// Host memory assumed for a named card, whose host is unknown; --host-memory limits it.
constexpr std::size_t unlimited = std::size_t{1} << 46;

/// Fraction of its rate that a copy reaches while another runs in the opposite direction.
constexpr double duplex = 0.85;
/// Fraction of the memory's peak rate that a plain pass over memory reaches.
constexpr double memory_share = 0.8;

/// Fraction of the rate of a start's short products that long ones reach on a GPU, whose clock
/// falls meanwhile: 720 of 853 TFLOP/s on an H200, in bf16.
constexpr double sustained_share = 0.85;
/// Fraction of a short product's rate that whole passes in fp32 reach on a GPU. It is assumed;
/// those in bf16 reached 0.62 on an H200.
constexpr double passes_share = 0.62;

/// Fraction of a link's nominal rate that collectives reach: NCCL counts 235 of an A100's 300 GB/s.
constexpr double peer_share = 0.75;

/// CPU ranks exchange data through shared memory. The rate was measured with Open MPI 4.1.4 on two
/// cores: 4 MiB one way by cross-memory attach.
constexpr double shared_memory_rate = 11.8e9, shared_memory_latency = 1e-6;
/// Peer access between GPUs was never measured, so staging through host memory is assumed: one
/// piece is copied to the host while another is copied from it, and a message takes two copies.
constexpr double staged_latency = 2e-5;

void assume_link(DeviceProfile& profile) {
  profile.link_bandwidth = profile.gpu && profile.to_device_rate > 0 && profile.to_host_rate > 0
                               ? std::min(profile.to_device_rate, profile.to_host_rate)
                               : shared_memory_rate;
  profile.link_latency = profile.gpu ? staged_latency : shared_memory_latency;
}

constexpr std::size_t copied_bytes = 64 * mebi;

using Clock = std::chrono::steady_clock;

/// Returns the best time of a few runs of `work`, in seconds.
template <class Work>
double seconds_of(DeviceContext& device, Work&& work) {
  double best = 1e9;
  for (int run = 0; run < 4; ++run) {
    device.runtime().synchronize(device.stream());
    const auto start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

void measure_copies(DeviceProfile& profile, const DevicePtr& device) {
  constexpr auto bytes = static_cast<std::int64_t>(copied_bytes);
  Runtime& runtime = device->runtime();
  const Tensor a = Tensor::zeros(device, {bytes}, DType::u8);
  const Tensor b = Tensor::zeros(device, {bytes}, DType::u8);
  const auto size = static_cast<std::size_t>(bytes);
  // A copy reads every byte once and writes it once.
  profile.memory_rate =
      2.0 * static_cast<double>(bytes) / seconds_of(*device, [&] {
        runtime.copy_within(a.view().address, b.view().address, size, device->stream());
        runtime.synchronize(device->stream());
      });
  if (!profile.gpu) return;
  // Some systems pin little memory. Copies from unpinned memory are slower, but still measurable.
  PinnedBuffer host(device, 2 * size);
  const Stream up = runtime.make_stream(), down = runtime.make_stream();
  const double seconds = seconds_of(*device, [&] {
    runtime.copy_from_host(a.view().address, host.data(), size, up);
    runtime.copy_to_host(host.data() + size, b.view().address, size, down);
    runtime.synchronize(up);
    runtime.synchronize(down);
  });
  profile.to_device_rate = profile.to_host_rate = static_cast<double>(bytes) / seconds;
}

/// Fills in everything but the rates.
DeviceProfile describe(DeviceKind kind, std::optional<std::size_t> communication) {
  const auto runtime = make_runtime(kind);
  const DeviceInfo info = runtime->info();
  const bool gpu = kind == DeviceKind::cuda;
  const bool real = gpu && !info.emulated;
  DeviceProfile profile{.name = info.name,
                        .gpu = gpu,
                        .capability = info.capability,
                        .multiprocessors = info.multiprocessors,
                        .workspace = runtime->workspace_bytes(),
                        .context = real ? usual_context : 0,
                        .communication = communication,
                        .process = real ? usual_gpu_process : usual_cpu_process};
  // Other processes may be using the card. The CUDA context and the connections to other GPUs
  // already exist at this point.
  profile.memory = std::min(
      info.memory, runtime->capacity() + profile.context + profile.communication.value_or(0));
  profile.host_memory = make_cpu_runtime()->capacity();
  return profile;
}

/// Checks the fields of a probe file, which a user may have edited.
struct ProbeFile {
  const fs::path& file;
  const nlohmann::json& json;

  [[noreturn]] void refuse(const std::string& why) const {
    fail(
        fmt::format("{} is not a probe file: {}; plan --save-probe writes one", file.string(), why),
        ErrorKind::usage);
  }
  const nlohmann::json& at(const char* key) const {
    if (!json.is_object()) refuse(fmt::format("it holds {}, which is no object", shown(json)));
    if (!json.contains(key)) refuse(fmt::format("\"{}\" is missing", key));
    return json[key];
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    refuse(fmt::format("\"{}\" is {}; it must be {}", key, shown(json[key]), expected));
  }
  std::string name(const char* key) const {
    constexpr std::size_t longest = 256;  // CUDA's limit for a device's name
    const auto& value = at(key);
    if (!value.is_string() || value.get_ref<const std::string&>().empty() ||
        value.get_ref<const std::string&>().size() > longest)
      refuse(key, fmt::format("a text of 1 to {} bytes", longest));
    return value.get<std::string>();
  }
  bool yes(const char* key) const {
    if (!at(key).is_boolean()) refuse(key, "true or false");
    return json[key].get<bool>();
  }
  std::uint64_t count(const char* key, std::uint64_t most) const {
    if (!at(key).is_number_unsigned() || json[key].get<std::uint64_t>() > most)
      refuse(key, fmt::format("a whole number from 0 to {}", most));
    return json[key].get<std::uint64_t>();
  }
  /// No machine has more than 2^50 bytes.
  std::size_t bytes(const char* key) const { return count(key, std::uint64_t{1} << 50); }
  double number(const char* key, double least, double most) const {
    const double value = at(key).is_number() ? json[key].get<double>() : -1;
    if (value != 0 && !(value >= least && value <= most))
      refuse(key, fmt::format("0 or a number from {} to {}", least, most));
    return value;
  }
  /// A rate per second. Rates below 1 are refused: quotients by them might not be finite.
  double rate(const char* key) const { return number(key, 1, 1e24); }
};

/// Rounds to one significant figure, so that two measurements of one machine agree.
double one_figure(double value) {
  if (value <= 0) return 0;
  const double scale = std::pow(10.0, std::floor(std::log10(value)));
  return std::round(value / scale) * scale;
}

}  // namespace

std::vector<std::string> known_profiles() {
  std::vector<std::string> names;
  for (const Known& entry : known)
    names.emplace_back(entry.key);
  return names;
}

DeviceProfile known_profile(const std::string& name) {
  const CardName card = read_card(name);
  const auto* const found =
      std::ranges::find_if(known, [&](const Known& entry) { return card.key == entry.key; });
  if (found == std::end(known)) {
    const std::string near = nearest_name(card.key, known_profiles());
    fail(fmt::format("--device-profile {} is not one of {}{}; a file that plan --save-probe wrote "
                     "on another machine is given by --probe",
                     excerpt(name), fmt::join(known_profiles(), ", "),
                     near.empty() ? "" : fmt::format(" (the nearest is {})", near)),
         ErrorKind::usage);
  }
  if (card.gigabytes != 0 && card.gigabytes != found->gigabytes)
    fail(fmt::format("--device-profile {}: the {} that is known has {} GB; --device-profile {} "
                     "--gpu-memory {}GiB plans for another size",
                     excerpt(name), found->key, found->gigabytes, found->key, card.gigabytes),
         ErrorKind::usage);
  return {.name = found->name,
          .gpu = true,
          .capability = found->capability,
          .multiprocessors = found->multiprocessors,
          .memory = found->memory,
          .host_memory = unlimited,
          .workspace = usual_workspace(found->capability),
          .context = usual_context,
          .process = usual_gpu_process,
          .wide_flops = found->teraflops / gpu_narrow_over_wide * 1e12,
          .narrow_flops = found->teraflops * 1e12,
          .memory_rate = found->memory_rate * giga * memory_share,
          .to_device_rate = found->link_rate * giga * duplex,
          .to_host_rate = found->link_rate * giga * duplex,
          .host_rate = found->host_rate * giga,
          .link_bandwidth = found->peer_rate * giga * peer_share,
          .link_latency = found->peer_latency * 1e-6};
}

DeviceProfile measure_profile(DeviceKind kind, const Precision& precision,
                              std::optional<std::size_t> communication) {
  DeviceProfile profile = describe(kind, communication);
  measure_copies(profile, make_device(kind, precision, 2 * copied_bytes + profile.workspace));
  const double rate = measure_matmul_rate(kind, precision);
  const bool wide = precision.dtype == DType::f32 || precision.dtype == DType::f64;
  const bool real_gpu = profile.context > 0;
  const double share = !real_gpu ? 1 : wide ? passes_share : sustained_share;
  (wide ? profile.wide_flops : profile.narrow_flops) = share * rate;
  if (profile.gpu) profile.host_rate = measure_update_rate();
  assume_link(profile);
  return profile;
}

DeviceProfile profile_at_hand(DeviceKind kind, const Precision& precision,
                              std::optional<std::size_t> communication) {
  DeviceProfile profile = describe(kind, communication);
  if (profile.context > 0) {  // excludes the emulated GPU
    profile = measure_profile(kind, precision, communication);
    for (double* rate : {&profile.wide_flops, &profile.narrow_flops, &profile.memory_rate,
                         &profile.to_device_rate, &profile.to_host_rate, &profile.host_rate})
      *rate = one_figure(*rate);
    assume_link(profile);
    return profile;
  }
  profile.wide_flops = 2e11;
  profile.narrow_flops = 4e11;
  profile.memory_rate = 2e10;
  profile.to_device_rate = profile.to_host_rate = 1e10;
  if (profile.gpu) profile.host_rate = 1e10;
  assume_link(profile);
  return profile;
}

void save_profile(const fs::path& file, const DeviceProfile& p) {
  const Json json{{"name", p.name},
                  {"gpu", p.gpu},
                  {"capability", p.capability},
                  {"multiprocessors", p.multiprocessors},
                  {"memory", p.memory},
                  {"host_memory", p.host_memory},
                  {"workspace", p.workspace},
                  {"context", p.context},
                  {"process", p.process},
                  {"wide_flops", p.wide_flops},
                  {"narrow_flops", p.narrow_flops},
                  {"memory_rate", p.memory_rate},
                  {"to_device_rate", p.to_device_rate},
                  {"to_host_rate", p.to_host_rate},
                  {"host_rate", p.host_rate},
                  {"link_bandwidth", p.link_bandwidth},
                  {"link_latency", p.link_latency}};
  const std::string text = json.dump(2) + "\n";
  write_file_durably(file, std::as_bytes(std::span(text)));
}

bool is_profile(const File& file) try {
  load_profile(file.path());
  return true;
} catch (const Error&) {
  return false;
}

DeviceProfile load_profile(const fs::path& file) {
  nlohmann::json json;
  try {
    json = read_json_file(file, std::uint64_t{1} << 16);
  } catch (const Error& error) {
    fail(fmt::format("--probe: {}; plan --save-probe FILE writes such a file", error.what()),
         ErrorKind::usage);
  }
  const ProbeFile probe{file, json};
  DeviceProfile p{
      .name = probe.name("name"),
      .gpu = probe.yes("gpu"),
      .capability = static_cast<int>(probe.count("capability", 10'000)),
      .multiprocessors = static_cast<int>(probe.count("multiprocessors", 1 << 20)),
      .memory = probe.bytes("memory"),
      .host_memory = json.contains("host_memory") ? probe.bytes("host_memory") : unlimited,
      .workspace = probe.bytes("workspace"),
      .context = probe.bytes("context"),
      .process = probe.bytes("process"),
      .wide_flops = probe.rate("wide_flops"),
      .narrow_flops = probe.rate("narrow_flops"),
      .memory_rate = probe.rate("memory_rate"),
      .to_device_rate = probe.rate("to_device_rate"),
      .to_host_rate = probe.rate("to_host_rate"),
      .host_rate = json.contains("host_rate") ? probe.rate("host_rate") : 0};
  // Probe files of older versions lack these two fields as well.
  assume_link(p);
  if (json.contains("link_bandwidth")) p.link_bandwidth = probe.rate("link_bandwidth");
  if (json.contains("link_latency")) p.link_latency = probe.number("link_latency", 1e-12, 1);
  if (p.memory_rate == 0 || p.link_bandwidth == 0 || p.wide_flops + p.narrow_flops == 0)
    fail(fmt::format(
             "{}: memory_rate, link_bandwidth, and wide_flops or narrow_flops, must not be 0",
             file.string()),
         ErrorKind::usage);
  return p;
}

}  // namespace sluice
