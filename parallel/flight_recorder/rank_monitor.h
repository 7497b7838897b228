#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/monitor.h"
#include "parallel/flight_recorder/flight_recorder.h"
#include "parallel/flight_recorder/injection.h"
#include "parallel/flight_recorder/record_exchange.h"
#include "parallel/flight_recorder/watchdog.h"

namespace sluice {

/// The Monitor of a rank in a job of several: writes its ring file, runs the watchdog over its
/// waits, and injects the fault asked for.
class RankMonitor final : public Monitor {
 public:
  /// A function that takes a sentence for the user.
  using Tell = std::function<void(const std::string& sentence)>;
  struct Reactions {
    Watchdog::OnFailure on_failure;  ///< on the watchdog's thread: ends the job
    Tell on_stuck{};                 ///< see Monitor::gpu_is_stuck
    Tell on_delay{};                 ///< on any thread: about a rank that others wait for
    std::function<bool()> ending{};  ///< see Watchdog::Options
    Tell on_lost_elsewhere{};        ///< the same
  };

  /// Keeps the rank's record in the folder of `exchange`, which is new.
  RankMonitor(std::shared_ptr<RecordExchange> exchange, const Injection& injection,
              const Reactions& reactions);

  Fault before() override { return injection_.apply(exchange_->rank(), operations_++); }
  std::uint64_t begin(std::string_view communicator, const Signature& signature) override;
  void wait(std::uint64_t number, double timeout) override;
  void end(std::uint64_t number) override;
  void slow(std::string_view sentence) override;
  void gpu_is_stuck(std::string_view sentence) override;
  std::string post_mortem() override;
  /// The operation or the note at which this rank is, for use in a sentence.
  std::string whereabouts() const;

  /// Records what the rank does between operations.
  void note(std::string_view text) { ring_.note(text); }
  void set_gpu(std::string_view uuid) { ring_.set_gpu(uuid); }
  void finish() { ring_.finish(); }
  void fail(std::string_view message) { ring_.fail(message); }

 private:
  std::shared_ptr<RecordExchange> exchange_;
  Injection injection_;
  Tell on_stuck_, on_delay_;
  std::uint64_t operations_ = 0;  ///< asked for so far, including a skipped one
  FlightRecorder ring_;
  Watchdog watchdog_;
};

}  // namespace sluice
