#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "parallel/comm/transport/transport.h"

namespace sluice::test {

/// Passes everything on to another transport, for tests that look at the messages.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> by) : by_(std::move(by)) {}
  std::string_view name() const override { return by_->name(); }
  int rank() const override { return by_->rank(); }
  int size() const override { return by_->size(); }
  MessagePtr send(int to, int tag, std::span<const std::byte> bytes) override {
    return by_->send(to, tag, bytes);
  }
  MessagePtr receive(int from, int tag, std::span<std::byte> bytes) override {
    return by_->receive(from, tag, bytes);
  }
  std::unique_ptr<Transport> subgroup(std::span<const int> members, std::uint64_t id) override {
    return by_->subgroup(members, id);
  }

 private:
  std::unique_ptr<Transport> by_;
};

}  // namespace sluice::test
