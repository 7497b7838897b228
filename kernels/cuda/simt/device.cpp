#include "kernels/cuda/simt/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/pinned_ranges.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cuda/attention_wgmma.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/simt/work.h"
#include "kernels/cuda/stream_handle.h"

namespace sluice {
namespace simt {
namespace {

class SimtRuntime;
struct SimtQueue : cuda::Queue {
  SimtRuntime* owner = nullptr;
  std::deque<Work> work;
  std::shared_ptr<RecordedWork> captured{};  ///< during a capture: what was recorded
};

EventState& state_of(Event event) {
  return *reinterpret_cast<EventState*>(event.id);  // NOLINT(performance-no-int-to-ptr)
}

/// Shared memory that a block can use (CUDA C++ programming guide, table of compute capabilities).
std::size_t shared_limit(int capability) {
  if (capability >= 90) return 227 << 10;
  if (capability == 80 || capability == 87) return 163 << 10;
  return capability >= 80 ? 99 << 10 : 64 << 10;
}

class SimtRuntime final : public Runtime {
 public:
  explicit SimtRuntime(const Options& options)
      : options_(options), random_(options.seed * 0x9E3779B97F4A7C15u | 1) {
    compute_ = SimtRuntime::make_stream();
  }
  ~SimtRuntime() override {
    for (const auto& [start, bytes] : regions_)
      munmap(start, bytes);
  }

  Device device() const override { return {DeviceKind::cuda, 0}; }
  DeviceInfo info() const override {
    return {.name = "SIMT host target",
            .capability = options_.capability,
            .multiprocessors = multiprocessors,
            .memory = capacity(),
            .free_memory = capacity() - taken,
            .driver = "none",
            .emulated = true,
            .wgmma_attention = cuda::has_attention_wgmma(options_.capability),
            .uuid = options_.uuid};
  }
  std::size_t capacity() const override { return make_cpu_runtime()->capacity(); }
  std::size_t workspace_bytes() const override { return std::size_t{16} << 20; }

  std::byte* reserve(std::size_t bytes) override {
    void* start = mmap(nullptr, bytes, options_.protect ? PROT_NONE : PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    const std::lock_guard lock(mutex_);
    regions_.emplace(start, bytes);
    return static_cast<std::byte*>(start);
  }
  void release(std::byte* start, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    drop_all();
    regions_.erase({start, bytes});
    munmap(start, bytes);
  }
  std::byte* reserve_pinned(std::size_t bytes) override {
    std::byte* const start = Runtime::reserve_pinned(bytes);
    if (start != nullptr) pinned_.add(start, bytes);
    return start;
  }
  void release_pinned(std::byte* start, std::size_t bytes) override {
    SimtRuntime::unpin(start);
    Runtime::release_pinned(start, bytes);
  }
  bool pin(std::byte* start, std::size_t bytes) override { return pinned_.add(start, bytes); }
  void unpin(std::byte* start) override {
    const std::lock_guard lock(mutex_);
    run_until([this] { return queued_ == 0; });
    pinned_.remove(start);
  }

  Stream compute_stream() const override { return compute_; }
  Stream make_stream() override {
    const std::lock_guard lock(mutex_);
    auto queue = std::make_unique<SimtQueue>();
    queue->capability = options_.capability;
    queue->multiprocessors = multiprocessors;
    queue->shared_limit = shared_limit(options_.capability);
    queue->l2_bytes = l2_bytes;
    queue->owner = this;
    queues_.push_back(std::move(queue));
    return {device(), reinterpret_cast<std::uint64_t>(queues_.back().get())};
  }
  void set_workspace(Stream stream, std::byte* start, std::size_t bytes) override {
    cuda::set_workspace(cuda::queue_of(stream), start, bytes);
    SimtRuntime::fill_zero(start, cuda::arrivals_bytes, stream);
  }
  void synchronize(Stream stream) override {
    const std::lock_guard lock(mutex_);
    check(!queue(stream).captured, "the host waits for a stream that is captured");
    run_until([&] { return queue(stream).work.empty(); });
  }

  Event make_event() override {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::make_unique<EventState>());
    return {reinterpret_cast<std::uint64_t>(events_.back().get())};
  }
  void record(Event event, Stream stream) override {
    const auto point = state_of(event).last = std::make_shared<Point>();
    push(stream, {.run =
                      [point] {
                        point->reached = true;
                        point->when = std::chrono::steady_clock::now();
                      },
                  .records = true});
  }
  void wait(Stream stream, Event event) override {
    push(stream, {.run = [] {}, .after = state_of(event).last});
  }
  void synchronize(Event event) override {
    const std::lock_guard lock(mutex_);
    const Point& last = *state_of(event).last;
    run_until([&] { return last.reached; });
  }
  /// A query also runs some queued work, because no other thread empties the queues. It runs
  /// little, from any queue, so that a program that only polls ends and yet meets every order.
  bool reached(Event event) override {
    const std::lock_guard lock(mutex_);
    const Point& last = *state_of(event).last;
    check(last.reached || queued_ > 0, "what an event stands for was lost to an earlier fault");
    const std::size_t left = queued_ - std::min<std::size_t>(queued_, 1 + draw() % 3);
    run_until([&] { return last.reached || queued_ <= left || stalled(); });
    return last.reached;
  }
  double milliseconds(Event from, Event to) override {
    return std::chrono::duration<double, std::milli>(state_of(to).last->when -
                                                     state_of(from).last->when)
        .count();
  }

