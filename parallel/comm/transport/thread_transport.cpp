#include "parallel/comm/transport/thread_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "parallel/comm/transport/message_queues.h"

namespace sluice {
namespace {

/// Messages up to this size are copied when they are sent, as MPI does: they arrive although their
/// sender has dropped them. A rank that is done with an operation may leave before the others have
/// read its signature.
constexpr std::size_t short_bytes = 1024;

/// A message that was sent and that no rank has received yet.
struct Posted {
  std::vector<std::byte> copy{};     ///< of a short message
  std::span<const std::byte> bytes;  ///< of the sender, or the copy
  std::mutex mutex{};                ///< held while the bytes are copied or the sender withdraws
  bool withdrawn = false;            ///< the sender has failed, and its bytes may be gone
  std::atomic<bool> received = false;
};

/// The messages under way, shared by the threads.
class Hub {
 public:
  void post(const MessageKey& key, std::shared_ptr<Posted> message) {
    const std::lock_guard lock(mutex_);
    queues_.post(key, std::move(message));
  }
  std::uint64_t ask(const MessageKey& key) {
    const std::lock_guard lock(mutex_);
    return queues_.ask(key);
  }
  std::shared_ptr<Posted> take(const MessageKey& key, std::uint64_t place) {
    const std::lock_guard lock(mutex_);
    return queues_.take(key, place);
  }
  void break_with(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (!broken_) broken_ = why;
  }
  void require_whole() {
    const std::lock_guard lock(mutex_);
    if (broken_) fail(*broken_);
  }

 private:
  std::mutex mutex_;
  MessageQueues<Posted> queues_;
  std::optional<std::string> broken_;
};

class Sent final : public Message {
 public:
  Sent(Hub& hub, std::shared_ptr<Posted> posted) : hub_(hub), posted_(std::move(posted)) {}
  ~Sent() override {
    const std::lock_guard lock(posted_->mutex);
    posted_->withdrawn = posted_->bytes.size() > short_bytes;
  }
  bool done() override {
    if (posted_->received) return true;
    hub_.require_whole();
    return false;
  }

 private:
  Hub& hub_;
  std::shared_ptr<Posted> posted_;
};

class Received final : public Message {
 public:
  Received(Hub& hub, const MessageKey& key, std::span<std::byte> bytes)
      : hub_(hub), key_(key), place_(hub.ask(key)), bytes_(bytes) {}
  bool done() override {
    if (done_) return true;
    const auto message = hub_.take(key_, place_);
    if (!message) {
      hub_.require_whole();
      return false;
    }
    const std::lock_guard lock(message->mutex);
    if (message->withdrawn) return false;  // its sender is about to report the failure
    if (message->bytes.size() != bytes_.size())
      fail(fmt::format("a message of {} bytes came where {} were expected", message->bytes.size(),
                       bytes_.size()));
    std::ranges::copy(message->bytes, bytes_.begin());
    message->received = true;
    done_ = true;
    return true;
  }

 private:
  Hub& hub_;
  MessageKey key_;
  std::uint64_t place_;
  std::span<std::byte> bytes_;
  bool done_ = false;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, std::uint64_t group, int rank, int size)
      : hub_(std::move(hub)), group_(group), rank_(rank), size_(size) {}

  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MessagePtr send(int to, int tag, std::span<const std::byte> bytes) override {
    check(tag >= 0 && tag < tags, "a message's tag is below Transport::tags");
    auto posted = std::make_shared<Posted>();
    if (bytes.size() <= short_bytes) posted->copy.assign(bytes.begin(), bytes.end());
    posted->bytes = posted->copy.empty() ? bytes : posted->copy;
    hub_->post({group_, rank_, to, tag}, posted);
    return std::make_unique<Sent>(*hub_, std::move(posted));
  }
  MessagePtr receive(int from, int tag, std::span<std::byte> bytes) override {
    return std::make_unique<Received>(*hub_, MessageKey{group_, from, rank_, tag}, bytes);
  }
  std::unique_ptr<Transport> subgroup(std::span<const int> members, std::uint64_t id) override {
    return std::make_unique<ThreadTransport>(hub_, number_of_subgroup(group_, id, members),
                                             rank_in(members, rank_),
                                             static_cast<int>(members.size()));
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::uint64_t group_;
  int rank_;
  int size_;
};

}  // namespace

void run_on_threads(int ranks, const std::function<void(std::unique_ptr<Transport>)>& body) {
  const auto hub = std::make_shared<Hub>();
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank) {
    try {
      body(std::make_unique<ThreadTransport>(hub, 0, rank, ranks));
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      hub->break_with(fmt::format("rank {} has failed: {}", rank, error.what()));
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back(run, rank);
  for (auto& thread : threads)
    thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace sluice
