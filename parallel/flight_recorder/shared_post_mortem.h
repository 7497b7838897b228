#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace sluice {

/// Names the file for the sentence of a job's post mortem.
inline constexpr const char* post_mortem_name = "post-mortem";

/// Returns what post_mortem() says of the records in `folder`. Often all ranks ask at the same
/// time. Then the first reads all records, and the others take its sentence from the file
/// FOLDER/post-mortem: together they read N records, not N^2. Whoever gets no sentence within
/// `patience` and a millisecond for each rank, or cannot write to the folder, reads them too.
std::string shared_post_mortem(const std::filesystem::path& folder, int size,
                               std::chrono::milliseconds patience = std::chrono::seconds(2));

}  // namespace sluice
