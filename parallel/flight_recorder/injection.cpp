#include "parallel/flight_recorder/injection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <new>
#include <set>
#include <thread>

#include "engine/io/json_document.h"
#include "kernels/base/error.h"

namespace sluice {
namespace {

constexpr std::array<std::string_view, 12> kinds{"stop",     "exit",  "kill",   "abort",
                                                 "segfault", "throw", "memory", "skip",
                                                 "mismatch", "count", "type",   "slow"};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  fail(fmt::format("--inject {}: {}; give rank=R,op=N,kind=K with K one of {}", excerpt(text), why,
                   fmt::join(kinds, ", ")),
       ErrorKind::usage);
}

std::uint64_t number_in(const std::string& text, std::string_view value) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  constexpr std::uint64_t most = 1u << 30;
  if (error != std::errc() || end != value.data() + value.size() || number > most)
    refuse(text, fmt::format("'{}' is not a number from 0 to {}", excerpt(value), most));
  return number;
}

}  // namespace

Injection parse_injection(const std::string& text) {
  Injection injection;
  if (text.empty()) return injection;
  std::set<std::string_view> missing{"rank", "op", "kind"};
  std::string_view rest = text;
  for (bool last = false; !last;) {
    const std::string_view item = rest.substr(0, rest.find(','));
    last = item.size() == rest.size();
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const auto equals = std::min(item.find('='), item.size());
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(std::min(item.size(), equals + 1));
    if (missing.erase(key) == 0)
      refuse(text, fmt::format("'{}' is unknown or given twice", excerpt(key)));
    if (key == "rank") injection.rank = static_cast<int>(number_in(text, value));
    if (key == "op") injection.operation = number_in(text, value);
    if (key != "kind") continue;
    const auto found = std::ranges::find(kinds, value);
    if (found == kinds.end()) refuse(text, fmt::format("there is no kind '{}'", excerpt(value)));
    injection.kind = static_cast<Injection::Kind>(found - kinds.begin() + 1);
  }
  if (!missing.empty()) refuse(text, fmt::format("{} is missing", fmt::join(missing, ", ")));
  return injection;
}

Monitor::Fault Injection::apply(int rank_here, std::uint64_t number) const {
  if (kind == Kind::none || rank != rank_here || operation != number) return Monitor::Fault::none;
  switch (kind) {
    case Kind::stop:
      std::raise(SIGSTOP);
      break;
    case Kind::exit:
      std::_Exit(3);
    case Kind::kill:
      std::raise(SIGKILL);
      break;
    case Kind::abort:
      std::abort();
    case Kind::segfault:
      std::raise(SIGSEGV);
      break;
    case Kind::error:
      fail(
          fmt::format("rank {} was made to fail before its operation {} (--inject)", rank, number));
    case Kind::memory:
      throw std::bad_alloc();
    case Kind::skip:
      return Monitor::Fault::skip;
    case Kind::mismatch:
      return Monitor::Fault::mismatch;
    case Kind::count:
      return Monitor::Fault::count;
    case Kind::type:
      return Monitor::Fault::type;
    case Kind::slow:
      std::this_thread::sleep_for(std::chrono::minutes(10));
      break;
    case Kind::none:
      break;
  }
  return Monitor::Fault::none;
}

}  // namespace sluice
