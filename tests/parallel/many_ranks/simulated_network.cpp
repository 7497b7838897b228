#include "tests/parallel/many_ranks/simulated_network.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cuda/simt/fiber.h"
#include "parallel/comm/transport/message_queues.h"
#include "tests/parallel/ranks.h"

namespace sluice::test {
namespace {

struct Posted {
  std::span<const std::byte> bytes;
  double arrival = 0;
  bool withdrawn = false, received = false;
};

/// A rank's clock and link, in simulated seconds.
struct Place {
  Traffic traffic;
  double link_free = 0;
};

struct Simulation {
  Network network;
  std::vector<Place> places;
  MessageQueues<Posted> queues{};
  std::uint64_t events = 0;  ///< messages posted and taken
  std::optional<std::string> broken{};
};

/// Lets the other ranks go on. Exceptions that are being handled belong to the stack, but the
/// compiler's runtime counts them by thread.
void leave_to_others(const Simulation& simulation) {
  if (simulation.broken) fail(*simulation.broken);
  struct Handled {
    void* caught;
    unsigned uncaught;
  };
  auto* const of_thread = reinterpret_cast<Handled*>(abi::__cxa_get_globals());
  const Handled mine = std::exchange(*of_thread, Handled{});
  simt::Fiber::leave();
  *of_thread = mine;
}

class Sent final : public Message {
 public:
  Sent(Simulation& simulation, std::shared_ptr<Posted> posted)
      : simulation_(simulation), posted_(std::move(posted)) {}
  ~Sent() override { posted_->withdrawn = true; }
  bool done() override {
    if (!posted_->received) leave_to_others(simulation_);
    return posted_->received;
  }

 private:
  Simulation& simulation_;
  std::shared_ptr<Posted> posted_;
};

class Received final : public Message {
 public:
  Received(Simulation& simulation, Place& place, const MessageKey& key, std::span<std::byte> bytes)
      : simulation_(simulation),
        place_(place),
        key_(key),
        number_(simulation.queues.ask(key)),
        bytes_(bytes) {}
  bool done() override {
    if (done_) return true;
    auto message = simulation_.queues.take(key_, number_);
    if (!message) {
      leave_to_others(simulation_);
      message = simulation_.queues.take(key_, number_);
    }
    if (!message || message->withdrawn) return false;
    check(message->bytes.size() == bytes_.size(), "a message of another size came");
    std::ranges::copy(message->bytes, bytes_.begin());
    Traffic& mine = place_.traffic;
    mine.seconds = std::max(mine.seconds, message->arrival) + simulation_.network.gap;
    message->received = true;
    ++simulation_.events;
    done_ = true;
    return true;
  }

 private:
  Simulation& simulation_;
  Place& place_;
  MessageKey key_;
  std::uint64_t number_;
  std::span<std::byte> bytes_;
  bool done_ = false;
};

class SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(Simulation& simulation, Place& place, std::uint64_t group, int rank, int size)
      : simulation_(simulation), place_(place), group_(group), rank_(rank), size_(size) {}

  std::string_view name() const override { return "simulated"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MessagePtr send(int to, int tag, std::span<const std::byte> bytes) override {
    const Network& network = simulation_.network;
    Traffic& mine = place_.traffic;
    ++mine.messages;
    mine.bytes += static_cast<std::int64_t>(bytes.size());
    mine.seconds += network.gap;
    place_.link_free = std::max(place_.link_free, mine.seconds) +
                       static_cast<double>(bytes.size()) / network.bytes_per_second;
    const std::uint64_t random = mixed(mixed(network.seed + simulation_.events) + group_);
    const double late = network.jitter * static_cast<double>(random >> 11) * 0x1p-53;
    auto posted = std::make_shared<Posted>();
    posted->bytes = bytes;
    posted->arrival = place_.link_free + network.latency * (1 + late);
    simulation_.queues.post({group_, rank_, to, tag}, posted);
    ++simulation_.events;
    return std::make_unique<Sent>(simulation_, std::move(posted));
  }
  MessagePtr receive(int from, int tag, std::span<std::byte> bytes) override {
    return std::make_unique<Received>(simulation_, place_, MessageKey{group_, from, rank_, tag},
                                      bytes);
  }
  std::unique_ptr<Transport> subgroup(std::span<const int> members, std::uint64_t id) override {
    return std::make_unique<SimulatedTransport>(
        simulation_, place_, number_of_subgroup(group_, id, members), rank_in(members, rank_),
        static_cast<int>(members.size()));
  }

 private:
  Simulation& simulation_;
  Place& place_;
  std::uint64_t group_;
  int rank_, size_;
};

class Rank final : public SimulatedRank {
 public:
  Rank(Simulation& simulation, int rank, const std::function<void(SimulatedRank&)>& body)
      : simulation_(simulation), rank_(rank), body_(body), fiber_(run) {}

  std::unique_ptr<Transport> world() override {
    return std::make_unique<SimulatedTransport>(simulation_, place(), 0, rank_,
                                                static_cast<int>(simulation_.places.size()));
  }
  Traffic traffic() const override { return place().traffic; }

  bool over() const { return over_; }
  const std::exception_ptr& error() const { return error_; }
  /// Runs the rank until it waits or is over.
  void go_on() {
    current = this;
    fiber_.enter();
  }

 private:
  static void run() {
    Rank* const self = current;
    try {
      self->body_(*self);
    } catch (const std::exception& error) {
      self->error_ = std::current_exception();
      if (!self->simulation_.broken)
        self->simulation_.broken = fmt::format("rank {} has failed: {}", self->rank_, error.what());
    }
    self->over_ = true;
    simt::Fiber::leave();
  }
  Place& place() const { return simulation_.places[static_cast<std::size_t>(rank_)]; }

  static inline thread_local Rank* current = nullptr;
  Simulation& simulation_;
  int rank_;
  const std::function<void(SimulatedRank&)>& body_;
  bool over_ = false;
  std::exception_ptr error_;
  simt::Fiber fiber_;
};

}  // namespace

void run_simulated(int ranks, const Network& network,
                   const std::function<void(SimulatedRank&)>& body) {
  Simulation simulation{.network = network,
                        .places = std::vector<Place>(static_cast<std::size_t>(ranks))};
  std::vector<std::unique_ptr<Rank>> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.push_back(std::make_unique<Rank>(simulation, rank, body));
  std::vector<Rank*> going;
  for (const auto& rank : all)
    going.push_back(rank.get());
  std::exception_ptr first;
  // A rank looks at one of its messages whenever it goes on, so that several turns without an event
  // prove nothing yet.
  constexpr int patience = 200;
  for (int idle = 0; !going.empty(); ++idle) {
    const std::uint64_t before = simulation.events;
    for (Rank* const rank : going) {
      rank->go_on();
      if (!first && rank->error()) first = rank->error();
    }
    const bool ended = std::erase_if(going, [](const Rank* rank) { return rank->over(); }) > 0;
    if (ended || simulation.events != before) idle = 0;
    if (idle == patience && !simulation.broken)
      simulation.broken = fmt::format("none of {} ranks can go on", going.size());
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace sluice::test
