#include <vector>

#include "apps/data/text_source.h"
#include "tests/fuzz/harness.h"

namespace sluice::fuzz {

void read_texts(Bytes input) {
  const bool compressed = input.starts_with('z');
  const auto path =
      put(compressed ? "texts.txt.gz" : "texts.jsonl", input.substr(input.empty() ? 0 : 1));
  const TextSource source(find_data("--data", {path.string()}), {}, scratch());
  std::vector<std::string> texts;
  const TextReport report = source.read([&](const Document& document) {
    require(!document.text.empty(), "an empty document");
    texts.emplace_back(document.text);
  });
  require(report.documents == static_cast<std::int64_t>(texts.size()), "documents miscounted");
  require(!compressed || texts.size() == 1, "not one document in a text");
  std::size_t next = 0;
  source.read([&](const Document& document) {
    require(next < texts.size() && texts[next++] == document.text, "a second reading differs");
  });
  require(next == texts.size(), "a second reading is shorter");
}

}  // namespace sluice::fuzz
