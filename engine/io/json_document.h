#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice {

/// Limits of parse_json. The depth is serde_json's. The number of values (16 to 100 bytes each once
/// parsed) leaves room for some 400,000 tensors in a header and bounds the memory of a hostile one.
inline constexpr std::size_t max_json_depth = 128;
inline constexpr std::size_t max_json_values = 4'000'000;

/// Parses exactly one JSON text, more strictly than the underlying library. It refuses a key that
/// occurs twice in an object (readers disagree on which one counts), more nesting or values than
/// the limits above, a byte order mark, and NUL, also when escaped. As the standard demands it
/// refuses invalid UTF-8, lone surrogates, comments, numbers beyond a double, and anything after
/// the value. Integers beyond 64 bits become floating point, so test is_number_unsigned(), not
/// is_number(). Errors are ErrorKind::usage and begin with `what`, the name of the file.
nlohmann::json parse_json(std::string_view text, std::string_view what);

/// Applies parse_json to a file; refuses one of more than `max_bytes`.
nlohmann::json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Formats `text` from a file for an error message: quoted, escaped, and cut if it is long.
std::string quote(std::string_view text);
/// Same without quotes, for text from a command line.
std::string excerpt(std::string_view text);
/// Same for a value: as JSON in ASCII, cut if it is long.
std::string shown(const nlohmann::json& value);

}  // namespace sluice
