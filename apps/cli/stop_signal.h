#pragma once

#include <functional>
#include <string>
#include <thread>

namespace sluice {

/// Blocks every signal that can be sent from outside, in the calling thread and so in all threads
/// that it starts; one new thread receives them. Call it before any other thread is started. A
/// signal handler must never run on a thread that computes: libraries such as oneDNN 2.6 keep data
/// below the stack pointer, where the system puts the handler's frame. Foreign handlers, for
/// example a profiler's for SIGPROF, run on the receiving thread. Signals that a thread causes
/// itself (SIGSEGV, SIGABRT, SIGPIPE ...) and those of job control (SIGTSTP ...) are not blocked.
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU and SIGPWR end the process as usual, unless a
/// StopSignal takes them. Those that were ignored when the program started stay ignored (nohup).
/// SIGPROF, SIGALRM, SIGVTALRM and SIGIO are ignored unless they have a handler.
void receive_signals_on_one_thread();

/// While one exists, the first of the signals that end the process only asks the training to stop.
/// The same signal again, more than half a second later, ends it. In the first five seconds after
/// its end these signals change nothing, so that a training that has ended keeps its exit code.
/// Only one may exist at a time.
class StopSignal {
 public:
  /// Returns the text that answers a signal: its name, whether it is the second one, after which
  /// the process ends, and the text noted last. Called before received() reports the signal, so
  /// that the answer describes the training as the signal found it. It must not wait for anything.
  using Answer =
      std::function<std::string(const char* signal, bool again, const std::string& doing)>;
  /// Prints an answer, on a thread of its own: the terminal may block.
  using Print = std::function<void(const std::string& answer)>;

  StopSignal(Answer answer, Print print);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Sets what the training is doing, such as "finishing step 12".
  void note(std::string doing);
  /// Returns the name of the first signal that the last StopSignal received, or null.
  static const char* received();

 private:
  std::thread printer_;
};

}  // namespace sluice
