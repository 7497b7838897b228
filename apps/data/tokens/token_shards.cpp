#include "apps/data/tokens/token_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>

#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> bin_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".bin" && !at->path().filename().string().starts_with('.'))
      files.push_back(at->path());
  if (error)
    fail(fmt::format("{} cannot be read: {}", folder.string(), error.message()), ErrorKind::usage);
  std::ranges::sort(files);
  return files;
}

/// Returns the name without number and ending.
std::string kind_of(const fs::path& file) {
  const auto shard = shard_name(file);
  return shard ? shard->prefix : file.stem().string();
}

bool ends_in_word(const std::string& name, std::string_view word) {
  if (!name.ends_with(word)) return false;
  const std::string_view before = std::string_view(name).substr(0, name.size() - word.size());
  return before.empty() || before.back() == '_' || before.back() == '-' || before.back() == '.';
}

/// Returns the numbers of each series, by folder and prefix.
std::map<fs::path, std::set<std::int64_t>> series_among(const std::vector<fs::path>& files) {
  std::map<fs::path, std::set<std::int64_t>> all;
  for (const fs::path& file : files)
    if (const auto shard = shard_name(file))
      all[file.parent_path() / shard->prefix].insert(shard->number);
  return all;
}

[[noreturn]] void fail_missing(const fs::path& series, std::int64_t number, std::int64_t last) {
  fail(fmt::format("{}_{:06}.bin is missing: the series goes on to number {}", series.string(),
                   number, last),
       ErrorKind::usage);
}

}  // namespace

std::optional<ShardName> shard_name(const fs::path& file) {
  if (file.extension() != ".bin") return std::nullopt;
  const std::string stem = file.stem().string();
  const auto line = stem.rfind('_');
  if (line == stem.npos || line == 0) return std::nullopt;
  constexpr std::size_t digits = 6;
  const char* const begin = stem.data() + line + 1;
  const char* const end = stem.data() + stem.size();
  ShardName name{.prefix = stem.substr(0, line)};
  const auto [stop, error] = std::from_chars(begin, end, name.number);
  if (static_cast<std::size_t>(end - begin) < digits || *begin == '-' || error != std::errc() ||
      stop != end)
    return std::nullopt;
  return name;
}

bool is_validation_name(const fs::path& file) {
  return ends_in_word(kind_of(file), "val");
}

std::vector<fs::path> token_files_in(const fs::path& folder) {
  std::vector<fs::path> files = bin_files_in(folder);
  for (const char* const part : {"train", "val"}) {
    const fs::path single = folder / (std::string(part) + ".bin");
    const auto shard = std::ranges::find_if(files, [&](const fs::path& file) {
      const auto name = shard_name(file);
      return name && name->prefix == part;
    });
    if (shard != files.end() && fs::exists(single))
      fail(fmt::format("{} holds both {} and {}: remove the one that is not meant", folder.string(),
                       single.filename().string(), shard->filename().string()),
           ErrorKind::usage);
  }
  const bool prepared = std::ranges::count(files, folder / "train.bin") > 0;
  std::erase_if(files, [&](const fs::path& file) {
    if (prepared) return kind_of(file) != "train" && kind_of(file) != "val";
    return !shard_name(file) && !ends_in_word(file.stem().string(), "train") &&
           !is_validation_name(file);
  });
  for (const auto& [series, numbers] : series_among(files))
    if (*numbers.begin() > 1) fail_missing(series, *numbers.begin() - 1, *numbers.rbegin());
  return files;
}

std::vector<fs::path> series_from(const fs::path& file) {
  const auto first = shard_name(file);
  if (!first) return {file};
  std::vector<fs::path> all = bin_files_in(file.has_parent_path() ? file.parent_path() : ".");
  if (!file.has_parent_path())
    for (fs::path& path : all)
      path = path.filename();
  std::erase_if(all, [&](const fs::path& other) {
    const auto name = shard_name(other);
    return !name || name->prefix != first->prefix;
  });
  const bool begins = std::ranges::all_of(
      all, [&](const fs::path& other) { return shard_name(other)->number >= first->number; });
  return begins && all.size() > 1 ? all : std::vector<fs::path>{file};
}

void require_whole_series(const std::vector<fs::path>& files) {
  for (const auto& [series, numbers] : series_among(files)) {
    std::int64_t expected = *numbers.begin();
    for (const std::int64_t number : numbers)
      if (number != expected++) fail_missing(series, expected - 1, *numbers.rbegin());
  }
}

}  // namespace sluice
