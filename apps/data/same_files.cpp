#include "apps/data/same_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>

#include "apps/data/data_files.h"
#include "apps/data/tokens/pairs.h"
#include "engine/io/file.h"
#include "engine/io/section_sums.h"
#include "kernels/base/error.h"
#include "models/text/tokenizer.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// All ends that are compared have at most so many bytes together, which take 20 ms to sum up.
constexpr std::uint64_t all_ends = std::uint64_t{16} << 20;
constexpr std::uint64_t longest_end = std::uint64_t{1} << 20, shortest_end = 4096;
/// The number of files up to which contents are compared; beyond it sizes alone, since opening a
/// file takes a while on a network file system.
constexpr std::size_t most_opened = 1000;

/// The size and checksum of a file as one rank reads it, or of a flag without files.
struct Fingerprint {
  std::uint64_t bytes = 0;
  std::uint32_t begin = 0, end = 0;  ///< CRC-32 of both ends
  std::uint32_t flag = 0;            ///< the flag's place among all
  std::uint32_t fault = 0;           ///< 1: there are no files, and a fault says why

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// Looks at a file. One that cannot be read looks like no other; reading it will say why.
Fingerprint look_at(const fs::path& path, std::uint32_t flag, std::uint64_t end, bool open) {
  Fingerprint sight{.bytes = ~std::uint64_t{0}, .flag = flag};
  std::error_code none;
  if (const auto bytes = fs::file_size(path, none); !none) sight.bytes = bytes;
  if (none || !open) return sight;
  try {
    const File file = File::open(path);
    std::vector<std::byte> bytes(std::min(end, sight.bytes));
    file.read_at(0, bytes);
    sight.begin = crc32_of(bytes);
    file.read_at(sight.bytes - bytes.size(), bytes);
    sight.end = crc32_of(bytes);
  } catch (const Error&) {
    sight.bytes = ~std::uint64_t{0};
  }
  return sight;
}

std::vector<Fingerprint> look_at(const std::vector<FilesOfFlag>& flags) {
  std::size_t files = 0;
  for (const FilesOfFlag& each : flags)
    files += each.files.size();
  const std::uint64_t end =
      std::clamp(all_ends / 2 / std::max<std::uint64_t>(files, 1), shortest_end, longest_end);
  std::vector<Fingerprint> sights;
  for (std::uint32_t flag = 0; flag < flags.size(); ++flag) {
    if (!flags[flag].fault.empty()) sights.push_back({.flag = flag, .fault = 1});
    for (const fs::path& file : flags[flag].files)
      sights.push_back(look_at(file, flag, end, sights.size() < most_opened));
  }
  return sights;
}

std::vector<Fingerprint> sights_of(const std::vector<Fingerprint>& all, std::size_t flag) {
  std::vector<Fingerprint> some;
  std::ranges::copy_if(all, std::back_inserter(some),
                       [&](const Fingerprint& sight) { return sight.flag == flag; });
  return some;
}

/// Two ranks, as messages name them.
struct Places {
  std::string here, first;
};

/// Returns how the number of a flag's files differs; "" if it does not.
std::string other_number(const FilesOfFlag& mine, const std::vector<Fingerprint>& here,
                         const std::vector<Fingerprint>& first, const std::string& their_fault,
                         const Places& places) {
  const auto faulty = [](const std::vector<Fingerprint>& sights) {
    return !sights.empty() && sights.front().fault != 0;
  };
  const auto lacks = [&](const std::string& one, const std::string& other,
                         const std::string& fault) {
    return fmt::format("{}: {} does not see what {} sees: {}", mine.flag, one, other,
                       fault.substr(0, 120));
  };
  if (faulty(here) != faulty(first))
    return faulty(here) ? lacks(places.here, places.first, mine.fault)
                        : lacks(places.first, places.here, their_fault);
  if (here.size() == first.size()) return {};
  return fmt::format("{}: {} sees {} file{} and {} {}", mine.flag, places.here, here.size(),
                     here.size() == 1 ? "" : "s", places.first, first.size());
}

/// Returns how the files of a flag differ, of which there are equally many; "" if they do not.
std::string other_file(const FilesOfFlag& mine, const std::vector<Fingerprint>& here,
                       const std::vector<Fingerprint>& first, const Places& places) {
  const auto [one, other] = std::ranges::mismatch(here, first);
  if (one == here.end()) return {};
  const std::string file = mine.files.at(static_cast<std::size_t>(one - here.begin())).string();
  constexpr std::uint64_t unread = ~std::uint64_t{0};
  if (one->bytes == unread || other->bytes == unread)
    return fmt::format("{}: {} cannot read {}, which {} can", mine.flag,
                       one->bytes == unread ? places.here : places.first, file,
                       one->bytes == unread ? places.first : places.here);
  if (one->bytes != other->bytes)
    return fmt::format("{}: {} has {} bytes for {} and {} for {}", mine.flag, file, one->bytes,
                       places.here, other->bytes, places.first);
  return fmt::format("{}: the {} of {} is another for {} than for {}", mine.flag,
                     one->begin != other->begin ? "beginning" : "end", file, places.here,
                     places.first);
}

std::span<const std::byte> bytes_of(const std::vector<Fingerprint>& sights) {
  return std::as_bytes(std::span(sights));
}

}  // namespace

