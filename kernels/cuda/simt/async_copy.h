#pragma once

namespace sluice::simt {

// cp.async as the hardware may do it: each copy lands either at once or when its group is waited
// for, as a seeded coin decides. So a wait that was left out reads what shared memory held before,
// and a copy that was started too early overwrites what others still read.

void cp_async_16(void* to, const void* from, bool valid);
void cp_async_commit();
void cp_async_wait(unsigned pending);

}  // namespace sluice::simt
