#pragma once

#include <cstdint>

namespace sluice {

/// A part of a FileMemory, which holds an array.
struct FileRegion {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  ///< a multiple of ScratchFile::alignment; 0: none
};

}  // namespace sluice