FilesOfFlag files_of(const std::string& flag, const std::function<std::vector<fs::path>()>& find) {
  FilesOfFlag found{.flag = flag};
  try {
    found.files = find();
  } catch (const Error& error) {
    found.fault = error.what();
  }
  return found;
}

FilesOfFlag data_files_of(const std::string& flag, const std::vector<std::string>& names) {
  return files_of(flag, [&] {
    const DataFiles found = find_data(flag, names);
    std::vector<fs::path> files;
    for (const TextFile& text : found.texts)
      if (!text.stream && text.path != "-") files.push_back(text.path);
    for (const auto& some : {found.tokens, found.val_tokens})
      for (const fs::path& tokens : some) {
        files.push_back(tokens);
        if (has_mask(tokens)) files.push_back(mask_of(tokens));
      }
    return files;
  });
}

FilesOfFlag model_files_of(const std::string& flag, const fs::path& folder) {
  FilesOfFlag found{.flag = flag};
  std::error_code error;
  if (fs::is_regular_file(folder, error)) found.files.push_back(folder);
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code none;
    if ((name == "config.json" || name == "adapter_config.json" ||
         name.find(".safetensors") != std::string::npos || is_tokenizer_file(name)) &&
        at->is_regular_file(none))
      found.files.push_back(at->path());
  }
  std::ranges::sort(found.files);
  return found;
}

void require_same_files(Communicator& ranks, const std::vector<FilesOfFlag>& flags) {
  if (ranks.size() == 1) return;
  std::vector<Fingerprint> mine;
  keep_alive(ranks, "files", [&] { mine = look_at(flags); });
  if (all_equal(ranks, bytes_of(mine), "files")) return;
  const Places places{.here = place_of(ranks),
                      .first = ranks.share_text(place_of(ranks), 0, "hosts")};
  const std::string sent = ranks.share_text(
      {reinterpret_cast<const char*>(mine.data()), bytes_of(mine).size()}, 0, "files");
  std::vector<Fingerprint> theirs(sent.size() / sizeof(Fingerprint));
  std::memcpy(theirs.data(), sent.data(), sent.size());
  std::string difference;
  for (const bool number : {true, false})  // with another number of files the ends are others too
    for (std::size_t flag = 0; flag < flags.size(); ++flag) {
      const auto here = sights_of(mine, flag), first = sights_of(theirs, flag);
      const std::string fault = ranks.share_text(flags[flag].fault, 0, "files");
      if (!difference.empty()) continue;
      difference = number ? other_number(flags[flag], here, first, fault, places)
                          : other_file(flags[flag], here, first, places);
    }
  if (!difference.empty()) difference += "; give all hosts the same files";
  refuse_together(ranks, difference, "files");
}

}  // namespace sluice
