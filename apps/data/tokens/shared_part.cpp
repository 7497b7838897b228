#include "apps/data/tokens/shared_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <system_error>

#include "engine/io/token_file.h"
#include "kernels/base/error.h"

namespace sluice {

void SharedPart::append(std::span<const std::int32_t> ids) {
  store_tokens(ids, id_bytes_, path_, size_ + round_.size() / id_bytes_, round_);
}

void SharedPart::open() {
  if (ranks_.rank() == 0) file_.emplace(path_);
  // The name has the process id of rank 0.
  temporary_ =
      ranks_.share_text(temporary_name(file_ ? file_->path() : path_).string(), 0, "token file");
  if (!std::filesystem::exists(temporary_))
    fail(
        fmt::format("rank {} does not see {}, which rank 0 has made; all ranks must share the disk "
                    "of the output",
                    ranks_.rank(), temporary_.string()));
  shared_.emplace(temporary_, MpiFile::Access::write);
}

SharedPart::~SharedPart() {
  std::error_code ignored;
  if (!complete_ && !temporary_.empty()) std::filesystem::remove(temporary_, ignored);
}

void SharedPart::end_round() {
  const auto bytes = ranks_.gather_values<std::uint64_t>(round_.size(), "tokens of a round");
  const std::uint64_t all = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  if (all == 0) return;
  if (!shared_) open();
  const auto before = std::accumulate(bytes.begin(), bytes.begin() + ranks_.rank(),
                                      token_file_start(id_bytes_) + size_ * id_bytes_);
  shared_->write(before, round_, *std::ranges::max_element(bytes));
  size_ += all / id_bytes_;
  if (id_bytes_ == 4 && size_ > std::numeric_limits<std::int32_t>::max())
    fail(fmt::format("{} would have more tokens than its header can say; start one process with "
                     "--shard-tokens",
                     path_.string()),
         ErrorKind::usage);
  round_.clear();
}

void SharedPart::complete() {
  if (complete_) return;
  end_round();
  if (shared_) {
    shared_->sync();
    shared_.reset();
  }
  if (file_) {  // on rank 0, which renames the file before the others are here
    // An MPI may take a write for done that a full disk has cut short.
    const std::uint64_t bytes = token_file_start(id_bytes_) + size_ * id_bytes_;
    if (const std::uint64_t there = std::filesystem::file_size(temporary_); there != bytes)
      fail(fmt::format("{} has {} of {} bytes; is the disk full?", temporary_.string(), there,
                       bytes));
    file_->write_at(0, token_file_header(path_, size_, id_bytes_));
    file_->complete();
  }
  complete_ = true;
}

void SharedPart::publish() {
  if (file_) file_->commit();
}

}  // namespace sluice
