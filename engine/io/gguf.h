#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/file.h"
#include "engine/tensor.h"

namespace sluice {

/// Element types of GGUF files that can be read. The last three are blocks of 32 elements that
/// share a scale of 16 bits (ggml's quantized types).
enum class GgufType : std::uint8_t {
  F32,
  F16,
  BF16,
  Q4_0,  ///< (q - 8) * scale, with q of 4 bits
  Q4_1,  ///< q * scale + minimum, with q of 4 bits
  Q8_0   ///< q * scale, with q of 8 bits
};

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::F32;
  Shape shape;               ///< row-major, so the file's dimensions in reverse order
  std::uint64_t offset = 0;  ///< of its first byte in the file
};

/// A file of llama.cpp's GGUF format, version 2 or 3, little-endian
/// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Opening it checks everything before
/// the data; the data is read on demand. Errors are ErrorKind::usage and name the file, the key or
/// tensor, and the value.
class GgufReader {
 public:
  explicit GgufReader(std::filesystem::path path);
  ~GgufReader();
  GgufReader(const GgufReader&) = delete;
  GgufReader& operator=(const GgufReader&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  /// An object with a member for each key of the file, such as "general.architecture".
  const nlohmann::json& metadata() const { return *metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// Returns null if the file has no such tensor.
  const GgufTensor* find(std::string_view name) const;

  /// Fills `out` with elements of `tensor`, which is one of tensors(), from element `first` on.
  /// `first` and the number of elements must be multiples of block_size(tensor.type).
  void read(const GgufTensor& tensor, std::int64_t first, std::span<float> out) const;

 private:
  File file_;
  std::unique_ptr<nlohmann::json> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;  ///< name to position in tensors()
};

/// Elements that are stored together: 32, or 1 for floats.
std::int64_t block_size(GgufType type);

/// Returns true for a name that ends as such a file's.
bool is_gguf_name(const std::filesystem::path& path);

}  // namespace sluice
