#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "apps/train/stop_signal.h"
#include "parallel/communicator.h"

namespace sluice {

/// A user's request to end a training early, and the answer to it on the terminal, which comes at
/// once: what is finished first, and what is lost if the request is repeated.
class StopRequest {
 public:
  /// `saves`: whether a run that stops is saved.
  explicit StopRequest(bool saves);

  /// What the training does now: "step 12", "the validation of step 10".
  void note(std::string doing) { signal_.note(std::move(doing)); }
  /// The newest step that is saved.
  void saved(std::int64_t step) { saved_ = step; }

  /// What the ranks do before the next step.
  struct Decision {
    const char* stop = nullptr;  ///< the signal that this rank or another has received
    bool save = false;
  };
  /// All ranks call it. They save where the first one finds that it is time to.
  Decision agree(Communicator& ranks, bool time_to_save) const;

 private:
  void answer(const char* signal, bool again, const std::string& doing);

  bool saves_;
  std::atomic<std::int64_t> saved_ = -1;  ///< written by the training, read as a signal comes
  StopSignal signal_;
};

}  // namespace sluice
