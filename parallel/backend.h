#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/stream.h"
#include "kernels/base/view.h"
#include "parallel/signature.h"

namespace sluice {

enum class ReduceOp : std::uint8_t { sum, maximum };

/// A stretch of an array, in elements: what one rank holds or gets of it.
struct Part {
  std::int64_t offset = 0;
  std::int64_t count = 0;
};

/// [0, count) in `pieces` parts of about the same size, cut at multiples of `unit`.
std::vector<Part> even_parts(std::int64_t count, int pieces, std::int64_t unit = 64);

/// One message of a p2p operation.
struct Transfer {
  bool send;
  int peer;
  View data;
};

/// An operation with everything that it works on. The memory stays the caller's and must stay as it
/// is until the operation is over.
struct CollectiveCall {
  Collective kind = Collective::barrier;
  View data{};                ///< what is reduced, broadcast or gathered, in place
  View all{};                 ///< gather, scatter: [size, data], at the root alone
  std::vector<Part> parts{};  ///< reduce_scatter, all_gather: of `data`, one for each rank
  std::vector<Transfer> transfers{};
  int root = -1;
  ReduceOp op = ReduceOp::sum;
  /// For reductions, u8: size - 1 times the bytes of the largest part (at the root of a reduce, of
  /// the data). Where it is too small or none, the operation takes memory from the system.
  View scratch{};
  Stream stream{};  ///< in which `data` is written before and read afterwards
};

/// An operation on its way.
class Work {
 public:
  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Does what can be done without waiting for other ranks; true when nothing is left.
  virtual bool advance() = 0;
  /// Once it is over, before its result is used in the call's stream.
  virtual void join() {}
};

/// Collectives on one kind of memory.
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string_view name() const = 0;
  /// Ranks start the same operations in the same order. `tag`: a multiple of 8, another one for
  /// every operation under way.
  virtual std::unique_ptr<Work> start(const CollectiveCall& call, int tag) = 0;
};

}  // namespace sluice
