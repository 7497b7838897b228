#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "parallel/flight_recorder/flight_recorder.h"

namespace sluice {

/// Names the file for the sentence of a job's post mortem.
inline constexpr const char* post_mortem_name = "post-mortem";

/// Reads the records of a job's ranks.
using ReadRecords = std::function<std::vector<RankRecord>()>;

/// Returns what post_mortem() says of the records that `read` returns; none: those in `folder`.
/// Often all ranks ask at the same time. Then the first reads all records, and the others take its
/// sentence from the file FOLDER/post-mortem: together they read N records, not N^2. Whoever gets
/// no sentence within `patience` and a millisecond for each rank, or cannot write to the folder,
/// reads them too.
std::string shared_post_mortem(const std::filesystem::path& folder, int size,
                               std::chrono::milliseconds patience = std::chrono::seconds(2),
                               const ReadRecords& read = {});

}  // namespace sluice
