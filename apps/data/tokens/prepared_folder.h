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

/// The identity of a tokenizer: equal facts mean equal ids.
struct TokenizerFacts {
  std::string kind, hash;
  std::int64_t tokens = 0;

  /// Returns "bpe tokenizer (49152 tokens, hash 0123456789abcdef)".
  std::string text() const;
};
TokenizerFacts facts_of(const Tokenizer& tokenizer);

/// Throws Error (usage), naming both tokenizers, if one of the files, which `flag` has named, is in
/// a folder of prepare_data's that was made with another tokenizer. `whose` has `tokenizer`. A
/// folder without a description, as older versions made it, is told by the tokenizer in it.
void require_made_with(const std::string& flag, std::span<const std::filesystem::path> files,
                       const Tokenizer& tokenizer, const std::string& whose);

/// Returns true if a path is named like the files below: train.bin, val_000001.bin, train.mask, or
/// like their description, prepared.json.
bool is_prepared_part(const std::filesystem::path& path);

/// Refuses a folder to write such files to if it holds tokens without a tokenizer, a tokenizer
/// without tokens, or a model: prepare_data did not write it. Throws Error (usage).
void require_prepared_or_new(const std::string& flag, const std::filesystem::path& folder);

/// A stream of tokens, or of the marks of a mask, on its way to a file.
class PreparedPart {
 public:
  PreparedPart() = default;
  virtual ~PreparedPart() = default;
  PreparedPart(const PreparedPart&) = delete;
  PreparedPart& operator=(const PreparedPart&) = delete;

  virtual void append(std::span<const std::int32_t> ids) = 0;
  /// Follows the last ids of a round of Turns.
  virtual void end_round() {}
  /// Syncs all tokens to disk, still under temporary names.
  virtual void complete() = 0;
  /// Gives the files their names, the last one first.
  virtual void publish() = 0;
  virtual std::size_t files() const = 0;
};

/// A part that one process writes, to FOLDER/PART.bin or to PART_000001.bin and so on.
class ShardedPart final : public PreparedPart {
 public:
  /// Every file but the last gets `shard_tokens` tokens; 0: one file.
  ShardedPart(std::filesystem::path folder, std::string part, std::size_t shard_tokens,
              std::size_t id_bytes = 2, std::string extension = ".bin")
      : folder_(std::move(folder)),
        part_(std::move(part)),
        shard_tokens_(shard_tokens),
        id_bytes_(id_bytes),
        extension_(std::move(extension)) {}

  void append(std::span<const std::int32_t> ids) override;
  void complete() override;
  void publish() override;
  std::size_t files() const override { return files_.size(); }

 private:
  std::filesystem::path folder_;
  std::string part_;
  std::size_t shard_tokens_;
  std::size_t id_bytes_;
  std::string extension_;
  std::vector<std::unique_ptr<TokenFileWriter>> files_;
};

/// Replaces the contents of the folder by the parts, the tokenizer and prepared.json, which says
/// {"tokenizer": {"kind": "bytes", "tokens": 256, "hash": "..."}}. The training tokens come
/// last. If the process is killed meanwhile, the folder is the old one, the new one, or one that is
/// refused since the beginning of its training tokens is missing. New tokens never lie beside old
/// ones.
void publish(const std::filesystem::path& folder, const Tokenizer& tokenizer,
             std::initializer_list<PreparedPart*> parts);

}  // namespace sluice
