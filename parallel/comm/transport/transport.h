#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace sluice {

/// A message that was posted. Dropping it before it is done cancels it, which only a failing rank
/// does.
class Message {
 public:
  Message() = default;
  virtual ~Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  /// Returns true if the bytes may be used again (sent) or have arrived (received). Advances
  /// messages; throws Error if this one can no longer complete.
  virtual bool done() = 0;
};
using MessagePtr = std::unique_ptr<Message>;

/// Drops the messages that are done and returns true if none is left. If done() throws, all
/// messages not known to be done stay, so that all_done() may be called again.
bool all_done(std::vector<MessagePtr>& messages);

/// Moves bytes between the host memories of the ranks of a group. A new way of connecting ranks
/// only has to implement this class, since every collective is made of messages
/// (parallel/comm/backend/host_backend.h). Only subgroup() blocks. Only one thread of a rank may
/// use it at a time.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  static constexpr int tags = 1 << 15;  ///< no MPI has fewer (MPI 4.0, 9.1.2)

  /// Messages from one rank to another with the same tag arrive in order, in the sizes in which
  /// they were sent. `tag` is below `tags`.
  virtual MessagePtr send(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual MessagePtr receive(int from, int tag, std::span<std::byte> bytes) = 0;

  /// Makes a group of some ranks. All of them call it with the same list and `id`; a member's rank
  /// in the group is its index in the list.
  virtual std::unique_ptr<Transport> subgroup(std::span<const int> members, std::uint64_t id) = 0;
};

/// A transport for a single rank, which sends no messages.
std::unique_ptr<Transport> make_self_transport();

}  // namespace sluice
