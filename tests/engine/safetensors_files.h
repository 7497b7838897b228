#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "engine/io/safetensors.h"
#include "tests/support/error_message.h"
#include "tests/support/temp_dir.h"

// Builds safetensors files by hand, so that they can be malformed in every way.

namespace sluice::test {

inline std::string length_field(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>(length >> 8 * i & 0xFF);
  return bytes;
}

/// Returns a file with this header and `data_bytes` bytes of data.
inline std::string file_of(std::string_view header, std::size_t data_bytes) {
  return length_field(header.size()).append(header).append(data_bytes, 'd');
}

/// Returns a member of the header, without the braces around it.
inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
  return std::string("\"")
      .append(name)
      .append(R"(":{"dtype":")")
      .append(dtype)
      .append(R"(","shape":)")
      .append(shape)
      .append(R"(,"data_offsets":)")
      .append(offsets)
      .append("}");
}

inline std::string read_all(const SafetensorsReader& reader, const StoredTensor& tensor) {
  std::string bytes(tensor.byte_size(), '\0');
  reader.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// A test that writes and loads one file, in a directory of its own.
struct SafetensorsTest {
  TempDir dir;
  std::filesystem::path path = dir.path() / "m.safetensors";

  SafetensorsReader load(std::string_view bytes) const {
    write_file(path, bytes);
    return SafetensorsReader(path);
  }
  std::string refusal(std::string_view bytes) const {
    return error_message([&] { load(bytes); });
  }
};

}  // namespace sluice::test
