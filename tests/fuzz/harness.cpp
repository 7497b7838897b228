#include "tests/fuzz/harness.h"

#include <stdexcept>

#include "engine/io/utf8.h"
#include "kernels/base/error.h"
#include "tests/support/temp_dir.h"

namespace sluice::fuzz {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error(what);
}

void require_showable(std::string_view message, std::size_t longest) {
  require(!message.empty(), "a refusal without a message");
  require(message.size() <= longest, "a message of " + std::to_string(message.size()) + " bytes");
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t size = utf8_size(message.substr(at));
    require(size > 0, "a message that is not UTF-8: " + std::string(message));
    const auto byte = static_cast<unsigned char>(message[at]);
    require(byte >= ' ' && byte != 0x7F, "a control character in: " + std::string(message));
    at += size;
  }
  require(printable(message) == message, "a character that nobody sees in: " + printable(message));
}

std::string refusal(Reader reader, Bytes input) {
  try {
    reader(input);
    return {};
  } catch (const Error& error) {
    require_showable(error.what());
    return error.what();
  }
}

const std::filesystem::path& scratch() {
  static const test::TempDir folder;
  return folder.path();
}

std::filesystem::path put(const std::filesystem::path& name, Bytes bytes) {
  const auto path = scratch() / name;
  std::filesystem::create_directories(path.parent_path());
  test::write_file(path, bytes);
  return path;
}

}  // namespace sluice::fuzz
