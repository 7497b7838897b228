#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/data_files.h"
#include "apps/train/skipped.h"
#include "apps/train/text_options.h"
#include "engine/io/file.h"

namespace sluice {

/// What is learned as one piece: a file of text, or the text of a JSON line.
struct Document {
  std::string name;  ///< "a.txt", "b.jsonl:12"
  std::string_view text;
};

/// What one reading of a source has come to.
struct TextReport {
  std::int64_t files = 0;  ///< that had a document
  std::int64_t documents = 0;
  std::uint64_t bytes = 0;
  Skipped skipped;

  /// "12 files, 340 documents, 1.20M bytes"
  std::string text() const;
};

/// The documents of files of text, one after another, as often as they are asked for. At most one
/// document is in memory. What can be read only once is first copied to a file without a name.
class TextSource {
 public:
  /// `folder` is for such copies.
  TextSource(const DataFiles& files, TextOptions options, const std::filesystem::path& folder);

  using Take = std::function<void(const Document&)>;
  /// Empty documents are left out, and files with NUL bytes, unless the file was named itself.
  /// Error (usage) at a bad JSON line or damaged gzip data, naming the place, and where there is no
  /// document at all.
  TextReport read(const Take& take) const;

 private:
  struct Place {
    TextFile file;
    std::shared_ptr<const File> copy;  ///< of a stream
  };
  void read(const Place& place, TextReport& report, const Take& take) const;

  std::vector<Place> places_;
  TextOptions options_;
  std::string name_;
  Skipped skipped_;  ///< before anything was read
};

}  // namespace sluice
