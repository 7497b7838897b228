#include "apps/train/stop_signal.h"

#include <csignal>

namespace sluice {
namespace {

// A handler can reach nothing but a global.
volatile std::sig_atomic_t received_signal = 0;

constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

void on_signal(int signal) {
  received_signal = signal;
}

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  // Back to the default after the first: whoever asks twice does not want to wait.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : signals)
    sigaction(signal, &action, nullptr);
}

StopSignal::~StopSignal() {
  for (const int signal : signals)
    std::signal(signal, SIG_DFL);
}

const char* StopSignal::received() const {
  switch (received_signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return nullptr;
  }
}

}  // namespace sluice
