#include "apps/cli/run_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <system_error>

#include "apps/cli/processor.h"
#include "apps/cli/progress.h"
#include "apps/cli/same_program.h"
#include "apps/cli/stop_signal.h"
#include "apps/cli/terminal.h"
#include "engine/io/utf8.h"
#include "kernels/base/error.h"
#include "parallel/comm/world.h"

namespace sluice {

void print_error(const std::string& name, const std::string& message) {
  end_live_line();
  const std::string word = "error:";
  fmt::print(stderr, "{}: {} {}\n", name,
             has_colours(STDERR_FILENO) ? in_colour(Colour::red, word) : word,
             printable_line(message));
}

namespace {

int exit_code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return 2;
    case ErrorKind::numerical:
      return 3;
    case ErrorKind::runtime:
      break;
  }
  return 1;
}

}  // namespace

int run_program(const std::string& name, const std::function<int()>& body,
                const MayReport& may_report) {
  const auto report = [&](std::string message, int exit_code = 1) {
    if (!may_report || may_report(message, exit_code)) print_error(name, message);
    return exit_code;
  };
  // Called where nothing else has failed; ranks that go on are left alone.
  const auto end = [&](int first = 0) {
    const int later = finish_stdout(), error = first != 0 ? first : later;
    // A reader that has gone away, such as head, has all that it wants.
    if (error == 0 || error == EPIPE) return 0;
    print_error(name,
                fmt::format("the standard output could not be written: {}", std::strerror(error)));
    return 1;
  };
  require_processor();
  open_standard_streams();
  receive_signals_on_one_thread();
  try {
    const int code = body();
    return code == 0 ? end() : code;
  } catch (const Error& error) {
    return report(error.what(), exit_code_of(error.kind()));
  } catch (const std::bad_alloc&) {
    return report("the system has no memory left; use a smaller model or batch");
  } catch (const std::system_error& error) {
    // Thrown by fmt::print().
    if (std::ferror(stdout) != 0) return end(error.code().value());
    return report(error.what());
  } catch (const std::exception& error) {
    return report(error.what());
  }
}

int run_ranks(const std::string& name, const std::function<void(const World&)>& body) {
  std::optional<World> world;
  const auto run = [&] {
    world.emplace(World::StartLimit{
        .on_late = [&](const std::string& sentence) { print_error(name, sentence); }});
    set_speaking(world->rank() == 0);
    if (world->size() > 1) {
      forget_terminal();
      require_same_program(*world->communicator(nullptr, {}));
    }
    if (!world->note().empty()) say_note(world->note());
    body(*world);
    return 0;
  };
  return run_program(name, run, [&](std::string&, int exit_code) {
    if (world) world->leave_after_the_first(exit_code);
    return true;
  });
}

}  // namespace sluice
