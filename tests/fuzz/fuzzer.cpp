#include <cstddef>
#include <cstdint>

#include "tests/fuzz/harness.h"

// What libFuzzer calls. SLUICE_READER is the harness that this program is of.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::refusal(sluice::fuzz::SLUICE_READER, {reinterpret_cast<const char*>(data), size});
  return 0;
}
