#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/backend.h"
#include "parallel/monitor.h"
#include "parallel/progress.h"
#include "parallel/transport.h"

namespace sluice {

class Communicator;
class SignatureCheck;

/// An operation that was started. Dropping the handle does not stop it; the communicator must live
/// until it is over.
class Operation {
 public:
  /// Whether it is over; moves all operations of the communicator along.
  bool done();
  /// The same as far as is known.
  bool over() const { return over_; }
  /// Until it is over and its result may be used in the stream of the call. Throws Error when the
  /// ranks turn out to have started different operations, when one has failed, and at the deadline.
  void wait();

  const Signature& signature() const { return signature_; }

 private:
  friend class Communicator;
  Operation(Communicator& communicator, const Signature& signature);
  bool advance();
  void explain_failure();

  Communicator& communicator_;
  Signature signature_;
  std::uint64_t number_ = 0;  ///< of the monitor
  std::unique_ptr<Work> work_;
  std::unique_ptr<SignatureCheck> check_;
  bool over_ = false;
};
using Handle = std::shared_ptr<Operation>;

/// How an operation is called in reports, and where its data is.
struct CallOptions {
  std::string_view label;
  Stream stream{};  ///< in which data is written before and read afterwards
  View scratch{};   ///< see CollectiveCall
  ReduceOp op = ReduceOp::sum;
};

/// What the ranks of a group do together. All of them start the same operations in the same order;
/// results are in place. Used by one thread of each rank.
class Communicator {
 public:
  struct Options {
    std::string name = "world";
    double timeout = 120;  ///< seconds
    /// Ranks compare their operations' signatures, beside the data and without delaying it.
    bool checked = true;
    std::shared_ptr<Progress> together{};  ///< none: it moves along alone
  };

  /// Operations on host memory. `monitor` may be none.
  Communicator(std::shared_ptr<Transport> transport, std::shared_ptr<Monitor> monitor,
               const Options& options);
  /// On the memory of `backend`; signatures travel by `transport`.
  Communicator(std::unique_ptr<Backend> backend, std::shared_ptr<Transport> transport,
               std::shared_ptr<Monitor> monitor, const Options& options);
  /// One rank of `size`, which sends nothing and hears itself from all others: for plans.
  static std::unique_ptr<Communicator> planned(int size, int rank);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// From the next operation on.
  void set_monitor(std::shared_ptr<Monitor> monitor) { monitor_ = std::move(monitor); }
  void set_checked(bool checked) { options_.checked = checked; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return options_.name; }
  std::string_view backend() const { return backend_->name(); }
  const Options& options() const { return options_; }

  Handle all_reduce(const View& data, const CallOptions& options);
  /// Into the root's data; that of the others stays.
  Handle reduce(const View& data, int root, const CallOptions& options);
  Handle broadcast(const View& data, int root, const CallOptions& options);
  /// Part r of data is rank r's to give.
  Handle all_gather(const View& data, std::vector<Part> parts, const CallOptions& options);
  /// all [size, data] at the root alone.
  Handle gather(const View& data, const View& all, int root, const CallOptions& options);
  Handle scatter(const View& all, const View& data, int root, const CallOptions& options);
  /// Part r of rank r's data receives the reduction; the rest stays.
  Handle reduce_scatter(const View& data, std::vector<Part> parts, const CallOptions& options);
  Handle barrier(std::string_view label);
  /// Messages that progress together. Two ranks' messages to each other match in order.
  Handle p2p(std::vector<Transfer> transfers, const CallOptions& options);

  /// Ranks of the same colour become a group, in the order of (key, rank). Negative colour: none.
  std::unique_ptr<Communicator> split(int colour, int key, const Options& options);

  /// Moves along what is under way, here and in the communicators beside it; for the middle of long
  /// computations.
  void progress();

  /// What every rank has to say, by rank; all give the same number of bytes. Waits.
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
  /// The root's text, everywhere. Waits.
  std::string share_text(const std::string& text, int root, std::string_view label);

 private:
  friend class Operation;
  friend class Progress;
  void advance();
  Handle start(CollectiveCall call, std::int64_t count, DType dtype, const CallOptions& options);
  void exchange(std::span<std::byte> all, std::size_t each, std::string_view label);
  [[noreturn]] void time_out(const Operation& operation) const;

  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Monitor> monitor_;
  Options options_;
  int rank_, size_;
  std::uint64_t sequence_ = 0;
  std::deque<Handle> open_;
};

}  // namespace sluice
