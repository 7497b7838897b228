#pragma once

#include "kernels/base/device.h"
#include "kernels/base/view.h"

namespace sluice {

/// Copies `columns` columns of each row: those of `in` from `in_first` on to those of `out` from
/// `out_first` on. The other columns of `out` stay.
/// in: [rows, columns of in]; out: [rows, columns of out]; not the same memory.
struct CopyColumns {
  View out;
  View in;
  std::int64_t out_first = 0;
  std::int64_t in_first = 0;
  std::int64_t columns = 0;
};
void launch_cpu(const CopyColumns& op);
void launch_cuda(const CopyColumns& op, Stream stream);

}  // namespace sluice