  void begin_capture(Stream stream) override {
    const std::lock_guard lock(mutex_);
    check(!queue(stream).captured, "a stream is captured already");
    queue(stream).captured = std::make_shared<RecordedWork>();
  }
  Graph end_capture(Stream stream) override {
    const std::lock_guard lock(mutex_);
    check(queue(stream).captured != nullptr, "a capture ends that did not begin");
    graphs_.push_back(std::exchange(queue(stream).captured, nullptr));
    return {reinterpret_cast<std::uint64_t>(graphs_.back().get())};
  }
  void abandon_capture(Stream stream) noexcept override { queue(stream).captured = nullptr; }
  void launch(Graph graph, Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(graphs_, graph.id, &SimtRuntime::id_of);
    check(found != graphs_.end(), "a graph was launched that does not exist");
    ++queue(stream).launches;
    push(stream, {.run = [work = *found] {
           for (const Work& each : *work)
             each.run();
         }});
  }
  void release(Graph graph) override {
    const std::lock_guard lock(mutex_);
    std::erase_if(graphs_, [&](const auto& each) { return id_of(each) == graph.id; });
  }

  void copy_from_host(std::byte* to, const std::byte* from, std::size_t bytes,
                      Stream stream) override {
    check(!queue(stream).captured, "a copy from the host is captured");
    pinned_.for_each_piece(from, bytes, [&](std::size_t at, std::size_t count) {
      if (pinned_.contains(from + at))
        return push(stream, {.run = [=] { std::copy_n(from + at, count, to + at); }});
      auto staged = std::make_shared<std::vector<std::byte>>(from + at, from + at + count);
      push(stream, {.run = [=] { std::copy_n(staged->data(), count, to + at); }});
    });
  }
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes,
                    Stream stream) override {
    pinned_.for_each_piece(to, bytes, [&](std::size_t at, std::size_t count) {
      push(stream, {.run = [=] { std::copy_n(from + at, count, to + at); }});
      if (!pinned_.contains(to + at)) synchronize(stream);
    });
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t bytes,
                   Stream stream) override {
    push(stream, {.run = [=] { std::memmove(to, from, bytes); }});
  }
  void fill_zero(std::byte* start, std::size_t bytes, Stream stream) override {
    push(stream, {.run = [=] { std::memset(start, 0, bytes); }});
  }

  std::atomic<std::size_t> taken = 0;  ///< bytes of memory that libraries have taken

  void push(Stream stream, Work work) {
    const std::lock_guard lock(mutex_);
    if (const auto& captured = queue(stream).captured) {
      check(work.recordable(), "events and waits cannot be captured");
      return captured->push_back(std::move(work));
    }
    queue(stream).work.push_back(std::move(work));
    // Bounds the queues, so that a long run does not pile up; the last work may need later events.
    if (++queued_ > 4096) run_until([this] { return queued_ < 2048 || stalled(); });
  }

  /// A kernel's first launch loads it, when no kernel runs. Any launch may be one here.
  void load() {
    const std::lock_guard lock(mutex_);
    if (waits_for_others() && draw() % 8 == 0) run_until([this] { return !waits_for_others(); });
  }

  /// Runs the blocks of a grid, starting with a random one, spread over the OS threads.
  void run_grid(const Launch& launch) {
    const std::uint64_t seed = draw();
    const auto blocks = static_cast<std::int64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    const auto first = static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(blocks));
    std::mutex error_mutex;
    std::exception_ptr error;
    cpu::parallel_for(blocks, [&](std::int64_t i) {
      const auto at = static_cast<std::uint64_t>((first + i) % blocks);
      const Index block{static_cast<unsigned>(at % launch.grid.x),
                        static_cast<unsigned>(at / launch.grid.x % launch.grid.y),
                        static_cast<unsigned>(at / launch.grid.x / launch.grid.y)};
      try {
        BlockRunner::here().run(launch, block, seed + at);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    });
    if (error) std::rethrow_exception(error);
  }

 private:
  static constexpr int multiprocessors = 3;
  /// Small, so that kernels that divide their work by the cache do so in tests too.
  static constexpr std::size_t l2_bytes = std::size_t{128} << 10;

