#pragma once

#include <string>

#include "apps/data/skipped.h"
#include "apps/data/text_options.h"
#include "apps/data/text_source.h"
#include "engine/io/input.h"

namespace sluice {

/// Reads the documents of a file with one JSON object per line: field options.field of each, or
/// the prompt and the completion of a pair, of which the prompt may be "". It ignores blank lines,
/// a byte order mark and CR before LF. It skips and counts lines without the field or with null or
/// "" there. Any other line throws Error (usage) as "name:line", unless options.skip_bad_lines.
void read_json_lines(Input& input, const std::string& name, const TextOptions& options,
                     Skipped& skipped, const TextSource::Take& take);

}  // namespace sluice
