#pragma once

#include <cstdint>
#include <filesystem>

namespace sluice {

/// Tells whether two processes see the same file or folder, perhaps on two computers. Equal ones
/// are one file on one disk: of a computer's own file systems, or of a network file system that
/// keeps what several computers write to one file (NFS, Lustre, GPFS, Ceph and the like). With a
/// file system in user space (FUSE), which may keep the writes of one process only, no two
/// processes see the same file. A network file system that shows a change late makes one file look
/// like two.
struct FileIdentity {
  std::uint64_t disk = 0, number = 0;         ///< number 0: there is no such file
  std::int64_t seconds = 0, nanoseconds = 0;  ///< of the last change

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

FileIdentity identity_of(const std::filesystem::path& path);

}  // namespace sluice
