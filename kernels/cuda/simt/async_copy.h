#pragma once

namespace sluice::simt {

// cp.async as the hardware may do it at the latest: a copy lands when its group is waited for. A
// wait that was left out reads what shared memory held before.

void cp_async_16(void* to, const void* from, bool valid);
void cp_async_commit();
void cp_async_wait(unsigned pending);

}  // namespace sluice::simt
