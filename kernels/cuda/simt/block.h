#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/simt/fiber.h"
#include "kernels/cuda/simt/warp_products.h"
#include "kernels/cuda/target.h"

namespace sluice::simt {

/// A kernel with its arguments and launch configuration.
struct Launch {
  std::function<void()> body;
  dim3 grid, block;
  std::size_t shared_bytes = 0;
};

/// Points at which lanes of a warp wait for each other. All lanes must reach the same one.
enum class Meeting : std::uint8_t { none, warp, shuffle, ldmatrix, mma, wgmma, commit, wait };

/// Runs the threads of one block at a time on this OS thread, each as a fiber, in a seeded random
/// order: at every wait, the next thread is drawn from all that may run. But one warp in each
/// block, or none, runs only while no other can: a missing barrier shows where the others run
/// ahead, which an order that is fair to all hardly ever lets them do. Shared memory is all NaN
/// when a block starts. A thread that never reaches a barrier is an Error naming block and threads.
class BlockRunner {
 public:
  static constexpr unsigned warp_size = 32;

  /// Returns the runner of this OS thread.
  static BlockRunner& here();

  /// Rethrows what a thread of the block threw; throws Error if the block cannot end.
  void run(const Launch& launch, Index block, std::uint64_t seed);

  // The functions below are called by kernel code, on a fiber.

  void sync_threads();
  /// Each lane passes `in`. The last lane to arrive calls compute(const In* ins, Out* outs) for all
  /// 32 lanes, and each lane returns its own out.
  template <class In, class Out, class Compute>
  Out meet(Meeting kind, const In& in, Compute&& compute) {
    static_assert(sizeof(In) <= slot_bytes && sizeof(Out) <= slot_bytes);
    Warp& warp = current_warp();
    const unsigned lane = current_ % warp_size;
    // There are two sets: a lane may reach the next meeting while others still read this one.
    Slots& slots = warp.slots[warp.round % 2];
    std::memcpy(slots.in + lane * sizeof(In), &in, sizeof(In));
    if (arrive(warp, kind)) {
      compute(reinterpret_cast<const In*>(slots.in), reinterpret_cast<Out*>(slots.out));
      release(warp);
    } else {
      Fiber::leave();
    }
    Out out;
    std::memcpy(&out, slots.out + lane * sizeof(Out), sizeof(Out));
    return out;
  }
  /// Waits until `done()` is true. Who may have made it true calls recheck().
  template <class Done>
  void wait_until(Done&& done) {
    while (!done()) {
      threads_[current_].state = State::at_mbarrier;
      at_mbarrier_.push_back(current_);
      Fiber::leave();
    }
  }
  void recheck();
  /// Work that is done beside the threads, at any time until no thread can run without it.
  void later(std::function<void()> work) { later_.push_back(std::move(work)); }
  /// Products of the running thread's warp.
  WarpProducts& products() { return current_warp().products; }

  unsigned warp() const { return current_ / warp_size; }
  std::byte* shared() { return shared_; }
  std::size_t shared_bytes() const { return launch_->shared_bytes; }

  /// A copy to shared memory that lands when its group is waited for.
  struct PendingCopy {
    std::byte* to;
    const std::byte* from;
    unsigned bytes;  ///< bytes copied; the rest of the 16 becomes zero
    unsigned group;
  };
  /// Copies of the running thread that have not landed yet.
  struct AsyncCopies {
    std::vector<PendingCopy> pending;
    unsigned group = 0;  ///< the group being filled
  };
  AsyncCopies& copies() { return threads_[current_].copies; }

  /// Returns the next number of the block's random sequence.
  std::uint64_t draw();

 private:
  static constexpr std::size_t slot_bytes = 64;
  struct Slots {
    alignas(64) std::byte in[warp_size * slot_bytes];
    alignas(64) std::byte out[warp_size * slot_bytes];
  };
  struct Warp {
    Slots slots[2];
    unsigned round = 0;
    unsigned arrived = 0;
    Meeting kind = Meeting::none;
    std::vector<unsigned> waiting;
    WarpProducts products;
  };
  enum class State : std::uint8_t { ready, in_warp, in_block, at_mbarrier, ended };
  struct Thread {
    Fiber* fiber = nullptr;  ///< null before it starts and after it ends
    State state = State::ready;
    Index index;
    AsyncCopies copies;
  };

  static void thread_main();
  Warp& current_warp() { return *warps_[current_ / warp_size]; }
  void make_ready(unsigned thread);
  bool arrive(Warp& warp, Meeting kind);
  void release(Warp& warp);
  void prepare(const Launch& launch, Index block);
  void do_later_work();
  [[noreturn]] void report_stuck() const;

  const Launch* launch_ = nullptr;
  std::vector<Thread> threads_;
  FiberPool fibers_{thread_main};
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<unsigned> ready_;
  std::vector<unsigned> late_;  ///< those of the slow warp that are ready
  unsigned slow_warp_ = 0;      ///< the number of warps: none
  std::vector<unsigned> at_barrier_, at_mbarrier_;
  std::vector<std::function<void()>> later_;
  unsigned count_ = 0, ended_ = 0, current_ = 0;
  std::uint64_t random_ = 1;
  std::vector<std::byte> shared_memory_;
  std::byte* shared_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace sluice::simt
