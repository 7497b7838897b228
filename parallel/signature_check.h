#pragma once

#include <string>
#include <vector>

#include "parallel/signature.h"
#include "parallel/transport.h"

namespace sluice {

/// Every rank tells every other what it has started. The messages go beside the data, so that
/// checking costs no time of its own.
class SignatureCheck {
 public:
  SignatureCheck(Transport& transport, std::string communicator, const Signature& mine, int tag);

  /// Whether all have answered. Throws Error where one has started something else, with its rank,
  /// and again whenever it is asked.
  bool advance();

 private:
  std::string communicator_;
  std::vector<Signature> signatures_;  ///< by rank
  std::vector<MessagePtr> messages_;
  bool agreed_ = false;
};

/// "" where all are equal, else who started what.
std::string first_disagreement(const std::vector<Signature>& by_rank);

}  // namespace sluice
