#include "kernels/cpu/parallel_for.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

namespace sluice::cpu {
namespace {

using Clock = std::chrono::steady_clock;

/// Time that a thread spins before it sleeps. Waking up takes about as long, so the cost is at most
/// twice that of the best choice (Karlin et al., 1991, "competitive spinning").
constexpr auto spin = std::chrono::microseconds(50);

std::atomic<int> process_threads{0};  ///< 0: not set
thread_local int thread_limit = 0;    ///< 0: no limit
thread_local bool in_task = false;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until the word differs from `old`; returns its new value.
std::uint32_t wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  std::uint32_t now = word.load(std::memory_order_acquire);
  for (const auto end = Clock::now() + spin; now == old && Clock::now() < end;) {
    for (int i = 0; i < 16 && now == old; ++i) {
      relax();
      now = word.load(std::memory_order_acquire);
    }
  }
  while (now == old) {
    word.wait(old, std::memory_order_acquire);
    now = word.load(std::memory_order_acquire);
  }
  return now;
}

/// The helpers of one thread. Each loop has a number; `ticket_` holds it and the next index.
class Pool {
 public:
  Pool() = default;
  ~Pool() {
    open(0, nullptr, nullptr, end_of_helpers);
    for (std::thread& helper : helpers_)
      helper.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void run(std::uint32_t count, Task task, void* context, int helpers) {
    start(std::min<std::int64_t>(helpers, std::int64_t{count} - 1));
    open(count, task, context, helpers);
    in_task = true;
    take_part(loop_);
    in_task = false;
    std::uint32_t done = finished_.load(std::memory_order_acquire);
    while (done != count)
      done = wait_for_change(finished_, done);
  }

 private:
  static constexpr std::uint32_t closed = std::numeric_limits<std::uint32_t>::max();
  static constexpr int end_of_helpers = -1;

  void start(std::int64_t wanted) {
    while (static_cast<std::int64_t>(helpers_.size()) < wanted) {
      try {
        helpers_.emplace_back([this, number = static_cast<int>(helpers_.size()), loop = loop_] {
          pthread_setname_np(pthread_self(), "sluice-kernel");
          help(number, loop);
        });
      } catch (const std::system_error&) {
        return;  // no more threads are allowed: the existing ones do the work
      }
    }
  }

  /// Announces a loop. A helper may still be examining the previous loop. It reads the description
  /// of a loop before it takes an index, so the ticket is closed first: a helper that sees any part
  /// of the new loop finds that the ticket has changed.
  void open(std::uint32_t count, Task task, void* context, int helpers) {
    ++loop_;
    ticket_.store(ticket(loop_, closed), std::memory_order_relaxed);
    count_.store(count, std::memory_order_release);
    task_.store(task, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    invited_.store(helpers, std::memory_order_release);
    finished_.store(0, std::memory_order_relaxed);
    ticket_.store(ticket(loop_, 0), std::memory_order_release);
    announced_.store(loop_, std::memory_order_release);
    announced_.notify_all();
  }

  void help(int number, std::uint32_t loop) noexcept {
    in_task = true;
    while (true) {
      loop = wait_for_change(announced_, loop);
      const int invited = invited_.load(std::memory_order_acquire);
      if (invited == end_of_helpers) return;
      if (number < invited) take_part(loop);
    }
  }

  /// Takes indices of this loop until none are left.
  void take_part(std::uint32_t loop) noexcept {
    std::uint32_t mine = 0, count = 0;
    std::uint64_t seen = ticket_.load(std::memory_order_acquire);
    while (true) {
      count = count_.load(std::memory_order_acquire);
      Task const task = task_.load(std::memory_order_acquire);
      void* const context = context_.load(std::memory_order_acquire);
      const auto index = static_cast<std::uint32_t>(seen);
      if (seen >> 32 != loop || index >= count) break;
      if (!ticket_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire))
        continue;
      task(context, index);
      ++mine;
      seen = ticket_.load(std::memory_order_acquire);
    }
    if (mine > 0) {
      finished_.fetch_add(mine, std::memory_order_acq_rel);
      finished_.notify_one();
    }
  }

  static std::uint64_t ticket(std::uint32_t loop, std::uint32_t index) {
    return std::uint64_t{loop} << 32 | index;
  }

  std::uint32_t loop_ = 0;
  std::vector<std::thread> helpers_;
  // Three cache lines: data that every thread writes, data written once per loop, and data that the
  // caller waits for.
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::uint32_t> announced_{0};
  std::atomic<std::uint32_t> count_{0};
  std::atomic<Task> task_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int> invited_{0};
  alignas(64) std::atomic<std::uint32_t> finished_{0};
};

}  // namespace

int available_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void set_threads(int threads) {
  process_threads.store(threads > 0 ? threads : available_cores(), std::memory_order_relaxed);
}

int threads() {
  if (thread_limit > 0) return thread_limit;
  const int chosen = process_threads.load(std::memory_order_relaxed);
  if (chosen > 0) return chosen;
  static const int cores = available_cores();
  return cores;
}

ThreadLimit::ThreadLimit(int threads) : before_(thread_limit) {
  thread_limit = threads;
}

ThreadLimit::~ThreadLimit() {
  thread_limit = before_;
}

void run_on_threads(std::int64_t count, Task task, void* context) {
  thread_local Pool pool;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (in_task) {
    for (std::int64_t i = 0; i < count; ++i)
      task(context, i);
    return;
  }
  if (count <= most)
    return pool.run(static_cast<std::uint32_t>(count), task, context, threads() - 1);
  struct Part {
    Task task;
    void* context;
    std::int64_t first;
  };
  for (std::int64_t first = 0; first < count; first += most) {
    Part part{task, context, first};
    const Task shifted = [](void* of, std::int64_t i) {
      const Part& p = *static_cast<Part*>(of);
      p.task(p.context, p.first + i);
    };
    pool.run(static_cast<std::uint32_t>(std::min(most, count - first)), shifted, &part,
             threads() - 1);
  }
}

}  // namespace sluice::cpu
