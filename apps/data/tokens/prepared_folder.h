#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/io/token_file.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// Returns true if a path is named like the files below: train.bin, val_000001.bin, train.mask.
bool is_prepared_part(const std::filesystem::path& path);

/// A stream of tokens that is written to FOLDER/PART.bin, or to PART_000001.bin and so on; or of
/// the marks of a mask.
class PreparedPart {
 public:
  /// Every file but the last gets `shard_tokens` tokens; 0: one file.
  PreparedPart(std::filesystem::path folder, std::string part, std::size_t shard_tokens,
               std::size_t id_bytes = 2, std::string extension = ".bin")
      : folder_(std::move(folder)),
        part_(std::move(part)),
        shard_tokens_(shard_tokens),
        id_bytes_(id_bytes),
        extension_(std::move(extension)) {}

  void append(std::span<const std::int32_t> ids);
  /// Syncs all tokens to disk, still under temporary names.
  void complete();
  /// Gives the files their names, the last one first.
  void publish();

  std::size_t files() const { return files_.size(); }

 private:
  std::filesystem::path folder_;
  std::string part_;
  std::size_t shard_tokens_;
  std::size_t id_bytes_;
  std::string extension_;
  std::vector<std::unique_ptr<TokenFileWriter>> files_;
};

/// Replaces the contents of the folder by the parts and the tokenizer. The training tokens come
/// last. If the process is killed meanwhile, the folder is the old one, the new one, or one that is
/// refused since the beginning of its training tokens is missing. New tokens never lie beside old
/// ones.
void publish(const std::filesystem::path& folder, const Tokenizer& tokenizer,
             std::initializer_list<PreparedPart*> parts);

}  // namespace sluice
