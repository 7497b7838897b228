#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "parallel/comm/transport/transport.h"

namespace sluice::test {

/// A network in which each rank has one link. A message takes `gap` of its sender, then its bytes
/// take the sender's link, then it travels for the latency and takes `gap` of its receiver.
struct Network {
  double latency = 5e-6;  ///< seconds
  double bytes_per_second = 10e9;
  double gap = 0.5e-6;  ///< seconds
  double jitter = 0;    ///< a latency is longer by up to this share, by `seed`
  std::uint64_t seed = 0;
};

/// A rank has sent so much so far, and its clock shows this simulated time.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// A rank of a simulated job. Its transport names its kind "simulated".
class SimulatedRank {
 public:
  virtual ~SimulatedRank() = default;
  virtual std::unique_ptr<Transport> world() = 0;
  virtual Traffic traffic() const = 0;
};

/// Runs `body` for each of `ranks` ranks, on one thread: a rank that waits for a message leaves its
/// stack to the next rank. Computing takes no simulated time. If a rank throws, the others' waits
/// throw too, and then this function throws the first exception. If no rank can go on, all waits
/// throw an error that says so.
void run_simulated(int ranks, const Network& network,
                   const std::function<void(SimulatedRank&)>& body);

}  // namespace sluice::test
