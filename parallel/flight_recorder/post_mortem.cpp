#include "parallel/flight_recorder/post_mortem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace sluice {
namespace {

using Ranks = std::vector<int>;
/// The order of operations in a communicator. Messages (p2p) have the number of the collective
/// before which they were started, since a rank starts as many of them as it needs.
using Order = std::pair<std::uint64_t, bool>;

Order order_of(const RecordedOperation& o) {
  return {o.signature.sequence, o.signature.kind != Collective::p2p};
}

/// Communicator and order, which identify an operation on every rank.
using Place = std::pair<std::string, Order>;

Place place_of(const RecordedOperation& o) {
  return {o.communicator, order_of(o)};
}

/// "rank 1", "ranks 0, 2", "ranks 0, 4-7": a list of ascending numbers.
std::string list(const Ranks& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1)
      ++end;
    if (end - i < 3) end = i + 1;
    parts.push_back(end - i == 1 ? std::to_string(ranks[i])
                                 : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    i = end;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(parts, ", "));
}

std::string_view wait(const Ranks& ranks) {
  return ranks.size() == 1 ? "waits" : "wait";
}

bool holds(const Ranks& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

/// Ranks may send and receive different things in one p2p; all other signatures must be equal.
bool agree(const Signature& a, const Signature& b) {
  return a == b || (a.kind == Collective::p2p && b.kind == Collective::p2p);
}

/// An operation's signature without its number, which the sentence adds itself.
std::string what(const Signature& signature) {
  const std::string text = to_string(signature);
  return text.substr(0, text.rfind(" (operation "));
}

class Job {
 public:
  Job(const std::vector<RankRecord>& records, int size) : size_(size) {
    for (const RankRecord& record : records)
      if (record.rank >= 0 && record.rank < size) ranks_.emplace(record.rank, &record);
  }

  /// "in all_reduce 'x' (...)", or "after" the last operation, and the note.
  static std::string whereabouts(const RankRecord& r) {
    std::string text;
    if (const auto* open = open_of(r))
      text = "in " + describe(*open);
    else if (r.operations.empty())
      text = "before its first operation";
    else
      text = "after " + describe(r.operations.back());
    if (!r.note.empty() && open_of(r) == nullptr) text += fmt::format(", at \"{}\"", r.note);
    return text;
  }

  std::string sentence() const {
    if (ranks_.empty()) return "no rank has left a record of what it did";
    for (const auto find : {&Job::failed, &Job::mismatch, &Job::lost, &Job::stopped, &Job::silent,
                            &Job::missing, &Job::behind})
      if (auto text = (this->*find)()) return *text;
    return level();
  }

 private:
  /// Returns the operation that was begun last and is not over, or null.
  static const RecordedOperation* open_of(const RankRecord& record) {
    const auto& all = record.operations;
    const auto open = std::find_if(all.rbegin(), all.rend(), [](auto& o) { return o.open(); });
    return open == all.rend() ? nullptr : &*open;
  }

  static bool ended_well(const RankRecord& r) { return r.outcome == RankRecord::Outcome::finished; }

  Ranks select(auto&& condition) const {
    Ranks found;
    for (const auto& [rank, record] : ranks_)
      if (condition(*record)) found.push_back(rank);
    return found;
  }

  /// " on node7, node8": where these ranks are, if the job has several hosts.
  std::string on_host(const Ranks& ranks) const {
    std::set<std::string> all, these;
    for (const auto& [rank, record] : ranks_) {
      all.insert(record->id.host);
      if (holds(ranks, rank)) these.insert(record->id.host);
    }
    return all.size() < 2 ? "" : fmt::format(" on {}", fmt::join(these, ", "));
  }

  /// "rank 1 (pid 4711)", or a list without process ids for several ranks.
  std::string name(const Ranks& ranks) const {
    if (ranks.size() != 1) return list(ranks);
    const RankRecord& one = *ranks_.at(ranks[0]);
    return fmt::format("rank {}{} (pid {}{})", ranks[0], on_host(ranks), one.id.pid,
                       one.gpu.empty() ? "" : ", " + one.gpu);
  }

  /// The same for several ranks: "(rank 1 in ..., rank 2 after ...)".
  std::string whereabouts(const Ranks& ranks) const {
    if (ranks.size() == 1) return whereabouts(*ranks_.at(ranks[0]));
    std::vector<std::string> all;
    for (const int rank : ranks)
      all.push_back(fmt::format("rank {} {}", rank, whereabouts(*ranks_.at(rank))));
    return fmt::format("({})", fmt::join(all, ", "));
  }

  /// "; ranks 0, 2 wait for it in ...; rank 3 waits in ...", for ranks not in `ranks`.
  std::string waiters(const Ranks& ranks) const {
    std::map<Place, Ranks> groups;
    std::map<Place, const RecordedOperation*> operations;
    for (const auto& [rank, record] : ranks_) {
      const auto* open = open_of(*record);
      if (holds(ranks, rank) || open == nullptr) continue;
      groups[place_of(*open)].push_back(rank);
      operations.emplace(place_of(*open), open);
    }
    const std::string_view them = ranks.size() == 1 ? "it" : "them";
    const auto first = ranks_.find(ranks.front());
    const auto* shared = first == ranks_.end() ? nullptr : open_of(*first->second);
    std::string text;
    for (const auto& [place, group] : groups) {
      const bool same = shared != nullptr && place == place_of(*shared);
      text += fmt::format("; {} {} for {}", list(group), wait(group), them);
      if (!same) text += " in " + describe(*operations.at(place));
    }
    return text;
  }

  std::optional<std::string> failed() const {
    const RankRecord* first = nullptr;
    for (const auto& [rank, record] : ranks_)
      if (record->outcome == RankRecord::Outcome::failed &&
          (first == nullptr || record->ended < first->ended))
        first = record;
    if (first == nullptr) return std::nullopt;
    return fmt::format("{} ended with the error \"{}\" {}{}", name({first->rank}), first->message,
                       whereabouts(*first), waiters({first->rank}));
  }

  /// Returns true if several ranks are lost and no other is left: the launcher has killed them.
  bool killed_together(const Ranks& lost) const {
    const Ranks others = select([](const RankRecord& r) { return !r.lost() && !ended_well(r); });
    return others.empty() && lost.size() > 1;
  }

  std::optional<std::string> lost() const {
    const Ranks lost = select([](const RankRecord& r) { return r.lost(); });
    // behind() shows which of the ranks that were killed together has failed.
    if (lost.empty() || killed_together(lost)) return std::nullopt;
    return fmt::format("{} {} killed or exited without a word {}{}", name(lost),
                       lost.size() == 1 ? "was" : "were", whereabouts(lost), waiters(lost));
  }

  std::optional<std::string> stopped() const {
    const Ranks stopped =
        select([](const RankRecord& r) { return r.process == ProcessState::stopped; });
    if (stopped.empty()) return std::nullopt;
    return fmt::format("{} {} stopped, by a signal or a debugger, {}{}", name(stopped),
                       stopped.size() == 1 ? "is" : "are", whereabouts(stopped), waiters(stopped));
  }

  std::optional<std::string> silent() const {
    const Ranks silent = select([](const RankRecord& r) { return r.silent; });
    if (silent.empty()) return std::nullopt;
    return fmt::format("{}{} {} not answer: gone or stopped, or the network is down{}",
                       list(silent), on_host(silent), silent.size() == 1 ? "does" : "do",
                       waiters(silent));
  }

  std::optional<std::string> missing() const {
    Ranks missing;
    for (int rank = 0; rank < size_; ++rank)
      if (!ranks_.contains(rank)) missing.push_back(rank);
    if (missing.empty()) return std::nullopt;
    return fmt::format("{} of {} never got as far as {} first record{}", list(missing), size_,
                       missing.size() == 1 ? "its" : "their", waiters(missing));
  }

  struct Call {
    int rank;
    const RecordedOperation* operation;
  };

  std::optional<std::string> mismatch() const {
    std::map<Place, std::vector<Call>> calls;
    for (const auto& [rank, record] : ranks_)
      for (const auto& operation : record->operations)
        calls[place_of(operation)].push_back({rank, &operation});
    const std::vector<Call>* first = nullptr;
    const auto begin = [](const std::vector<Call>& group) { return group[0].operation->begin; };
    for (const auto& [place, group] : calls) {
      const auto& signature = group[0].operation->signature;
      const bool same = std::ranges::all_of(
          group, [&](const Call& c) { return agree(c.operation->signature, signature); });
      if (!same && (first == nullptr || begin(group) < begin(*first))) first = &group;
    }
    if (first == nullptr) return std::nullopt;
    return describe_mismatch(*first);
  }

  static std::string describe_mismatch(const std::vector<Call>& calls) {
    std::vector<std::pair<const Signature*, Ranks>> sides;
    for (const Call& call : calls) {
      const auto& signature = call.operation->signature;
      const auto side =
          std::ranges::find_if(sides, [&](auto& s) { return agree(*s.first, signature); });
      if (side == sides.end())
        sides.emplace_back(&signature, Ranks{call.rank});
      else
        side->second.push_back(call.rank);
    }
    std::ranges::stable_sort(sides, {}, [](auto& s) { return s.second.size(); });
    const auto text = [](auto& s) {
      return fmt::format("{} called {}", list(s.second), what(*s.first));
    };
    const std::string place =
        fmt::format("operation {} of {}", calls[0].operation->signature.sequence,
                    calls[0].operation->communicator);
    const auto& majority = sides.back();
    if (majority.second.size() == sides[sides.size() - 2].second.size()) {
      std::vector<std::string> all;
      for (const auto& side : sides)
        all.push_back(text(side));
      return fmt::format("the ranks disagree on {}: {}", place, fmt::join(all, ", but "));
    }
    std::vector<std::string> odd;
    for (auto side = sides.begin(); side + 1 != sides.end(); ++side)
      odd.push_back(text(*side));
    return fmt::format("{} as {}, where {}", fmt::join(odd, " and "), place, text(majority));
  }

  /// Returns true if this rank has to take part in `waited` and has not begun it.
  bool owes(const RankRecord& r, const RecordedOperation& waited) const {
    std::optional<Order> front;
    for (const auto& o : r.operations)
      if (o.communicator == waited.communicator)
        front = std::max(front.value_or(Order()), order_of(o));
    if (front) return *front < order_of(waited);
    const bool complete = r.operations.empty() || r.operations.front().number == 0;
    if (waited.communicator == "world") return complete;
    // The rank may not belong to that communicator, but another one does. If no other rank has ever
    // used it, ranks that wait for nothing are suspects.
    const auto users = select([&](const RankRecord& other) {
      return std::ranges::any_of(other.operations,
                                 [&](auto& o) { return o.communicator == waited.communicator; });
    });
    return users.size() == 1 && complete && open_of(r) == nullptr;
  }

  /// Returns which rank is behind. The sentence says first if ranks were killed together, since the
  /// launcher may be the cause then.
  std::optional<std::string> behind() const {
    const auto text = behind_the_others();
    const Ranks lost = select([](const RankRecord& r) { return r.lost(); });
    if (!text || !killed_together(lost)) return text;
    return fmt::format("{} were killed or exited without a word; {}", list(lost), *text);
  }

  std::optional<std::string> behind_the_others() const {
    // Maps a rank to the operation that it has not begun and that others wait in, the one with the
    // longest wait.
    std::map<int, const RecordedOperation*> owed;
    Ranks waiting;
    for (const auto& [waiter, record] : ranks_) {
      for (const auto& open : record->operations) {
        if (!open.open()) continue;
        for (const auto& [rank, other] : ranks_) {
          if (rank == waiter || !owes(*other, open)) continue;
          waiting.push_back(waiter);
          auto& longest = owed.emplace(rank, &open).first->second;
          if (open.begin < longest->begin) longest = &open;
        }
      }
    }
    if (owed.empty()) return std::nullopt;
    // A rank that itself waits for another is not the cause, unless all do: then they wait in a
    // circle.
    const bool circle = std::ranges::all_of(owed, [&](auto& o) { return holds(waiting, o.first); });
    const auto suspect = [&](int rank) { return circle || !holds(waiting, rank); };
    const RecordedOperation* operation = nullptr;
    for (const auto& [rank, waited] : owed)
      if (suspect(rank) && (operation == nullptr || waited->begin < operation->begin))
        operation = waited;
    Ranks late;
    for (const auto& [rank, waited] : owed)
      if (suspect(rank) && place_of(*waited) == place_of(*operation)) late.push_back(rank);
    return describe_behind(late, *operation) +
           (circle ? "; the ranks wait for each other in a circle" : "");
  }

  std::string describe_behind(const Ranks& late, const RecordedOperation& waited) const {
    const Ranks in_it = select([&](const RankRecord& r) {
      return std::ranges::any_of(
          r.operations, [&](auto& o) { return o.open() && place_of(o) == place_of(waited); });
    });
    std::string text =
        fmt::format("{} {} not started {}, which {} {} in", name(late),
                    late.size() == 1 ? "has" : "have", describe(waited), list(in_it), wait(in_it));
    for (const int rank : late)
      text += late.size() == 1 ? "; it " + doing(*ranks_.at(rank))
                               : fmt::format("; rank {} {}", rank, doing(*ranks_.at(rank)));
    return text;
  }

  /// "last finished ... and is in ...".
  static std::string doing(const RankRecord& r) {
    const auto& all = r.operations;
    const auto done = std::find_if(all.rbegin(), all.rend(), [](auto& o) { return !o.open(); });
    std::string text = done == all.rend() ? std::string("has finished no operation")
                                          : "last finished " + describe(*done);
    const auto* open = open_of(r);
    if (ended_well(r)) return text + " and has ended";
    const std::string_view is = r.process == ProcessState::gone ? "was" : "is";
    if (open != nullptr) return text + fmt::format(" and {} in {}", is, describe(*open));
    if (!r.note.empty()) return text + fmt::format(" and {} at \"{}\"", is, r.note);
    return text;
  }

  /// Returns the sentence for a job in which no rank is behind.
  std::string level() const {
    if (select(ended_well).size() == ranks_.size()) return "all ranks ended well";
    const RankRecord& some = *ranks_.at(select([](auto& r) { return !ended_well(r); }).front());
    const Ranks lost = select([](const RankRecord& r) { return r.lost(); });
    if (!lost.empty())
      return fmt::format(
          "{} were killed or exited without a word, and none was behind the others: "
          "rank {} was {}",
          list(lost), some.rank, whereabouts(some));
    return fmt::format("no rank is behind the others: rank {} is {}", some.rank, whereabouts(some));
  }

  int size_;
  std::map<int, const RankRecord*> ranks_;
};

}  // namespace

std::string describe(const RecordedOperation& operation) {
  const Signature& s = operation.signature;
  const std::string label = s.label_text().empty() ? "" : fmt::format(" '{}'", s.label_text());
  return fmt::format("{}{} (operation {} of {})", name_of(s.kind), label, s.sequence,
                     operation.communicator);
}

std::string whereabouts(const RankRecord& record) {
  return Job::whereabouts(record);
}

std::string post_mortem(const std::vector<RankRecord>& records, int size) {
  return Job(records, size).sentence();
}

}  // namespace sluice
