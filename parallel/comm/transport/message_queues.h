#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "kernels/base/error.h"

namespace sluice {

/// Names the messages from one rank of a group to another with one tag.
struct MessageKey {
  std::uint64_t group;
  int from, to, tag;
  auto operator<=>(const MessageKey&) const = default;
};

/// Matches messages of ranks in one process: the n-th message sent with a key goes to the n-th
/// receive that was posted with it. Not thread-safe.
template <class Message>
class MessageQueues {
 public:
  void post(const MessageKey& key, std::shared_ptr<Message> message) {
    Queue& queue = queues_[key];
    queue.waiting.emplace(queue.sent++, std::move(message));
  }
  /// Returns the position of a receive among those with the same key.
  std::uint64_t ask(const MessageKey& key) { return queues_[key].asked++; }
  /// Returns the message for the receive at `place`; null if it has not been sent.
  std::shared_ptr<Message> take(const MessageKey& key, std::uint64_t place) {
    const auto at = queues_.find(key);
    if (at == queues_.end()) return nullptr;
    Queue& queue = at->second;
    const auto found = queue.waiting.find(place);
    if (found == queue.waiting.end()) return nullptr;
    auto message = std::move(found->second);
    queue.waiting.erase(found);
    if (queue.waiting.empty() && queue.sent == queue.asked) queues_.erase(at);
    return message;
  }

 private:
  struct Queue {
    std::uint64_t sent = 0, asked = 0;
    std::map<std::uint64_t, std::shared_ptr<Message>> waiting{};
  };
  std::map<MessageKey, Queue> queues_;
};

/// Returns the number of a subgroup (Transport::subgroup) of the group with the number `group`. The
/// first member distinguishes subgroups that are made at the same time.
inline std::uint64_t number_of_subgroup(std::uint64_t group, std::uint64_t id,
                                        std::span<const int> members) {
  return (group * 1000003 + id) * 1000003 + static_cast<std::uint64_t>(members.front()) + 1;
}

/// Returns the rank in a subgroup of the rank `rank`; throws Error if it is no member.
inline int rank_in(std::span<const int> members, int rank) {
  const auto here = std::ranges::find(members, rank);
  check(here != members.end(), "a rank asked for a group that it is not in");
  return static_cast<int>(here - members.begin());
}

}  // namespace sluice
