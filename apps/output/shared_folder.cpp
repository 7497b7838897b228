#include "apps/output/shared_folder.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include "engine/io/durable.h"
#include "engine/io/file.h"
#include "kernels/base/error.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/keep_alive.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// A small file of rank 0.
class Mark {
 public:
  explicit Mark(const fs::path& folder)
      : path_(temporary_name(nearest_folder(folder) / ".sluice-start")) {
    std::random_device random;
    for (int i = 0; i < 4; ++i)
      text_ += fmt::format("{:08x}", random());
    try {
      File file = File::create_new(path_);
      file.write(std::as_bytes(std::span(text_)));
      file.close();  // network file systems send it now
    } catch (...) {
      remove();
      throw;
    }
  }
  ~Mark() { remove(); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  const fs::path& path() const { return path_; }
  const std::string& text() const { return text_; }

 private:
  void remove() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }

  fs::path path_;
  std::string text_;
};

bool holds(const fs::path& file, const std::string& text) try {
  return read_text_file(file, text.size()) == text;
} catch (const Error&) {
  return false;
}

/// The same for a file system that may show a new file a little later.
bool comes_to_hold(const fs::path& file, const std::string& text) {
  using namespace std::chrono_literals;
  for (int attempts = 20; attempts > 0; --attempts) {
    if (holds(file, text)) return true;
    std::this_thread::sleep_for(50ms);
  }
  return false;
}

}  // namespace

fs::path nearest_folder(fs::path path) {
  std::error_code none;
  while (!fs::is_directory(path, none) && path.has_relative_path() && path != ".")
    path = directory_of(path);
  return path;
}

void require_shared_folder(Communicator& ranks, const std::string& flag, const fs::path& path) {
  if (ranks.size() == 1) return;
  std::optional<Mark> mark;
  keep_alive(ranks, "output", [&] {
    try {
      if (ranks.rank() == 0) mark.emplace(path);
    } catch (const Error&) {  // whoever writes there will say why that cannot be
    }
  });
  const std::string file = ranks.share_text(mark ? mark->path().string() : "", 0, "output");
  if (file.empty()) return;
  const std::string text = ranks.share_text(mark ? mark->text() : "", 0, "output");
  const std::string first = ranks.share_text(place_of(ranks), 0, "output");
  bool seen = true;
  keep_alive(ranks, "output", [&] { seen = ranks.rank() == 0 || comes_to_hold(file, text); });
  mark.reset();
  refuse_together(ranks,
                  seen ? ""
                       : fmt::format("{} {}: {} does not see what {} writes there; it must "
                                     "lie in a folder that all hosts share",
                                     flag, path.string(), place_of(ranks), first),
                  "output");
}

}  // namespace sluice
