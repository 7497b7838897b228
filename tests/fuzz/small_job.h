#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "parallel/ring_layout.h"

// The records of a job of three ranks, to be spoilt.

namespace sluice::fuzz {

inline constexpr int small_job_ranks = 3;
using SmallJob = std::array<RingLayout, small_job_ranks>;

/// Each rank has done an operation of all ranks; ranks 0 and 1 are in the next, and rank 2 is at
/// its note. The job ran on another host, so that nothing is asked of this one's processes.
SmallJob small_job();

/// A change of one record: the rank, where (two bytes, little-endian), how many bytes, the bytes.
std::string change(int rank, std::size_t offset, const std::string& bytes);

/// The file of a record.
std::string bytes_of(const RingLayout& record);

}  // namespace sluice::fuzz
