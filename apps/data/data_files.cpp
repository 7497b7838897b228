#include "apps/data/data_files.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "apps/data/tokens/token_shards.h"
#include "apps/output/program_folder.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Endings of files in a folder that count as text: prose, JSON Lines and source code. Tables, data
/// markup and logs do not count, but can be named themselves.
constexpr auto text_endings = std::to_array<std::string_view>(
    {"txt",  "text", "md",    "markdown", "rst",   "tex", "org",  "jsonl", "ndjson", "c",    "h",
     "cc",   "hh",   "cpp",   "hpp",      "cxx",   "hxx", "cu",   "cuh",   "py",     "pyi",  "rs",
     "go",   "java", "kt",    "scala",    "swift", "cs",  "js",   "jsx",   "ts",     "tsx",  "rb",
     "php",  "pl",   "lua",   "r",        "jl",    "m",   "hs",   "ml",    "mli",    "lisp", "el",
     "clj",  "ex",   "exs",   "erl",      "f90",   "sh",  "bash", "zsh",   "sql",    "html", "css",
     "scss", "vue",  "proto", "cmake",    "s",     "asm", "zig",  "nim",   "d",      "dart", "v"});

std::string lower_ending(const fs::path& file) {
  std::string ending = file.extension().string();
  std::ranges::transform(ending, ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return ending;
}

/// Returns true if a file found in a folder counts as text.
bool is_text_name(const fs::path& file) {
  std::string ending = lower_ending(file);
  if (ending == ".gz") ending = lower_ending(file.stem());
  return !ending.empty() && std::ranges::count(text_endings, ending.substr(1)) > 0;
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

std::vector<fs::path> matches_of(const std::string& flag, const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result == GLOB_NOMATCH)
    fail(fmt::format("{} {}: no file matches this pattern", flag, pattern), ErrorKind::usage);
  if (result != 0) fail(fmt::format("{} {}: the folder cannot be searched", flag, pattern));
  std::ranges::sort(paths);  // by bytes, independent of the locale
  return paths;
}

class Finder {
 public:
  explicit Finder(const std::string& flag) : flag_(flag) {}

  void add(const std::string& name) {
    std::error_code error;
    if (name == "-") return add_stream(name);
    if (fs::exists(name, error)) return add_path(name);
    if (name.find_first_of("*?[") == name.npos)
      fail(fmt::format("{} {}: there is no such file or folder", flag_, name), ErrorKind::usage);
    for (const fs::path& path : matches_of(flag_, name))
      add_path(path);
  }

  DataFiles take() {
    if (!found_.tokens.empty() && !found_.texts.empty())
      fail(fmt::format("{}: {} is a file of tokens and {} is text: give one kind", flag_,
                       found_.tokens.front().string(), found_.texts.front().path.string()),
           ErrorKind::usage);
    if (!found_.folder.empty() && places_ > 1)
      fail(fmt::format("{}: {} is a folder of tokens, which cannot be joined with other data; name "
                       "its .bin files",
                       flag_, found_.folder.string()),
           ErrorKind::usage);
    divide_tokens();
    return std::move(found_);
  }

 private:
  void add_stream(const fs::path& path) {
    ++places_;
    if (!streams_.insert(path).second)
      fail(fmt::format("{}: {} is named twice, and it can be read once", flag_, path.string()),
           ErrorKind::usage);
    found_.texts.push_back({.path = path, .stream = true});
  }

  void add_path(const fs::path& path) {
    if (fs::is_directory(path)) return add_folder(path);
    if (fs::is_fifo(path) || fs::is_socket(path)) return add_stream(path);
    ++places_;
    if (path.extension() == ".gz" && path.stem().extension() == ".bin")
      fail(
          fmt::format("{} {}: tokens are read at any position, which compressed ones do not allow; "
                      "unpack it first",
                      flag_, path.string()),
          ErrorKind::usage);
    if (path.extension() == ".mask" && fs::exists(fs::path(path).replace_extension(".bin")))
      fail(fmt::format("{} {}: this is the mask of the tokens beside it; name those", flag_,
                       path.string()),
           ErrorKind::usage);
    if (path.extension() != ".bin") return add_text(path);
    if (is_new(path)) found_.tokens.push_back(path);
  }

  void add_folder(const fs::path& folder) {
    ++places_;
    const std::vector<fs::path> tokens = token_files_in(folder);
    if (tokens.empty()) return add_texts_of(folder);
    if (const auto text = stray_text(folder); !text.empty() && !fs::exists(folder / "train.bin"))
      fail(fmt::format("{} {}: it holds both tokens ({}) and text ({}); name the files that are "
                       "meant, with a pattern for instance",
                       flag_, folder.string(), tokens.front().filename().string(),
                       text.filename().string()),
           ErrorKind::usage);
    found_.folder = folder;
    found_.tokens.insert(found_.tokens.end(), tokens.begin(), tokens.end());
  }

  /// Returns a text file in a folder of tokens that does not belong to a tokenizer.
  static fs::path stray_text(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder))
      if (!is_hidden(entry.path()) && entry.is_regular_file() && is_text_name(entry.path()) &&
          entry.path().filename() != "merges.txt")
        return entry.path();
    return {};
  }

  void add_texts_of(const fs::path& folder) {
    std::vector<fs::path> files;
    std::error_code error;
    constexpr auto options = fs::directory_options::skip_permission_denied;
    fs::recursive_directory_iterator at(folder, options, error);
    for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
      std::error_code ignored;
      const fs::path& path = at->path();
      if (is_hidden(path)) {
        at.disable_recursion_pending();
      } else if (at->is_directory(ignored)) {
        if (at->is_symlink(ignored)) {  // it could lead back to here
          found_.skipped.add("link to a folder", "links to folders", path.string());
        } else if (fs::exists(path / "train.bin", ignored)) {
          at.disable_recursion_pending();
          found_.skipped.add("folder of tokens", "folders of tokens", path.string());
        }
      } else if (is_text_name(path) && at->is_regular_file(ignored)) {
        files.push_back(path);
      } else {
        found_.skipped.add("file of another kind", "files of other kinds", path.string());
      }
    }
    if (error)
      fail(fmt::format("{} {} cannot be read: {}", flag_, folder.string(), error.message()),
           ErrorKind::usage);
    if (files.empty())
      fail(fmt::format("{} {}: the folder has neither tokens (train.bin, *_000001.bin) nor text "
                       "(.txt, .md, .jsonl, .py and the like){}",
                       flag_, folder.string(),
                       found_.skipped.none() ? "" : "; it has " + found_.skipped.text()),
           ErrorKind::usage);
    std::ranges::sort(files);
    for (const fs::path& file : files)
      add_text(file);
  }

  void add_text(const fs::path& file) {
    if (is_new(file)) found_.texts.push_back({.path = file});
  }

  bool is_new(const fs::path& file) {
    std::error_code unreadable;
    fs::path place = fs::canonical(file, unreadable);
    if (unreadable || seen_.insert(std::move(place)).second) return true;
    found_.skipped.add("file found before", "files found before", file.string());
    return false;
  }

  void divide_tokens() {
    auto& [texts, tokens, val_tokens, folder, skipped, name] = found_;
    if (tokens.size() == 1 && folder.empty()) tokens = series_from(tokens.front());
    require_whole_series(tokens);
    std::ranges::copy_if(tokens, std::back_inserter(val_tokens), is_validation_name);
    if (val_tokens.size() == tokens.size() && folder.empty())
      val_tokens.clear();  // if all files are validation files, they are the data itself
    std::erase_if(tokens, [&](const fs::path& file) {
      return std::ranges::find(val_tokens, file) != val_tokens.end();
    });
  }

  std::string flag_;
  DataFiles found_;
  std::set<fs::path> seen_, streams_;
  int places_ = 0;
};

}  // namespace

DataFiles find_data(const std::string& flag, const std::vector<std::string>& names) {
  Finder finder(flag);
  for (const std::string& name : names)
    finder.add(name);
  DataFiles found = finder.take();
  found.name = names.front() == "-" ? "the standard input" : names.front();
  if (names.size() > 1) found.name += fmt::format(" and {} more", names.size() - 1);
  if (names.size() == 1 && found.texts.size() == 1 && found.texts.front().path == names.front())
    found.texts.front().as_is = true;
  return found;
}

std::string shipped_text() {
  const fs::path text = shipped_files() / "corpus.txt";
  if (!fs::exists(text))
    fail(fmt::format("no --data was given and the text that ships with the program is not at {}",
                     text.string()),
         ErrorKind::usage);
  return text.string();
}

}  // namespace sluice
