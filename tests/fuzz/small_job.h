#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "parallel/flight_recorder/record_layout.h"

// The records of a job of three ranks, for tests that corrupt them.

namespace sluice::fuzz {

inline constexpr int small_job_ranks = 3;
using SmallJob = std::array<RecordLayout, small_job_ranks>;

/// Every rank has completed one collective; ranks 0 and 1 are in the next one, and rank 2 is at its
/// note. The job ran on another host, so that no process of this host is looked up.
SmallJob small_job();

/// Encodes a change of one record: rank, offset (two bytes, little-endian), byte count, bytes.
std::string change(int rank, std::size_t offset, const std::string& bytes);

/// Returns a record as the bytes of its file.
std::string bytes_of(const RecordLayout& record);

}  // namespace sluice::fuzz
