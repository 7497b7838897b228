#include "parallel/flight_recorder/shared_post_mortem.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

#include "engine/io/file.h"
#include "kernels/base/error.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/post_mortem.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Returns the sentence of the rank that was first; none if it is not there yet, or only a part.
std::optional<std::string> sentence_in(const fs::path& path) try {
  std::string text = read_text_file(path);
  if (!text.ends_with('\n')) return std::nullopt;
  text.pop_back();
  return text;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

std::string shared_post_mortem(const fs::path& folder, int size, std::chrono::milliseconds patience,
                               const ReadRecords& read) {
  const fs::path path = folder / post_mortem_name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0 && errno == EEXIST) {
    const auto end = std::chrono::steady_clock::now() + patience + std::chrono::milliseconds(size);
    do {
      if (auto sentence = sentence_in(path)) return *sentence;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (std::chrono::steady_clock::now() < end);
  }
  std::string text = post_mortem(read ? read() : read_records(folder), size);
  if (file < 0) return text;
  // Ranks that miss the sentence read the records, so a disk that is full is no error here.
  const std::string line = text + '\n';
  [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
  ::close(file);
  return text;
}

}  // namespace sluice
