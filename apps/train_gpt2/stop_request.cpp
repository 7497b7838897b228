#include "apps/train_gpt2/stop_request.h"

#include <fmt/format.h>

#include "apps/cli/progress.h"
#include "parallel/comm/agreement.h"

namespace sluice {

StopRequest::StopRequest(bool saves)
    : saves_(saves),
      signal_([this](const char* signal, bool again,
                     const std::string& doing) { return answer(signal, again, doing); },
              [](const std::string& answer) { say_always(answer); }) {}

StopRequest::Decision StopRequest::agree(Communicator& ranks, bool time_to_save) const {
  const char* const here = signal_.received();
  // Rank 0 alone decides whether it is time to save.
  const bool save = saves_ && time_to_save && ranks.rank() == 0;
  const auto all = largest_of_each(ranks, {here != nullptr ? 1 : 0, save ? 1 : 0}, "stop");
  Decision decision{.save = all[1] == 1};
  if (all[0] == 1) decision.stop = here != nullptr ? here : "a signal to another rank";
  return decision;
}

std::string StopRequest::answer(const char* signal, bool again, const std::string& doing) const {
  const std::int64_t step = saved_;
  const std::string kept =
      step < 0 ? std::string("no step is saved") : fmt::format("the newest saved step is {}", step);
  if (again)
    return fmt::format("stopping     {} again: ends now, during {}; {}\n", signal, doing, kept);
  return fmt::format("stopping     {}: finishing {}{}; a second {} ends at once ({})\n", signal,
                     doing, saves_ ? ", then saving" : "", signal, kept);
}

}  // namespace sluice
