#pragma once

#include <string>

namespace sluice {

// Capabilities of the terminal behind a file descriptor, if there is one. NO_COLOR and TERM are the
// only environment variables that the programs read, since they describe the terminal.

bool is_terminal(int descriptor);

/// Returns true if lines can be redrawn: it is a terminal, and TERM is set and not `dumb`.
bool can_redraw(int descriptor);

/// Returns true if can_redraw() and NO_COLOR is unset or empty (https://no-color.org).
bool has_colours(int descriptor);

/// Returns the current width of the terminal; 80 if it is unknown.
int columns_of(int descriptor);

enum class Colour { red = 31, green = 32, yellow = 33 };
std::string in_colour(Colour colour, const std::string& text);

/// Opens /dev/null in place of stdin, stdout and stderr if the parent process has closed them.
/// Otherwise the next file opened would become stdout and receive what the program prints.
void open_standard_streams();

}  // namespace sluice
