#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "apps/cli/stop_signal.h"
#include "parallel/comm/communicator.h"

namespace sluice {

/// Handles a signal (Ctrl-C) that asks a training to end early. Answers on the terminal at once:
/// what the training finishes first, and what is lost if the signal is repeated.
class StopRequest {
 public:
  /// `saves`: a run that stops is saved first.
  explicit StopRequest(bool saves);

  /// Sets what the training is doing: "step 12", "the validation of step 10".
  void note(std::string doing) { signal_.note(std::move(doing)); }
  /// Sets the newest step that is saved.
  void saved(std::int64_t step) { saved_ = step; }

  /// The decision of all ranks, made together before the next step.
  struct Decision {
    const char* stop = nullptr;  ///< the signal received by this rank or another; null: none
    bool save = false;
  };
  /// All ranks call it. They save if rank 0 passes `time_to_save`, unless nothing is saved.
  Decision agree(Communicator& ranks, bool time_to_save) const;

 private:
  std::string answer(const char* signal, bool again, const std::string& doing) const;

  bool saves_;
  std::atomic<std::int64_t> saved_ = -1;  ///< written by the training, read on a signal
  StopSignal signal_;
};

}  // namespace sluice
