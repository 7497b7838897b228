#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/nccl/meeting_place.h"

namespace sluice::nccl_standin {

enum class Kind : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  send,
  receive
};

/// A call of NCCL by one rank.
struct Operation {
  Kind kind;
  const void* in;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;  ///< or the peer of a message; -1 if there is none

  bool is_message() const { return kind == Kind::send || kind == Kind::receive; }
  std::size_t bytes() const;     ///< `count` elements
  Bytes input(int ranks) const;  ///< what this rank contributes
  std::string text() const;      ///< what all ranks must agree on
};

/// Returns what is wrong with where the operation reads and writes, by NCCL's rules for operations
/// in place; "" if nothing is.
std::string fault_of(const Operation& operation, int rank, int ranks);

/// Writes the result of a collective operation for `rank` from all ranks' inputs, whose sum is
/// formed in rank order and rounded once.
void finish(const Operation& operation, int rank, const std::vector<Bytes>& inputs);

}  // namespace sluice::nccl_standin
