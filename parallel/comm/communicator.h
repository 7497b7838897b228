#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "parallel/comm/backend/backend.h"
#include "parallel/comm/monitor.h"
#include "parallel/comm/operation.h"
#include "parallel/comm/transport/transport.h"

namespace sluice {

class Communicator;

/// Communicators of one rank that progress together; one thread at a time uses them. While the rank
/// waits in one, it also progresses the others, whose messages a peer may need before it answers.
using Progress = std::vector<Communicator*>;

/// Runs collectives among the ranks of a group. All ranks must start the same operations in the
/// same order. Results are in place. Only one thread of a rank may use it at a time.
class Communicator {
 public:
  struct Options {
    std::string name = "world";
    double timeout = 120;  ///< seconds
    /// Ranks compare operation signatures, in parallel with the data and without delaying it.
    bool checked = true;
    std::shared_ptr<Progress> together{};  ///< none: it progresses alone
  };

  /// A communicator for host memory. `monitor` may be none.
  Communicator(std::shared_ptr<Transport> transport, std::shared_ptr<Monitor> monitor,
               const Options& options);
  /// A communicator for the memory of `backend`; signatures travel by `transport`.
  Communicator(std::unique_ptr<Backend> backend, std::shared_ptr<Transport> transport,
               std::shared_ptr<Monitor> monitor, const Options& options);
  /// Makes a communicator for plans: it sends nothing and receives its own values from all ranks.
  static std::unique_ptr<Communicator> planned(int size, int rank);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Sets the monitor that sees all later operations.
  void set_monitor(std::shared_ptr<Monitor> monitor) { monitor_ = std::move(monitor); }
  Monitor* monitor() const { return monitor_.get(); }  ///< may be none
  void set_checked(bool checked) { options_.checked = checked; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return options_.name; }
  std::string_view backend() const { return backend_->name(); }
  bool one_at_a_time() const { return backend_->one_at_a_time(); }  ///< see Backend
  const Options& options() const { return options_; }

  Handle all_reduce(const View& data, const CallOptions& options);
  /// Reduces into the root's data; the data of the others does not change.
  Handle reduce(const View& data, int root, const CallOptions& options);
  Handle broadcast(const View& data, int root, const CallOptions& options);
  /// Part r of `data` comes from rank r. `parts` has one range of `data` per rank.
  Handle all_gather(const View& data, const std::vector<Part>& parts, const CallOptions& options);
  /// `all` is [size(), elements of `data`]; only the root uses it.
  Handle gather(const View& data, const View& all, int root, const CallOptions& options);
  Handle scatter(const View& all, const View& data, int root, const CallOptions& options);
  /// On rank r, part r of `data` receives the reduction. The rest of `data` does not change.
  Handle reduce_scatter(const View& data, const std::vector<Part>& parts,
                        const CallOptions& options);
  Handle barrier(std::string_view label);
  /// Starts several sends and receives as one operation (like ncclGroupStart/End). Messages between
  /// two ranks match in the order in which they are started.
  Handle p2p(std::vector<Transfer> transfers, const CallOptions& options);

  /// Makes a group of the ranks with the same colour, ordered by (key, rank), as MPI_Comm_split
  /// does. Returns null for a negative colour.
  std::unique_ptr<Communicator> split(int colour, int key, const Options& options);

  /// Advances the operations under way, here and in Options::together. Call it while computing.
  void progress();
  /// Waits until the operations under way are over, also those that were joined, here and in
  /// Options::together. Throws as Operation::wait() does.
  void finish();

  /// Gathers every rank's values, ordered by rank. All ranks give equally many. Waits.
  template <class T>
  std::vector<T> gather_values(std::span<const T> mine, std::string_view label) {
    std::vector<T> all(mine.size() * static_cast<std::size_t>(size()));
    std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(mine.size()) * rank());
    exchange(std::as_writable_bytes(std::span(all)), mine.size_bytes(), label);
    return all;
  }
  template <class T>
  std::vector<T> gather_values(const T& mine, std::string_view label) {
    return gather_values(std::span(&mine, 1), label);
  }
  /// Gathers every rank's text, ordered by rank. Waits.
  std::vector<std::string> gather_texts(const std::string& mine, std::string_view label);
  /// Gives the root's text to all ranks. Waits.
  std::string share_text(const std::string& text, int root, std::string_view label);

 private:
  friend class Operation;
  /// Communicators that progress together, this one included.
  Progress all_together();
  void advance();
  /// Returns true if all ranks have started an operation with this signature before, but for its
  /// sequence, and if they need not pass on the signatures of others. A rank that goes on without
  /// the check of more ranks would keep it from those that wait for it.
  bool has_agreed_on(const Signature& signature) const;
  std::vector<Part> used(const std::vector<Part>& parts) const;
  Handle start(CollectiveCall call, std::int64_t count, DType dtype, const CallOptions& options);
  void wait_for_a_tag();
  void exchange(std::span<std::byte> all, std::size_t each, std::string_view label);
  [[noreturn]] void time_out(const Operation& operation);
  /// Drops the operations under way, here and in Options::together: their data may be freed as soon
  /// as the error `why` is thrown.
  void give_up_all(const std::exception_ptr& why);
  void give_up(const std::exception_ptr& why);

  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Monitor> monitor_;
  Options options_;
  int rank_, size_;
  std::uint64_t sequence_ = 0;
  std::deque<Handle> open_;
  std::unordered_set<std::uint64_t> agreed_;  ///< hashes of the signatures of finished operations
  std::exception_ptr failure_;                ///< of an operation; the others were given up with it
};

}  // namespace sluice
