#pragma once

namespace sluice::simt {

// Emulates cp.async as the hardware may do it: each copy lands either at once or when its group is
// waited for; a seeded random choice decides. A missing wait thus reads the old contents of shared
// memory, and a copy that starts too early overwrites data that others still read.

void cp_async_16(void* to, const void* from, bool valid);
void cp_async_commit();
void cp_async_wait(unsigned pending);

}  // namespace sluice::simt
