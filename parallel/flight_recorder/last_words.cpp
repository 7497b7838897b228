#include "parallel/flight_recorder/last_words.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "engine/io/file.h"
#include "kernels/base/error.h"

namespace sluice {

bool speak_first(const std::filesystem::path& folder, std::string_view sentence) {
  const std::filesystem::path path = folder / last_words_name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  // If the folder is gone, the rank that spoke has renamed or removed it.
  if (file < 0) return errno != EEXIST && errno != ENOENT;
  // Without the sentence the user still gets it, so a disk that is full is no error here.
  [[maybe_unused]] const ssize_t written = ::write(file, sentence.data(), sentence.size());
  ::close(file);
  // The system may have found the folder before the rank that spoke renamed it, and have made the
  // file after that rank removed its own.
  return ::access(path.c_str(), F_OK) == 0 || errno != ENOENT;
}

std::string last_words(const std::filesystem::path& folder) try {
  return read_text_file(folder / last_words_name);
} catch (const Error&) {
  return {};
}

}  // namespace sluice