  static std::uint64_t id_of(const std::shared_ptr<RecordedWork>& graph) {
    return reinterpret_cast<std::uint64_t>(graph.get());
  }
  static SimtQueue& queue(Stream stream) { return static_cast<SimtQueue&>(cuda::queue_of(stream)); }
  static bool may_start(const SimtQueue& queue) {
    if (queue.work.empty()) return false;
    const Work& next = queue.work.front();
    return (next.after == nullptr || next.after->reached) && (!next.ready || next.ready());
  }
  bool stalled() const {
    return std::ranges::none_of(queues_, [](const auto& queue) { return may_start(*queue); });
  }
  bool waits_for_others() const {
    return std::ranges::any_of(queues_, [](const auto& queue) {
      return !queue->work.empty() && queue->work.front().ready;
    });
  }
  std::uint64_t draw() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_ >> 16;
  }
  void allow_access(bool yes) {
    if (!options_.protect) return;
    for (const auto& [start, bytes] : regions_)
      mprotect(start, bytes, yes ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  void drop_all() {
    for (const auto& queue : queues_)
      queue->work.clear();
    queued_ = 0;
  }

  template <class Done>
  void run_until(Done&& done) {
    if (done()) return;
    allow_access(true);
    try {
      while (!done())
        run_one();
    } catch (...) {
      // Work that was queued behind a fault is lost, as on a GPU.
      drop_all();
      allow_access(false);
      throw;
    }
    allow_access(false);
  }
  void run_one() {
    std::vector<SimtQueue*> able;
    for (const auto& queue : queues_)
      if (may_start(*queue)) able.push_back(queue.get());
    if (able.empty() && waits_for_others()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      return;
    }
    check(!able.empty(), "streams wait for an event that nobody has recorded");
    auto& chosen = *able[draw() % able.size()];
    const Work work = std::move(chosen.work.front());
    chosen.work.pop_front();
    --queued_;
    work.run();
  }

  Options options_;
  std::uint64_t random_;
  std::recursive_mutex mutex_;
  std::vector<std::unique_ptr<SimtQueue>> queues_;
  std::vector<std::unique_ptr<EventState>> events_;
  std::vector<std::shared_ptr<RecordedWork>> graphs_;
  std::set<std::pair<void*, std::size_t>> regions_;
  PinnedRanges pinned_;
  std::size_t queued_ = 0;
  Stream compute_;
};

SimtRuntime& owner_of(Stream stream) {
  return *static_cast<SimtQueue&>(cuda::queue_of(stream)).owner;
}

}  // namespace

std::unique_ptr<Runtime> make_runtime(const Options& options) {
  return std::make_unique<SimtRuntime>(options);
}

void enqueue(Stream stream, Launch launch) {
  check(launch.block.x * launch.block.y * launch.block.z % BlockRunner::warp_size == 0,
        "blocks are whole warps");
  SimtRuntime& owner = owner_of(stream);
  owner.load();
  owner.push(stream, {.run = [&owner, launch = std::move(launch)] { owner.run_grid(launch); }});
}

void enqueue(Stream stream, std::function<void()> work) {
  owner_of(stream).push(stream, {.run = std::move(work)});
}

void enqueue_when(Stream stream, std::function<bool()> ready, std::function<void()> work) {
  owner_of(stream).push(stream, {.run = std::move(work), .ready = std::move(ready)});
}

std::byte* shared_memory(std::size_t bytes, std::size_t alignment) {
  BlockRunner& runner = BlockRunner::here();
  check(bytes <= runner.shared_bytes(),
        "a kernel uses more shared memory than it was launched with");
  check(reinterpret_cast<std::uintptr_t>(runner.shared()) % alignment == 0,
        "a kernel was launched with shared memory of another alignment than it uses");
  return runner.shared();
}

}  // namespace simt

std::byte* cuda::workspace(Stream stream, std::size_t bytes) {
  const Queue& queue = queue_of(stream);
  check(bytes <= queue.workspace_bytes, "a kernel needs more workspace than the stream has");
  return queue.workspace;
}

CUstream_st* cuda::stream_handle(Stream stream) {
  return reinterpret_cast<CUstream_st*>(stream.id);  // NOLINT(performance-no-int-to-ptr)
}

// A library that this program loads, and that stands in for one of CUDA's, calls these.
extern "C" {
void sluice_simt_enqueue_when(std::uint64_t stream, std::function<bool()> ready,
                              std::function<void()> work) {
  simt::enqueue_when({{DeviceKind::cuda, 0}, stream}, std::move(ready), std::move(work));
}
void* sluice_simt_device(std::uint64_t stream) {
  return &simt::owner_of({{DeviceKind::cuda, 0}, stream});
}
void sluice_simt_take_memory(void* device, std::size_t bytes) {
  static_cast<simt::SimtRuntime*>(device)->taken += bytes;
}
void sluice_simt_give_back_memory(void* device, std::size_t bytes) {
  static_cast<simt::SimtRuntime*>(device)->taken -= bytes;
}
}

}  // namespace sluice
