#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sluice {

/// Names the file in which a job's reporting rank keeps its sentence.
inline constexpr const char* last_words_name = "spoken";

/// Chooses the one rank that reports when several fail at once. Returns true to the first caller
/// among all processes, by creating the file FOLDER/spoken with the sentence that it reports, and
/// to every caller if the folder is not writable. Returns false if the folder is gone: the rank
/// that reported may rename it and then remove it. A caller that comes just then may leave a file
/// in the renamed folder, so those that hear false remove that folder too.
bool speak_first(const std::filesystem::path& folder, std::string_view sentence);

/// Returns the sentence that a rank has reported; empty if none did.
std::string last_words(const std::filesystem::path& folder);

}  // namespace sluice
