#pragma once

#include <string>
#include <string_view>

#include "parallel/pipeline/schedule.h"

namespace sluice {

/// As PyTorch writes them: stage, action, micro-batch. 0F3 and 0B3 compute; 0SEND_F3 sends the
/// output of stage 0, 1RECV_F3 receives the input of stage 1, 1SEND_B3 sends the gradient of its
/// input and 0RECV_B3 receives that of stage 0's output.
std::string to_text(const Action& action);

/// A row a rank, an action a cell. A rank without actions is a row of two empty cells.
std::string to_csv(const Schedule& schedule);

/// Reads what to_csv writes, by hand or by a program: spaces around cells, empty cells, lines that
/// begin with #, blank lines at the end and CRLF are allowed. Computing alone or lowered; the
/// number of stages and of micro-batches is one more than the highest in it. Whether the schedule
/// makes sense is for validate(). An Error names the line, the column and the cell.
Schedule schedule_from_csv(std::string_view text);

struct GridOptions {
  int width = 120;  ///< characters of a line; what is cut off is shown by "..."
  /// Time slots of an action: waiting is visible as blanks.
  int forward = 1, backward = 2;
};

/// A line a rank, a column a time slot, if messages took no time. "F3", or "2F3" where a rank has
/// several stages.
std::string to_grid(const Schedule& schedule, const GridOptions& options = {});

}  // namespace sluice
