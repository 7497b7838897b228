#include "apps/train_gpt2/stop_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/progress.h"

namespace sluice {

StopRequest::StopRequest(bool saves)
    : saves_(saves),
      signal_([this](const char* signal, bool again,
                     const std::string& doing) { return answer(signal, again, doing); },
              [](const std::string& answer) { say_always(answer); }) {}

StopRequest::Decision StopRequest::agree(Communicator& ranks, bool time_to_save) const {
  struct Wish {
    bool stop, save;
  };
  const char* const here = signal_.received();
  const auto all = ranks.gather_values(Wish{here != nullptr, time_to_save}, "stop");
  Decision decision{.save = all.front().save};
  if (std::ranges::any_of(all, &Wish::stop))
    decision.stop = here != nullptr ? here : "a signal to another rank";
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
