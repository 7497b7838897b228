#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice {

/// Limits of parse_json: the depth is serde_json's; the values (each is 16 to 100 bytes once
/// parsed) leave room for some 400,000 tensors in a header and bound the memory of a hostile one.
inline constexpr std::size_t max_json_depth = 128;
inline constexpr std::size_t max_json_values = 4'000'000;

/// Parses exactly one JSON text. Stricter than the library beneath: refused are a key that occurs
/// twice in an object (readers disagree on which one counts), more nesting or values than the
/// limits above, a byte order mark and NUL, also when escaped; and, as the standard says, invalid
/// UTF-8, lone surrogates, comments, numbers beyond a double, and anything after the value.
/// Integers beyond 64 bits become floating point: test is_number_unsigned(), not is_number().
/// Errors are ErrorKind::usage and begin with `what`, the name of the file.
nlohmann::json parse_json(std::string_view text, std::string_view what);

/// parse_json of a file, which is refused when it has more than `max_bytes`.
nlohmann::json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// `text` as error messages show what came from a file: in quotes, escaped, cut when it is long.
std::string quote(std::string_view text);
/// The same without quotes, for text from a command line.
std::string excerpt(std::string_view text);
/// The same of a value: as JSON in ASCII, cut when it is long.
std::string shown(const nlohmann::json& value);

}  // namespace sluice
