#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/view.h"
#include "parallel/comm/backend/signature.h"

namespace sluice {

enum class ReduceOp : std::uint8_t { sum, maximum };

/// A range of an array, in elements: the part that one rank holds or receives.
struct Part {
  std::int64_t offset = 0;
  std::int64_t count = 0;
};

/// Cuts [0, count) into `pieces` parts of about the same size, at multiples of `unit`.
std::vector<Part> even_parts(std::int64_t count, int pieces, std::int64_t unit = 64);
/// One part of `each` elements for each rank, in the order of the ranks.
std::vector<Part> equal_parts(std::int64_t each, int ranks);

/// One message of a p2p operation.
struct Transfer {
  bool send;
  int peer;
  View data;
};

/// An operation with all its arguments. The memory belongs to the caller, who must not change it
/// until the operation is over or, in the call's stream, joined.
struct CollectiveCall {
  Collective kind = Collective::barrier;
  View data{};                ///< the array to reduce, broadcast or gather, in place
  View all{};                 ///< gather, scatter: [size, data], at the root alone
  std::vector<Part> parts{};  ///< reduce_scatter, all_gather: of `data`, one for each rank
  std::vector<Transfer> transfers{};
  int root = -1;
  ReduceOp op = ReduceOp::sum;
  /// all_reduce: the result is the same for any order of the ranks, for example because one of them
  /// has an element's value and the others have zeros. It may then use no scratch memory.
  bool any_order = false;
  /// u8 scratch memory for reductions: (size - 1) times the bytes of the largest part, or for the
  /// root of a reduce (size - 1) times those of `data`. If it is missing or too small, the
  /// operation allocates system memory. On a GPU: padded_bytes(), for a reduce_scatter or an
  /// all_gather whose parts have different sizes; operations under way may share it.
  View scratch{};
  Stream stream{};  ///< writes `data` before and reads it afterwards
};

/// Bytes of scratch memory for a reduction in which every rank receives one of the parts.
std::int64_t scratch_bytes(const std::vector<Part>& parts, DType dtype);

/// Elements of the largest part, a multiple of 64. With so many each, parts have equal sizes and an
/// alignment that suits any copy.
std::int64_t padded_count(const std::vector<Part>& parts);
/// Bytes of all parts with padded_count() elements each.
std::int64_t padded_bytes(const std::vector<Part>& parts, DType dtype);

/// An operation under way.
class Work {
 public:
  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Does what is possible without waiting for other ranks. Returns true when nothing is left.
  virtual bool advance() = 0;
  /// Returns true if join() may be called before the operation is over.
  virtual bool joinable() const { return false; }
  /// Makes the call's stream wait for the result. Called once the operation is over or joinable.
  virtual void join() {}
};

/// Implements collectives for one kind of memory.
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string_view name() const = 0;
  /// Returns true if an operation holds up all that are started after it on its device, also those
  /// of other backends.
  virtual bool one_at_a_time() const { return false; }
  /// All ranks start the same operations in the same order. `tag` is a multiple of 8 and differs
  /// between all operations under way.
  virtual std::unique_ptr<Work> start(const CollectiveCall& call, int tag) = 0;
};

}  // namespace sluice
