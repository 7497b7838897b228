#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/data/data_files.h"
#include "apps/data/skipped.h"
#include "apps/data/text_options.h"
#include "apps/flags/no_effect.h"
#include "engine/io/file.h"

namespace sluice {

/// A text that is learned as one piece: a file of text, or the text of a JSON line.
struct Document {
  std::string name;  ///< "a.txt", "b.jsonl:12"
  std::string_view text;
  std::size_t prompt = 0;  ///< bytes of the prompt with which a pair begins
};

/// Returns true if a file is read as JSON Lines: as `format` says, else by its name.
bool is_json_lines(const TextFile& file, std::optional<TextFormat> format);
/// Returns true if some of the files are.
bool any_json_lines(const DataFiles& files, std::optional<TextFormat> format);
/// Returns the rules of flags for text beside these files: text, of which some is JSON Lines, or
/// tokens. `name`: of the files, for messages. `few`: surely too few documents to draw some.
std::vector<NoEffect> text_rules(bool text, bool json, const std::string& name, bool few = false);

/// The totals of one reading of a source.
struct TextReport {
  std::int64_t files = 0;  ///< files that had a document
  std::int64_t documents = 0;
  std::uint64_t bytes = 0;
  Skipped skipped;

  /// Returns "12 files, 340 documents, 1.20M bytes".
  std::string text() const;
};

/// The documents of text files, which can be read any number of times. At most one document is in
/// memory. An input that can be read only once is first copied to an unnamed file.
class TextSource {
 public:
  /// `folder` is where such copies are made; empty: that for temporary files.
  TextSource(const DataFiles& files, TextOptions options, const std::filesystem::path& folder = {});

  using Take = std::function<void(const Document&)>;
  /// Passes every document to `take`. Leaves out empty documents, and files with NUL bytes unless
  /// named themselves. Throws Error (usage) naming the input for a bad JSON line or damaged gzip
  /// data, and if there is no document at all.
  TextReport read(const Take& take) const;

 private:
  struct TextInput {
    TextFile file;
    std::shared_ptr<const File> copy;  ///< copy of a stream
  };
  void read(const TextInput& source, TextReport& report, const Take& take) const;

  std::vector<TextInput> inputs_;
  TextOptions options_;
  std::string name_;
  Skipped skipped_;  ///< left out before reading
};

}  // namespace sluice
