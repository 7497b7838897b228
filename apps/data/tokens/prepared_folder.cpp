#include "apps/data/tokens/prepared_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/data/tokens/token_shards.h"
#include "engine/io/durable.h"
#include "engine/io/json_document.h"
#include "kernels/base/error.h"
#include "models/text/bpe/bpe_description.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* description_file = "prepared.json";

/// Returns the tokenizer that the tokens of a folder were made with; none if nothing tells it.
std::optional<TokenizerFacts> maker_of(const fs::path& folder) {
  const fs::path description = folder / description_file;
  if (!fs::exists(description)) {
    try {
      if (has_tokenizer(folder)) return facts_of(*load_tokenizer(folder));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;  // a tokenizer that prepare_data did not write
    }
    return std::nullopt;
  }
  const nlohmann::json root = read_json_file(description, max_text_file);
  const nlohmann::json& made = member(root, "tokenizer");
  const nlohmann::json &kind = member(made, "kind"), &hash = member(made, "hash"),
                       &tokens = member(made, "tokens");
  if (!kind.is_string() || !hash.is_string() || !tokens.is_number_unsigned())
    fail(fmt::format("{}: \"tokenizer\" is {}, not what prepare_data writes: \"kind\", "
                     "\"tokens\" and \"hash\"; make the folder anew",
                     description.string(), shown(made)),
         ErrorKind::usage);
  return TokenizerFacts{.kind = kind, .hash = hash, .tokens = tokens};
}

void write_description(const fs::path& folder, const Tokenizer& tokenizer) {
  const TokenizerFacts facts = facts_of(tokenizer);
  const nlohmann::ordered_json root{
      {"tokenizer", {{"kind", facts.kind}, {"tokens", facts.tokens}, {"hash", facts.hash}}}};
  write_text_file(folder / description_file, root.dump(2) + "\n");
}

/// Removes the files of an earlier call, beginning with the first training tokens and ending with
/// their description.
void remove_old(const fs::path& folder) {
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_prepared_part(entry.path())) old.push_back(entry.path());
  std::ranges::sort(old);
  std::ranges::stable_partition(
      old, [](const fs::path& path) { return path.filename() != description_file; });
  for (const fs::path& path : old) {
    std::error_code error;
    fs::remove(path, error);
    if (error) fail(fmt::format("cannot replace {}: {}", path.string(), error.message()));
    sync_directory(folder);
  }
}

}  // namespace

std::string TokenizerFacts::text() const {
  return fmt::format("{} tokenizer ({} tokens, hash {})", kind, tokens, hash);
}

TokenizerFacts facts_of(const Tokenizer& tokenizer) {
  return {.kind = std::string(tokenizer.kind()),
          .hash = tokenizer.content_hash(),
          .tokens = tokenizer.vocab_size()};
}

void require_made_with(const std::string& flag, std::span<const fs::path> files,
                       const Tokenizer& tokenizer, const std::string& whose) {
  std::set<fs::path> folders;
  for (const fs::path& file : files)
    if (is_prepared_part(file)) folders.insert(directory_of(file));
  for (const fs::path& folder : folders) {
    const auto made = maker_of(folder);
    const TokenizerFacts ours = facts_of(tokenizer);
    if (made && made->hash != ours.hash)
      fail(fmt::format("{} {}: its ids are of a {}, and {} has a {}; make the folder anew with "
                       "prepare_data --tokenizer-dir and that one",
                       flag, folder.string(), made->text(), whose, ours.text()),
           ErrorKind::usage);
  }
}

bool is_prepared_part(const fs::path& path) {
  if (path.filename() == description_file) return true;
  const auto shard = shard_name(path);
  const std::string part = shard ? shard->prefix : path.stem().string();
  return (path.extension() == ".bin" || path.extension() == ".mask") &&
         (part == "train" || part == "val");
}

void require_prepared_or_new(const std::string& flag, const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder, none) && !fs::is_directory(folder, none))
    fail(fmt::format("{} {} is not a folder; give another name", flag, folder.string()),
         ErrorKind::usage);
  const auto refuse = [&](const fs::path& file, const char* why) {
    fail(fmt::format("{}: {} was not written by prepare_data, for there is {} beside it; give "
                     "another folder",
                     flag, file.string(), why),
         ErrorKind::usage);
  };
  fs::path tokens, tokenizer, model;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    // A process that was killed has left tokens under their temporary names.
    if (is_prepared_part(name) || is_prepared_part(temporary_of(name)))
      tokens = entry.path();
    else if (is_tokenizer_file(name))
      tokenizer = entry.path();
    else if (name == "config.json")
      model = entry.path();
  }
  if (!tokenizer.empty() && !model.empty()) refuse(tokenizer, "a model");
  if (!tokenizer.empty() && tokens.empty()) refuse(tokenizer, "no file of tokens");
  if (!tokens.empty() && tokenizer.empty() && is_prepared_part(tokens))
    refuse(tokens, "no tokenizer");
}

void ShardedPart::append(std::span<const std::int32_t> ids) {
  while (!ids.empty()) {
    if (files_.empty() || (shard_tokens_ > 0 && files_.back()->size() == shard_tokens_)) {
      if (!files_.empty()) files_.back()->complete();
      const std::string name = shard_tokens_ > 0
                                   ? fmt::format("{}_{:06}{}", part_, files_.size() + 1, extension_)
                                   : part_ + extension_;
      files_.push_back(std::make_unique<TokenFileWriter>(folder_ / name, id_bytes_));
    }
    TokenFileWriter& file = *files_.back();
    const std::size_t room = shard_tokens_ > 0 ? shard_tokens_ - file.size() : ids.size();
    file.append(ids.first(std::min(room, ids.size())));
    ids = ids.subspan(std::min(room, ids.size()));
  }
}

void ShardedPart::complete() {
  if (!files_.empty()) files_.back()->complete();
}

void ShardedPart::publish() {
  for (auto file = files_.rbegin(); file != files_.rend(); ++file)
    (*file)->finish();
}

void publish(const fs::path& folder, const Tokenizer& tokenizer,
             std::initializer_list<PreparedPart*> parts) {
  for (PreparedPart* const part : parts)
    part->complete();
  const File lock = lock_directory(folder);  // concurrent calls publish one after the other
  remove_old(folder);
  tokenizer.save(folder);
  write_description(folder, tokenizer);
  for (PreparedPart* const part : parts)
    part->publish();
}

}  // namespace sluice
