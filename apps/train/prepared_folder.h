#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/io/token_file.h"
#include "models/text/tokenizer.h"

namespace sluice {

/// Whether a path is named as the files below are: train.bin, val_000001.bin.
bool is_prepared_part(const std::filesystem::path& path);

/// A stream of tokens that becomes FOLDER/PART.bin, or PART_000001.bin and so on.
class PreparedPart {
 public:
  /// `shard_tokens` in every file but the last; 0: one file.
  PreparedPart(std::filesystem::path folder, std::string part, std::size_t shard_tokens)
      : folder_(std::move(folder)), part_(std::move(part)), shard_tokens_(shard_tokens) {}

  void append(std::span<const std::int32_t> ids);
  /// All that was appended is on the disk, but not yet under its name.
  void complete();
  /// The last file first.
  void publish();

  std::size_t files() const { return files_.size(); }

 private:
  std::filesystem::path folder_;
  std::string part_;
  std::size_t shard_tokens_;
  std::vector<std::unique_ptr<TokenFileWriter>> files_;
};

/// Puts both parts and the tokenizer in the place of what the folder held. A process that is killed
/// meanwhile leaves the old, the new, or a folder that is refused because the beginning of its
/// training tokens is missing; never new tokens beside old ones.
void publish(const std::filesystem::path& folder, const Tokenizer& tokenizer, PreparedPart& train,
             PreparedPart& val);

}  // namespace sluice
