#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "parallel/comm/backend/backend.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

inline std::span<std::byte> bytes_of(const View& data, const Part& part) {
  const std::size_t width = size_of(data.dtype);
  return {data.address + static_cast<std::size_t>(part.offset) * width,
          static_cast<std::size_t>(part.count) * width};
}

inline std::span<std::byte> bytes_of(const View& data) {
  return bytes_of(data, {0, data.size()});
}

/// An operation as a sequence of phases: each posts its messages together and does some work when
/// they are done.
class Phases final : public Work {
 public:
  struct Phase {
    std::function<void(Phases&)> post{};
    std::function<void()> then{};
    int channel = 0;  ///< 0, 1 or 2; must be equal at both ends of a message
  };

  Phases(Transport& transport, CollectiveCall what, int tag)
      : call(std::move(what)), transport_(transport), tag_(tag) {}

  const CollectiveCall call;
  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }

  void add(Phase phase) { phases_.push_back(std::move(phase)); }
  void send(int to, std::span<const std::byte> bytes) {
    if (!bytes.empty())
      messages_.push_back(transport_.send(to, tag_ + phases_[next_].channel, bytes));
  }
  void receive(int from, std::span<std::byte> bytes) {
    if (!bytes.empty())
      messages_.push_back(transport_.receive(from, tag_ + phases_[next_].channel, bytes));
  }
  template <class Body>
  void for_each_peer(Body&& body) const {
    // Each rank begins with a different peer, so that no rank is the first peer of all others.
    for (int i = 1; i < size(); ++i)
      body((rank() + i) % size());
  }

  std::span<std::byte> memory(std::size_t bytes) {
    memory_.resize(bytes);
    return memory_;
  }
  /// Returns an address for each rank's contribution to `count` elements; this rank's own is `own`.
  std::vector<std::byte*> places_for(std::int64_t count, std::byte* own) {
    const std::size_t each = static_cast<std::size_t>(count) * size_of(call.data.dtype);
    const std::size_t needed = each * static_cast<std::size_t>(size() - 1);
    std::byte* next = call.scratch.address;
    if (!call.scratch || static_cast<std::size_t>(call.scratch.size()) < needed)
      next = memory(needed).data();
    std::vector<std::byte*> places;
    for (int r = 0; r < size(); ++r)
      places.push_back(r == rank() ? own : std::exchange(next, next + each));
    return places;
  }

  bool advance() override {
    while (true) {
      if (!posted_) {
        if (next_ == phases_.size()) return true;
        if (phases_[next_].post) phases_[next_].post(*this);
        posted_ = true;
      }
      if (!all_done(messages_)) return false;
      if (phases_[next_].then) phases_[next_].then();
      ++next_;
      posted_ = false;
    }
  }

 private:
  Transport& transport_;
  int tag_;
  std::vector<Phase> phases_;
  std::size_t next_ = 0;
  bool posted_ = false;
  std::vector<std::byte> memory_;
  std::vector<MessagePtr> messages_;  ///< declared last: destroyed before the memory it refers to
};

}  // namespace sluice
