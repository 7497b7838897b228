#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "parallel/comm/backend/backend.h"
#include "parallel/comm/backend/signature.h"

namespace sluice {

class Communicator;

/// A started operation. Dropping the handle does not stop it; an error of any operation stops all
/// those under way. The communicator must outlive it.
class Operation {
 public:
  /// Returns true if the operation is over; advances all operations of the communicator. Throws as
  /// wait() does, except for the timeout.
  bool done();
  /// The same, without advancing anything.
  bool over() const { return over_; }
  /// Waits until the operation is over and makes the call's stream wait for the result. Throws
  /// Error if the ranks have started different operations, if a rank has failed, or after
  /// Options::timeout, and then on every later call.
  void wait();
  /// Makes the call's stream wait for the result, and waits itself only for what this needs: with
  /// NCCL, until the GPU has been given the operation, so that the GPU does not run out of work. An
  /// error of the operation is thrown by a later call for any operation. Ranks that differ are
  /// noticed before the stream goes on, except that up to eight ranks do not wait for that where
  /// the communicator has done such an operation before.
  /// It is wait() for an operation that cannot be joined so early.
  void join();

  const Signature& signature() const { return signature_; }

 private:
  friend class Communicator;
  Operation(Communicator& communicator, const Signature& signature);
  bool advance();
  bool may_be_joined();
  template <class Condition>
  void wait_until(Condition&& condition);
  void explain_failure();

  Communicator& communicator_;
  Signature signature_;
  std::uint64_t number_ = 0;  ///< given by the monitor
  std::unique_ptr<Work> work_;
  std::unique_ptr<SignatureCheck> check_;
  bool checked_ = false;  ///< all ranks have started the same operation
  bool over_ = false;
};
using Handle = std::shared_ptr<Operation>;

/// Options of one operation. `label` is its name in reports.
struct CallOptions {
  std::string_view label;
  Stream stream{};  ///< writes the data before and reads it afterwards
  View scratch{};   ///< see CollectiveCall
  ReduceOp op = ReduceOp::sum;
  bool any_order = false;  ///< see CollectiveCall
};

}  // namespace sluice
