#include "apps/cli/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace sluice {
namespace {

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

bool is_terminal(int descriptor) {
  return isatty(descriptor) == 1;
}

bool can_redraw(int descriptor) {
  const std::string_view term = variable("TERM");
  return is_terminal(descriptor) && !term.empty() && term != "dumb";
}

bool has_colours(int descriptor) {
  return can_redraw(descriptor) && variable("NO_COLOR").empty();
}

int columns_of(int descriptor) {
  winsize size{};
  const bool known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string in_colour(Colour colour, const std::string& text) {
  return fmt::format("\x1b[{}m{}\x1b[0m", static_cast<int>(colour), text);
}

void open_standard_streams() {
  // Ascending order, since open() takes the lowest free number.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      const int opened = open("/dev/null", O_RDWR);
      static_cast<void>(opened);  // without /dev/null nothing can be done here
    }
}

}  // namespace sluice
