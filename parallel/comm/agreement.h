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

/// Returns "rank 3 on hostb" for this rank.
std::string place_of(const Communicator& ranks);

/// Throws Error (usage) on all ranks, with the sentence of the lowest rank that gives one; "": it
/// gives none. So whichever rank speaks for the job says the same.
void refuse_together(Communicator& ranks, const std::string& sentence, std::string_view label);

/// Something that has to be equal on all ranks.
struct Fact {
  std::string what;      ///< as in "another program than rank 0"
  std::string mine;      ///< this rank's
  std::string advice{};  ///< what to do if it differs; may be empty
};

/// Compares all facts in one exchange of 16 bytes. If one differs from rank 0's in size or CRC-32,
/// throws Error (usage) on all ranks, which names the first such fact with its lowest rank and
/// host.
void require_equal(Communicator& ranks, const std::vector<Fact>& facts);
void require_equal(Communicator& ranks, std::string_view what, const std::string& mine);

}  // namespace sluice
