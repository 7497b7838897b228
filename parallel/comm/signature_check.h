#pragma once

#include <string>
#include <vector>

#include "parallel/comm/backend/signature.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

/// Every rank tells every other which operation it has started. The messages travel in parallel
/// with the data, so checking is meant to cost no time of its own; not measured.
class SignatureCheck {
 public:
  SignatureCheck(Transport& transport, std::string communicator, const Signature& mine, int tag);

  /// Returns true if all ranks have answered. Throws Error if a rank has started something else,
  /// naming the rank, and throws again whenever it is asked.
  bool advance();

 private:
  std::string communicator_;
  std::vector<Signature> signatures_;  ///< by rank
  std::vector<MessagePtr> messages_;
  bool agreed_ = false;
};

/// Returns "" if all signatures are equal, else says which rank started which operation.
std::string first_disagreement(const std::vector<Signature>& by_rank);

}  // namespace sluice
