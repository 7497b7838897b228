#pragma once

namespace sluice {

/// While it lives, the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 only asks the training to stop
/// after its step; a second one ends the process at once, as without it. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The signal's name once one has come, else null.
  const char* received() const;
};

}  // namespace sluice
