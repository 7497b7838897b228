#pragma once

#include <string>
#include <string_view>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulator.h"

namespace sluice {

/// Writes an action in PyTorch's notation: stage, action, micro-batch. 0F3, 0B3 and 0W3 compute.
/// 0SEND_F3 sends stage 0's output; 1RECV_F3 receives stage 1's input. 1SEND_B3 sends the gradient
/// of stage 1's input; 0RECV_B3 receives the gradient of stage 0's output.
std::string to_text(const Action& action);

/// Writes a row per rank with a cell per action. A rank without actions is a row of two empty
/// cells.
std::string to_csv(const Schedule& schedule);

/// Reads the format of to_csv(). Accepts spaces around cells, empty cells, lines that begin with #,
/// blank lines at the end, and CRLF. The schedule may be lowered or not. The highest stage and
/// micro-batch that occur give its size. It is not validated here; see validate(). Throws Error
/// naming the line, the column and the cell.
Schedule schedule_from_csv(std::string_view text);

struct GridOptions {
  int width = 120;  ///< characters in a line; longer lines are cut and end in "..."
  /// Time slots per action, so that waiting is visible as blanks.
  int forward = 1, backward = 2;
};

/// Draws a line per rank and a column per time slot, as if messages took no time. An action is
/// "F3", or "2F3" if a rank has several stages.
std::string to_grid(const Schedule& schedule, const GridOptions& options = {});

/// Draws a picture (SVG) of a schedule over time: a row per rank, with forwards, backwards and
/// weight gradients in three hues, darker for later stages of the same rank, labelled by
/// micro-batch. The heading gives the fraction that is bubble.
std::string to_svg(const Schedule& schedule, const Simulation& simulation, std::string_view title);

}  // namespace sluice
