#pragma once

#include <string>

#include "apps/train/skipped.h"
#include "apps/train/text_options.h"
#include "apps/train/text_source.h"
#include "engine/io/input.h"

namespace sluice {

/// The documents of a file with one JSON object a line: the field options.field of each. Blank
/// lines, a byte order mark and CRLF are passed over. Lines without the field, and with null or ""
/// there, are skipped and counted. Error (usage), as "name:line", at any other line unless
/// options.skip_bad_lines.
void read_json_lines(Input& input, const std::string& name, const TextOptions& options,
                     Skipped& skipped, const TextSource::Take& take);

}  // namespace sluice
