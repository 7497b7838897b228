#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sluice {

/// Size limit of tokenizer files in bytes. A larger file is refused before it is read.
inline constexpr std::uint64_t max_tokenizer_file = 100'000'000;

/// Returns the whole text of a file. Fails (usage) if it is absent, not a file, or over the limit.
std::string read_text_file(const std::filesystem::path& path);

/// Replaces the file atomically; an error (runtime) leaves the old one. Makes the folder if it is
/// absent.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace sluice
