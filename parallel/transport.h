#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace sluice {

/// A message that was posted. One that is dropped before it is done is given up: only a rank that
/// has failed does that.
class Message {
 public:
  Message() = default;
  virtual ~Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  /// Whether its bytes may be used again (sent) or have arrived (received). Moves things along;
  /// throws Error when that can no longer happen.
  virtual bool done() = 0;
};
using MessagePtr = std::unique_ptr<Message>;

/// Drops the messages that are done; true when none is left. Where one throws, all that are not
/// known to be done stay, so that it may be called again.
bool settle(std::vector<MessagePtr>& messages);

/// Moves bytes between the host memories of the ranks of a group: all that a way of connecting
/// ranks has to bring, since every collective is made of messages (parallel/host_backend.h).
/// Nothing here waits, but subgroup(). Used by one thread of each rank.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  static constexpr int tags = 1 << 30;

  /// Messages from one rank to another with the same tag arrive in order, in the sizes in which
  /// they were sent. `tag` is below `tags`.
  virtual MessagePtr send(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual MessagePtr receive(int from, int tag, std::span<std::byte> bytes) = 0;

  /// A group of its own of some ranks, called by all of them with the same list and `id`; the rank
  /// in it is the place in the list.
  virtual std::unique_ptr<Transport> subgroup(std::span<const int> members, std::uint64_t id) = 0;
};

/// A single rank, which has nobody to talk to.
std::unique_ptr<Transport> make_self_transport();

}  // namespace sluice
