#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/dtype.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  barrier,
  p2p,
  split
};

constexpr std::array<std::string_view, 10> collective_names{
    "all_reduce", "reduce",         "broadcast", "all_gather", "gather",
    "scatter",    "reduce_scatter", "barrier",   "p2p",        "split"};
constexpr std::string_view name_of(Collective kind) {
  return collective_names[static_cast<std::size_t>(kind)];
}

/// Describes an operation as one rank started it. All ranks of a communicator must start the same
/// operations in the same order, with equal signatures. Trivially copyable and without padding, so
/// that it can be sent, compared and kept in a file as bytes.
struct Signature {
  static constexpr std::size_t label_bytes = 40;

  std::uint64_t sequence = 0;  ///< number of the operation in its communicator, from 0
  std::int64_t count = 0;      ///< elements
  std::int32_t root = -1;      ///< -1: the operation has no root
  Collective kind = Collective::barrier;
  DType dtype = DType::u8;
  std::array<char, 2> unused{};
  std::array<char, label_bytes> label{};  ///< "gradients 3"; cut if it is longer, then zero-filled

  void set_label(std::string_view text);
  std::string_view label_text() const;
  friend bool operator==(const Signature&, const Signature&) = default;
};
static_assert(sizeof(Signature) == 64);

/// "all_reduce of 1048576 f32, 'gradients 3' (operation 42)"
std::string to_string(const Signature& signature);

/// Checks that all ranks have started the same operation, by exchanging signatures. These messages
/// travel beside the data and are meant to cost no extra time; not measured.
class SignatureCheck {
 public:
  SignatureCheck(Transport& transport, std::string communicator, const Signature& mine, int tag);

  /// Returns true if all signatures have arrived and agree. Throws Error naming a rank that has
  /// started another operation, on this call and every later one.
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
