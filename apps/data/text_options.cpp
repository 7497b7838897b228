#include "apps/data/text_options.h"

namespace sluice {

void declare_text_options(CommandLine& line, TextOptions& o, bool divided) {
  line.add_choice("--text-format", o.format,
                  "What texts are; auto: JSON Lines where the name ends in .jsonl or .ndjson",
                  text_formats);
  line.add("--text-field", o.field, "Field of a JSON line that holds the document");
  line.add(
      "--skip-bad-lines", o.skip_bad_lines,
      "Leave out lines that are no JSON object with such a text, where they would be an error");
  line.add("--special", o.special,
           "Text such as <|endoftext|> becomes the special token of that name");
  if (divided)
    line.add("--split-seed", o.split_seed, "Draws the documents that are for validation");
}

}  // namespace sluice
