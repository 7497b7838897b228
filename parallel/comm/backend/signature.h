#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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
  bool any_order = false;  ///< see CollectiveCall
  std::array<char, 1> unused{};
  std::array<char, label_bytes> label{};  ///< "gradients 3"; cut if it is longer, then zero-filled

  void set_label(std::string_view text);
  std::string_view label_text() const;
  friend bool operator==(const Signature&, const Signature&) = default;
};
static_assert(sizeof(Signature) == 64);

/// "all_reduce of 1048576 f32, 'gradients 3' (operation 42)"
std::string to_string(const Signature& signature);

/// Who started which operation, of a range of ranks. Trivially copyable and without padding: it is
/// a message of one size, however many ranks it is about. It has room for eight operations, of
/// which it keeps those that most ranks have started, and lists the first eight ranks of each.
class Tally {
 public:
  static constexpr std::size_t max_kinds = 8, max_listed = 8;

  void add(int rank, const Signature& signature);
  /// Adds a tally of the ranks that follow these.
  void add(const Tally& next);

  /// "" if all have started the same, else says which rank started which operation. The usual one
  /// is what most ranks have started; in a tie, what the lowest rank has.
  std::string disagreement() const;

 private:
  struct Kind {
    Signature signature;
    std::int32_t ranks = 0;  ///< how many
    std::int32_t unused = 0;
    std::array<std::int32_t, max_listed> listed{};  ///< the first of them
  };
  static std::string ranks_of(const Kind& kind);
  std::span<const Kind> kinds() const { return {kinds_.data(), static_cast<std::size_t>(count_)}; }
  void add(const Kind& kind);

  std::int32_t count_ = 0;
  std::int32_t others_ = 0;              ///< ranks whose operations have no room
  std::array<Kind, max_kinds> kinds_{};  ///< ascending by the first rank
};
static_assert(std::is_trivially_copyable_v<Tally> && sizeof(Tally) == 840);

/// The binomial tree of ranks with the root 0. The ranks from rank + step to rank + 2 * step - 1
/// are the child rank + step and those below it. Children are ascending.
std::vector<int> tree_children(int rank, int ranks);
constexpr int tree_parent(int rank) {
  return rank & (rank - 1);
}

/// Checks that all ranks have started the same operation. These messages travel beside the data.
///
/// Up to eight ranks each send their signature to all others. More form a binomial tree: tallies go
/// up to rank 0, and the tally of all ranks comes down. A rank then sends and receives at most
/// 2 ceil(log2(ranks)) messages together, and four on average. A rank passes messages on while it
/// calls advance(): one that computes meanwhile delays the check of the ranks below it, as it
/// delays the data. The latency has not been measured on a network.
class SignatureCheck {
 public:
  static constexpr int most_direct = 8;
  static_assert(Tally::max_kinds >= most_direct && Tally::max_listed >= most_direct);

  /// `transport` must outlive the check.
  SignatureCheck(Transport& transport, std::string communicator, const Signature& mine, int tag);
  SignatureCheck(const SignatureCheck&) = delete;  // messages point to its members
  SignatureCheck& operator=(const SignatureCheck&) = delete;

  /// Returns true if all signatures have arrived and agree. Throws Error naming a rank that has
  /// started another operation, on this call and every later one. It does not wait until the other
  /// ranks have received this one's: such a rank may be waiting for the GPU, which waits for this
  /// rank's next operation.
  bool advance();
  /// True if nobody needs the check any more: all agree, and its messages have been received.
  bool over();

 private:
  enum class Stage : std::uint8_t { collect, report, tell, judge };
  void next_stage();
  void send(int to, const Tally& tally);
  void receive(int from, Tally& tally);

  Transport& transport_;
  std::string communicator_;
  int tag_;
  std::vector<Signature> signatures_;  ///< by rank, if they are sent to all
  std::vector<int> children_;          ///< in the tree, ascending
  std::vector<Tally> reports_;         ///< of the children
  Tally mine_, all_;                   ///< of this rank and those below it, and of all
  Stage stage_ = Stage::collect;
  std::vector<MessagePtr> sends_, receives_;
  bool agreed_ = false;
};

}  // namespace sluice
