#include "engine/io/file_identity.h"

#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <span>
#include <string>

#include "engine/io/section_sums.h"

namespace sluice {
namespace {

/// Numbers of file systems, from Linux's linux/magic.h and GNU coreutils' stat.
constexpr std::uint64_t fuse = 0x65735546;
constexpr std::array<std::uint64_t, 10> of_several_computers = {
    0x6969,      // NFS
    0xFE534D42,  // SMB 2
    0xFF534D42,  // CIFS
    0x0BD00BD0,  // Lustre
    0x47504653,  // GPFS
    0x00C36400,  // Ceph
    0x19830326,  // BeeGFS
    0x01161970,  // GFS2
    0x7461636F,  // OCFS2
    0x20030528   // OrangeFS
};

/// A number that differs between computers, and between starts of one.
std::uint64_t this_computer() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  if (id.empty()) id = std::to_string(::gethostid());
  return std::uint64_t{crc32_of(std::as_bytes(std::span(id)))} << 32;
}

}  // namespace

FileIdentity identity_of(const std::filesystem::path& path) {
  struct stat status {};
  struct statfs system {};
  if (::stat(path.c_str(), &status) != 0 || ::statfs(path.c_str(), &system) != 0) return {};
  const auto type = static_cast<std::uint64_t>(system.f_type) & 0xFFFFFFFF;
  std::uint64_t disk = type;
  if (std::ranges::find(of_several_computers, type) == of_several_computers.end())
    disk = this_computer() | (status.st_dev & 0xFFFFFFFF);
  if (type == fuse) disk ^= static_cast<std::uint64_t>(::getpid()) << 16;
  return {.disk = disk,
          .number = status.st_ino,
          .seconds = status.st_ctim.tv_sec,
          .nanoseconds = status.st_ctim.tv_nsec};
}

}  // namespace sluice
