#include "parallel/signature_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace sluice {

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
  if (messages_.empty()) return true;
  std::erase_if(messages_, [](const MessagePtr& message) { return message->done(); });
  if (!messages_.empty()) return false;
  const std::string disagreement = first_disagreement(signatures_);
  if (!disagreement.empty())
    fail(fmt::format("the ranks of '{}' have lost each other: {}", communicator_, disagreement));
  return true;
}

std::string first_disagreement(const std::vector<Signature>& by_rank) {
  const auto same = [&](const Signature& one) { return std::ranges::count(by_rank, one); };
  // What most of them do; the first rank decides a tie.
  const auto usual = std::ranges::max_element(
      by_rank, [&](const Signature& a, const Signature& b) { return same(a) < same(b); });
  std::vector<int> others;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
    if (by_rank[rank] != *usual) others.push_back(static_cast<int>(rank));
  if (others.empty()) return {};
  const Signature& odd = by_rank[static_cast<std::size_t>(others.front())];
  return fmt::format("rank {} started {} where {} started {}", fmt::join(others, ", "),
                     to_string(odd),
                     by_rank.size() == 2 ? fmt::format("rank {}", usual - by_rank.begin())
                                         : std::string("the others"),
                     to_string(*usual));
}

}  // namespace sluice
