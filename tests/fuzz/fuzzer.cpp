#include <cstddef>
#include <cstdint>

#include "tests/fuzz/harness.h"

// The entry point for libFuzzer. SLUICE_READER is the harness that this program is built for.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluice::fuzz::refusal(sluice::fuzz::SLUICE_READER, {reinterpret_cast<const char*>(data), size});
  return 0;
}
