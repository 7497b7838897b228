// Message tags have 15 bits, so that operations share them; never two that are under way.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tests/parallel/checked_ranks.h"
#include "tests/parallel/forwarding_transport.h"
#include "tests/support/catch.h"

namespace sluice::test::tags_test {
namespace {

constexpr int tags_of_mpi = 32768;  // MPI 4.0, 9.1.2: MPI_TAG_UB is at least 32767

/// Counts the receives of each tag that are not done.
class Counted final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  MessagePtr send(int to, int tag, std::span<const std::byte> bytes) override {
    expect(tag >= 0 && tag < tags_of_mpi, "a tag that MPI may not have");
    return ForwardingTransport::send(to, tag, bytes);
  }
  MessagePtr receive(int from, int tag, std::span<std::byte> bytes) override {
    expect(++open_[tag] == 1, "two operations under way receive with one tag");
    most_open = std::max(most_open, ++all_open_);
    return std::make_unique<Received>(*this, tag, ForwardingTransport::receive(from, tag, bytes));
  }

  int most_open = 0;

 private:
  class Received final : public Message {
   public:
    Received(Counted& of, int tag, MessagePtr message)
        : of_(of), tag_(tag), message_(std::move(message)) {}
    ~Received() override {
      --of_.open_[tag_];
      --of_.all_open_;
    }
    bool done() override { return message_->done(); }

   private:
    Counted& of_;
    int tag_;
    MessagePtr message_;
  };

  std::map<int, int> open_;
  int all_open_ = 0;
};

}  // namespace

TEST_CASE("operations under way share no tag, however many a rank starts", "[threads]") {
  constexpr std::size_t count = 1500, at_once = 512;
  std::atomic<bool> ahead = false;
  int most_open = 0;
  check_threads(2, [&](std::unique_ptr<Transport> by) {
    const auto counted = std::make_shared<Counted>(std::move(by));
    Communicator c(counted, nullptr, patient());
    const int rank = c.rank();
    std::vector<std::vector<float>> values;
    std::vector<Handle> operations;
    // Of about 16 KiB some are exchanged whole, others in two phases.
    const auto size_of = [](std::size_t i) { return i % 100 == 0 ? 4096 + i : 1 + i % 2; };
    for (std::size_t i = 0; i < count; ++i) {
      if (i == at_once && rank == 0) ahead = true;
      while (rank == 1 && !ahead)
        std::this_thread::yield();
      if (i == 0 && rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      values.push_back(numbers<float>(rank, size_of(i), i));
      operations.push_back(c.all_reduce(view_of(values.back()), {}));
    }
    for (std::size_t i = count; i-- > 0;) {
      operations[i]->wait();
      expect(same_bits(values[i], reduced<float>(2, size_of(i), i)), "a wrong sum");
    }
    if (rank == 0) most_open = counted->most_open;
  });
  CHECK(most_open >= static_cast<int>(at_once));
}

}  // namespace sluice::test::tags_test
