#pragma once

#include <cstddef>
#include <string>

#include "kernels/base/runtime.h"
#include "parallel/comm/backend/backend.h"

namespace sluice {

/// The bytes of device memory that a self-test works on.
std::size_t self_test_bytes(int ranks);

/// Does each kind of operation once on a few numbers in `memory`, which is on the device of
/// `runtime`. All ranks call it together. Returns what went wrong, such as "all_reduce gave wrong
/// numbers", or "" if nothing did; an operation may then still be under way. `timeout`: seconds for
/// one operation.
std::string self_test(Backend& backend, int rank, int ranks, Runtime& runtime, std::byte* memory,
                      double timeout);

}  // namespace sluice
