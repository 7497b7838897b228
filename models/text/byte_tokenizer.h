#pragma once

#include "models/text/tokenizer.h"

namespace sluice {

/// One token per byte: ids 0 to 255. It learns nothing and can encode everything.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() = default;
  /// Reads the bytes.json that save() wrote; fails (usage) if it says anything else.
  static ByteTokenizer load(const std::filesystem::path& file);

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return 256; }
  std::string_view kind() const override { return "bytes"; }
  std::string content_hash() const override;
  /// Writes bytes.json, which only says that the folder belongs to this tokenizer, and the files of
  /// write_byte_files().
  void save(const std::filesystem::path& directory) const override;
};

}  // namespace sluice
