#include "parallel/comm/backend/signature.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {

void Signature::set_label(std::string_view text) {
  label.fill('\0');
  std::ranges::copy(text.substr(0, label_bytes), label.begin());
}

std::string_view Signature::label_text() const {
  return {label.data(), static_cast<std::size_t>(std::ranges::find(label, '\0') - label.begin())};
}

std::string to_string(const Signature& s) {
  std::string text(name_of(s.kind));
  if (s.kind != Collective::barrier && s.kind != Collective::split)
    text += fmt::format(" of {} {}", s.count, name_of(s.dtype));
  if (s.root >= 0) text += fmt::format(", root {},", s.root);
  return fmt::format("{} '{}' (operation {})", text, s.label_text(), s.sequence);
}

SignatureCheck::SignatureCheck(Transport& transport, std::string communicator,
                               const Signature& mine, int tag)
    : communicator_(std::move(communicator)),
      signatures_(static_cast<std::size_t>(transport.size())) {
  signatures_[static_cast<std::size_t>(transport.rank())] = mine;
  const auto bytes_of = [&](int rank) {
    return std::as_writable_bytes(std::span(&signatures_[static_cast<std::size_t>(rank)], 1));
  };
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (rank == transport.rank()) continue;
    messages_.push_back(transport.receive(rank, tag, bytes_of(rank)));
    messages_.push_back(transport.send(rank, tag, bytes_of(transport.rank())));
  }
}

bool SignatureCheck::advance() {
  if (agreed_) return true;
  if (!all_done(messages_)) return false;
  const std::string disagreement = first_disagreement(signatures_);
  if (!disagreement.empty())
    fail(fmt::format("the ranks of '{}' have lost each other: {}", communicator_, disagreement));
  agreed_ = true;
  return true;
}

std::string first_disagreement(const std::vector<Signature>& by_rank) {
  // The code below takes time by the square of the ranks.
  if (std::ranges::count(by_rank, by_rank.front()) == std::ssize(by_rank)) return {};
  const auto same = [&](const Signature& one) { return std::ranges::count(by_rank, one); };
  // Finds the signature that most ranks have; in a tie, that of the lowest rank.
  const auto usual = std::ranges::max_element(
      by_rank, [&](const Signature& a, const Signature& b) { return same(a) < same(b); });
  const auto ranks_of = [&](const Signature& one) {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
      if (by_rank[rank] == one) ranks.push_back(rank);
    return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  };
  std::vector<std::string> odd;
  for (auto one = by_rank.begin(); one != by_rank.end(); ++one)
    if (*one != *usual && std::find(by_rank.begin(), one, *one) == one)
      odd.push_back(fmt::format("{} started {}", ranks_of(*one), to_string(*one)));
  if (odd.empty()) return {};
  return fmt::format("{} where {} started {}", fmt::join(odd, " and "),
                     same(*usual) == 1 ? ranks_of(*usual) : std::string("the others"),
                     to_string(*usual));
}

}  // namespace sluice
