#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sluice {

/// Bytes. No tokenizer file is larger; one that is gets refused before it is read.
inline constexpr std::uint64_t max_tokenizer_file = 100'000'000;

/// The whole of a file. Fails (usage) where it is absent, not a file, or over the limit.
std::string read_text_file(const std::filesystem::path& path);

/// Replaces the file at once or, on an error (runtime), not at all. Makes its folder where that is
/// absent.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace sluice
