#include "engine/io/mmap_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/io/checked_math.h"
#include "kernels/base/error.h"

namespace sluice {

void MmapFile::Unmap::operator()(const std::byte* data) const {
  ::munmap(const_cast<std::byte*>(data), size);
}

MmapFile::MmapFile(std::filesystem::path path) : file_(File::open(std::move(path))) {
  const auto size = checked_narrow<std::size_t>(file_.size());
  if (!size) fail(fmt::format("{} is too large to be mapped", file_.path().string()));
  if (*size == 0) return;  // mmap refuses a length of 0
  void* data = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, file_.descriptor(), 0);
  if (data == MAP_FAILED) {
    const std::string reason = std::generic_category().message(errno);
    fail(fmt::format("cannot map {}: {}", file_.path().string(), reason));
  }
  data_ = {static_cast<const std::byte*>(data), Unmap{*size}};
}

void MmapFile::check_unchanged() const {
  const std::uint64_t size = file_.size();
  if (size != bytes().size())
    fail(fmt::format("{} changed from {} to {} bytes while it was in use", file_.path().string(),
                     bytes().size(), size));
}

}  // namespace sluice
