#include "models/text/text_files.h"

#include <fmt/format.h>

#include <span>

#include "engine/io/durable.h"
#include "engine/io/file.h"
#include "kernels/base/error.h"

namespace sluice {

std::string read_text_file(const std::filesystem::path& path) {
  const File file = File::open(path);
  const auto size = file.size();
  if (size > max_tokenizer_file)
    fail(fmt::format("{} has {} bytes, more than the limit of {}", path.string(), size,
                     max_tokenizer_file),
         ErrorKind::usage);
  std::string text(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    fail(fmt::format("cannot create the folder {}: {}", path.parent_path().string(),
                     error.message()));
  write_file_durably(path, std::as_bytes(std::span(text)));
}

}  // namespace sluice
