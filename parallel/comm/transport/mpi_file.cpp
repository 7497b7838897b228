#include "parallel/comm/transport/mpi_file.h"

#include <fmt/format.h>
#if SLUICE_HAS_MPI
#include <mpi.h>
#endif

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"

namespace sluice {

#if !SLUICE_HAS_MPI

struct MpiFile::Handle {};

MpiFile::MpiFile(std::filesystem::path path, Access)
    : path_(std::move(path)), uncaught_(std::uncaught_exceptions()) {
  fail(fmt::format("{} cannot be opened by several ranks: this program was built without MPI",
                   path_.string()));
}
MpiFile::~MpiFile() {
  static_cast<void>(uncaught_);
}
void MpiFile::write(std::uint64_t, std::span<const std::byte>, std::uint64_t) {}
void MpiFile::read(std::uint64_t, std::span<std::byte>, std::uint64_t) {}
void MpiFile::sync() {}

#else

struct MpiFile::Handle {
  MPI_File file = MPI_FILE_NULL;
};

namespace {

/// MPI counts bytes in int, so more of them are moved in pieces of this size.
constexpr std::uint64_t longest_piece = std::uint64_t{1} << 30;

void require(int code, const std::filesystem::path& path, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(fmt::format("{}: {} failed: {}", path.string(), what,
                   std::string_view(text, static_cast<std::size_t>(length))));
}

/// Calls `move`(byte, count, status) for each piece, as often on each rank, and checks that all was
/// moved; `why`: what may be the cause if not.
template <class Move>
void in_pieces(const std::filesystem::path& path, std::uint64_t bytes, std::uint64_t largest,
               const char* what, const char* why, Move&& move) {
  check(bytes <= largest, "a rank has more bytes than the largest count");
  for (std::uint64_t at = 0; at < largest; at += longest_piece) {
    const std::uint64_t begin = std::min(at, bytes);
    const auto count = static_cast<int>(std::min(longest_piece, bytes - begin));
    MPI_Status status;
    require(move(begin, count, &status), path, what);
    int moved = 0;
    MPI_Get_count(&status, MPI_BYTE, &moved);
    if (moved != count)
      fail(fmt::format("{}: {} moved {} of {} bytes; {}", path.string(), what, moved, count, why));
  }
}

}  // namespace

MpiFile::MpiFile(std::filesystem::path path, Access access)
    : path_(std::move(path)),
      handle_(std::make_unique<Handle>()),
      uncaught_(std::uncaught_exceptions()) {
  const int mode = access == Access::read ? MPI_MODE_RDONLY : MPI_MODE_WRONLY;
  require(MPI_File_open(MPI_COMM_WORLD, path_.c_str(), mode, MPI_INFO_NULL, &handle_->file), path_,
          "MPI_File_open");
}

MpiFile::~MpiFile() {
  if (std::uncaught_exceptions() == uncaught_) MPI_File_close(&handle_->file);
}

void MpiFile::write(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t largest) {
  in_pieces(path_, bytes.size(), largest, "MPI_File_write_at_all", "is the disk full?",
            [&](std::uint64_t at, int count, MPI_Status* status) {
              return MPI_File_write_at_all(handle_->file, static_cast<MPI_Offset>(offset + at),
                                           bytes.data() + at, count, MPI_BYTE, status);
            });
}

void MpiFile::read(std::uint64_t offset, std::span<std::byte> bytes, std::uint64_t largest) {
  in_pieces(path_, bytes.size(), largest, "MPI_File_read_at_all", "has the file changed?",
            [&](std::uint64_t at, int count, MPI_Status* status) {
              return MPI_File_read_at_all(handle_->file, static_cast<MPI_Offset>(offset + at),
                                          bytes.data() + at, count, MPI_BYTE, status);
            });
}

void MpiFile::sync() {
  require(MPI_File_sync(handle_->file), path_, "MPI_File_sync");
}

#endif

}  // namespace sluice
