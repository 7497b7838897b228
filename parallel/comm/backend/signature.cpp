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

void Tally::add(int rank, const Signature& signature) {
  Kind kind{.signature = signature, .ranks = 1};
  kind.listed.front() = rank;
  add(kind);
}

void Tally::add(const Tally& next) {
  for (const Kind& kind : next.kinds())
    add(kind);
  others_ += next.others_;
}

void Tally::add(const Kind& kind) {
  const auto end = kinds_.begin() + count_;
  const auto known = std::ranges::find(kinds_.begin(), end, kind.signature, &Kind::signature);
  if (known == end) {
    if (count_ == max_kinds) {
      const auto rarest = std::ranges::min_element(kinds_, {}, &Kind::ranks);
      others_ += std::min(rarest->ranks, kind.ranks);
      if (rarest->ranks >= kind.ranks) return;
      std::rotate(rarest, rarest + 1, kinds_.end());
      --count_;
    }
    kinds_.at(static_cast<std::size_t>(count_++)) = kind;
    return;
  }
  const auto room = std::max<std::int32_t>(0, std::int32_t{max_listed} - known->ranks);
  std::copy_n(kind.listed.begin(), std::min(room, kind.ranks), known->listed.end() - room);
  known->ranks += kind.ranks;
}

std::string Tally::ranks_of(const Kind& kind) {
  const auto listed = std::min<std::size_t>(static_cast<std::size_t>(kind.ranks), max_listed);
  std::string text = fmt::format("rank{} {}", kind.ranks == 1 ? "" : "s",
                                 fmt::join(std::span(kind.listed).first(listed), ", "));
  const auto more = static_cast<std::size_t>(kind.ranks) - listed;
  return more == 0 ? text : text + fmt::format(" and {} more", more);
}

std::string Tally::disagreement() const {
  if (count_ < 2) return {};
  const auto usual = std::ranges::max_element(kinds(), {}, &Kind::ranks);  // the first in a tie
  std::vector<std::string> odd;
  for (auto kind = kinds().begin(); kind != kinds().end(); ++kind)
    if (kind != usual)
      odd.push_back(fmt::format("{} started {}", ranks_of(*kind), to_string(kind->signature)));
  if (others_ > 0) odd.push_back(fmt::format("{} more started what is not listed", others_));
  const bool rest = usual->ranks > 1 && others_ == 0;
  return fmt::format("{} where {} started {}", fmt::join(odd, " and "),
                     rest ? std::string("the others") : ranks_of(*usual),
                     to_string(usual->signature));
}

std::vector<int> tree_children(int rank, int ranks) {
  std::vector<int> children;
  for (int step = 1; (rank & step) == 0 && rank + step < ranks; step *= 2)
    children.push_back(rank + step);
  return children;
}

SignatureCheck::SignatureCheck(Transport& transport, std::string communicator,
                               const Signature& mine, int tag)
    : transport_(transport), communicator_(std::move(communicator)), tag_(tag) {
  const int size = transport.size(), rank = transport.rank();
  if (size > most_direct) {
    mine_.add(rank, mine);
    children_ = tree_children(rank, size);
    reports_.resize(children_.size());
    for (std::size_t i = 0; i < children_.size(); ++i)
      receive(children_[i], reports_[i]);
    return;
  }
  signatures_.resize(static_cast<std::size_t>(size));
  const auto bytes_of = [&](int of) {
    return std::as_writable_bytes(std::span(&signatures_[static_cast<std::size_t>(of)], 1));
  };
  signatures_[static_cast<std::size_t>(rank)] = mine;
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    receives_.push_back(transport.receive(other, tag, bytes_of(other)));
    sends_.push_back(transport.send(other, tag, bytes_of(rank)));
  }
}

void SignatureCheck::send(int to, const Tally& tally) {
  sends_.push_back(transport_.send(to, tag_, std::as_bytes(std::span(&tally, 1))));
}

void SignatureCheck::receive(int from, Tally& tally) {
  receives_.push_back(transport_.receive(from, tag_, std::as_writable_bytes(std::span(&tally, 1))));
}

/// Called when the messages of a stage have arrived.
void SignatureCheck::next_stage() {
  const int rank = transport_.rank();
  if (stage_ == Stage::collect && transport_.size() <= most_direct) {
    for (std::size_t of = 0; of < signatures_.size(); ++of)
      all_.add(static_cast<int>(of), signatures_[of]);
    stage_ = Stage::judge;
  } else if (stage_ == Stage::collect) {
    for (const Tally& report : reports_)
      mine_.add(report);
    stage_ = Stage::report;
    if (rank == 0) {
      all_ = mine_;
      return;
    }
    const int parent = tree_parent(rank);
    send(parent, mine_);
    receive(parent, all_);
  } else if (stage_ == Stage::report) {
    // Also of a disagreement: those below learn of it from this message alone.
    for (const int child : children_)
      send(child, all_);
    stage_ = Stage::tell;
  } else {
    stage_ = Stage::judge;
  }
}

bool SignatureCheck::advance() {
  if (agreed_) return true;
  while (all_done(receives_)) {
    if (stage_ != Stage::judge) {
      next_stage();
      continue;
    }
    const std::string disagreement = all_.disagreement();
    if (!disagreement.empty()) {
      if (!all_done(sends_)) return false;  // the others shall learn of it too
      fail(fmt::format("the ranks of '{}' have lost each other: {}", communicator_, disagreement));
    }
    agreed_ = true;
    return true;
  }
  return false;
}

bool SignatureCheck::over() {
  return advance() && all_done(sends_);
}

}  // namespace sluice
