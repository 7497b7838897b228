#include "apps/data/tokens/shared_part.h"

#include <algorithm>
#include <numeric>

#include "engine/io/token_file.h"

namespace sluice {

void SharedPart::append(std::span<const std::int32_t> ids) {
  store_tokens(ids, id_bytes_, path_, size_ + round_.size() / id_bytes_, round_);
}

void SharedPart::open() {
  if (ranks_.rank() == 0) file_.emplace(path_);
  // The name has the process id of rank 0.
  const std::string name = ranks_.share_text(temporary_name(path_).string(), 0, "token file");
  shared_.emplace(name, MpiFile::Access::write);
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
  round_.clear();
}

void SharedPart::complete() {
  if (complete_) return;
  end_round();
  complete_ = true;
  if (!shared_) return;
  shared_->sync();
  shared_.reset();
  if (!file_) return;
  file_->write_at(0, token_file_header(path_, size_, id_bytes_));
  file_->complete();
}

void SharedPart::publish() {
  if (file_) file_->commit();
}

}  // namespace sluice
