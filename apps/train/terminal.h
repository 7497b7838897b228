#pragma once

#include <string>

namespace sluice {

// What the terminal behind a file descriptor can do, if there is one. NO_COLOR and TERM are the
// only variables of the environment that anything looks at: they describe the terminal.

bool is_terminal(int descriptor);

/// Whether lines can be drawn over: a terminal, and TERM names one that is not `dumb`.
bool can_redraw(int descriptor);

/// can_redraw, and NO_COLOR is unset or empty (https://no-color.org).
bool has_colours(int descriptor);

/// The width of a terminal at this moment; 80 where it cannot be told.
int columns_of(int descriptor);

enum class Colour { red = 31, green = 32, yellow = 33 };
std::string in_colour(Colour colour, const std::string& text);

/// Opens /dev/null as those of stdin, stdout and stderr that the parent process has closed. Without
/// this the next file to be opened would become stdout and receive what the program prints.
void open_standard_streams();

}  // namespace sluice
