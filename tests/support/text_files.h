#pragma once

#include <zlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/data/data_files.h"
#include "apps/data/dataset.h"
#include "apps/data/text_source.h"
#include "models/text/bpe/bpe_tokenizer.h"
#include "models/text/byte_tokenizer.h"
#include "tests/support/temp_dir.h"

namespace sluice::test {

/// Compresses a text with gzip.
inline std::string gzip_of(const std::string& text) {
  const TempDir dir;
  const std::string path = (dir.path() / "x.gz").string();
  const gzFile file = gzopen(path.c_str(), "wb");
  if (gzwrite(file, text.data(), static_cast<unsigned>(text.size())) !=
          static_cast<int>(text.size()) ||
      gzclose(file) != Z_OK)
    throw std::runtime_error("cannot compress");
  return read_file(path);
}

/// Returns the tables of a tokenizer with one token per byte, and <|endoftext|> as 256.
inline BpeTables tokenizer_with_end_tables() {
  BpeTables tables;
  for (int byte = 0; byte < 256; ++byte) {
    tables.symbols.emplace_back(1, static_cast<char>(byte));
    tables.byte_symbol[static_cast<std::size_t>(byte)] = byte;
  }
  tables.symbols.emplace_back(end_of_text_name);
  tables.end_of_text = 256;
  tables.added.push_back({std::string(end_of_text_name), 256});
  return tables;
}
inline BpeTokenizer tokenizer_with_end() {
  return BpeTokenizer(tokenizer_with_end_tables());
}

/// Returns all tokens.
inline std::vector<std::int32_t> all_of(const TokenSource& source) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(source.size()));
  source.read(0, ids);
  return ids;
}

/// Opens texts as train_gpt2 does.
inline Dataset open(const std::vector<std::string>& data, const std::vector<std::string>& val = {},
                    const Tokenizer& tokenizer = ByteTokenizer(), const TextOptions& options = {}) {
  const DataInput input(find_data("--data", data), options);
  if (val.empty()) return open_dataset(input, nullptr, options, &tokenizer, 65536, {.most = 1024});
  const DataInput other(find_data("--val-data", val), options);
  return open_dataset(input, &other, options, &tokenizer, 65536, {.most = 1024});
}

/// A folder that a test fills with files.
struct TextFolder : TempDir {
  std::string at(const std::string& name) const { return (path() / name).string(); }
  std::string put(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path() / name).parent_path());
    write_file(path() / name, bytes);
    return at(name);
  }

  struct Read {
    std::vector<std::string> names, texts;  ///< file names below the folder
    TextReport report;
  };
  /// Reads all documents from the files that `names` select.
  Read read(const std::vector<std::string>& names, const TextOptions& options = {}) const {
    Read all;
    const TextSource source(find_data("--data", names), options, path());
    all.report = source.read([&](const Document& document) {
      std::string name = document.name;
      if (name.starts_with(path().string())) name = name.substr(path().string().size() + 1);
      all.names.push_back(name);
      all.texts.emplace_back(document.text);
    });
    return all;
  }
};

}  // namespace sluice::test
