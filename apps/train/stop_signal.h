#pragma once

#include <functional>
#include <string>
#include <thread>

namespace sluice {

/// Blocks every signal that somebody may send in the calling thread, and so in all threads that it
/// starts; one new thread receives them. Call it before any other thread is started. A signal
/// handler must never run on a thread that computes: libraries such as oneDNN 2.6 keep data below
/// the stack pointer, where the system puts the handler's frame. Handlers of others, a profiler's
/// for SIGPROF say, run on the receiving thread. Not blocked are signals that a thread causes
/// itself (SIGSEGV, SIGABRT, SIGPIPE ...) and those of job control (SIGTSTP ...).
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU and SIGPWR end the process as usual, unless a
/// StopSignal takes them. Which of them was ignored when the program started stays so (nohup).
/// SIGPROF, SIGALRM, SIGVTALRM and SIGIO do nothing while nobody has a handler for them.
void receive_signals_on_one_thread();

/// While it lives, the first of the signals that end the process only asks the training to stop;
/// the same one again, half a second later or more, ends it at once. One at a time.
class StopSignal {
 public:
  /// What to say when a signal comes, on a thread of its own and at once: its name, whether it is
  /// the second, after which the process ends, and what was noted last.
  using Tell = std::function<void(const char* signal, bool again, const std::string& doing)>;

  explicit StopSignal(Tell tell);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// What the training does now, such as "finishing step 12".
  void note(std::string doing);
  /// The name of the first signal that has come, else null.
  const char* received() const;

 private:
  std::thread teller_;
};

}  // namespace sluice
