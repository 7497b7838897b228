#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"

namespace sluice {

// Questions about all ranks, whose messages are of one size however many ranks there are. All ranks
// call these functions, which wait.

/// Returns the largest of each number among the ranks, which give equally many.
std::vector<std::int32_t> largest_of_each(Communicator& ranks, std::vector<std::int32_t> mine,
                                          std::string_view label);

/// Returns true if a rank has given true.
bool any_rank(Communicator& ranks, bool here, std::string_view label);

/// Returns the lowest rank that has given true; none if no rank has.
std::optional<int> first_rank(Communicator& ranks, bool here, std::string_view label);

/// Returns true if the bytes of all ranks have the same size and CRC-32.
bool all_equal(Communicator& ranks, std::span<const std::byte> mine, std::string_view label);

/// Throws Error (usage) if `mine` differs from rank 0's in size or CRC-32, and says how. If others
/// differ, a rank whose text is rank 0's waits for them to end.
void require_equal(Communicator& ranks, std::string_view what, const std::string& mine);

}  // namespace sluice
