#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>

#include "tests/support/catch.h"

namespace sluice::test {

/// A small in-memory file system, mounted on a folder.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path folder, const char* size) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    mounted_ =
        ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, (std::string("size=") + size).c_str()) == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }

  bool mounted() const { return mounted_; }
  void change(unsigned long flags, const char* size) const {
    const std::string options = std::string("size=") + size;
    REQUIRE(::mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT | flags, options.c_str()) == 0);
  }

 private:
  std::filesystem::path folder_;
  bool mounted_ = false;
};

}  // namespace sluice::test
