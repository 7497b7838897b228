#include "kernels/cuda/simt/block.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace sluice::simt {

constinit thread_local Index thread_index;
constinit thread_local Index block_index;
constinit thread_local dim3 block_size;
constinit thread_local dim3 grid_size;

namespace {

const char* name_of(Meeting kind) {
  constexpr const char* names[] = {"nothing", "a warp barrier", "a shuffle",    "ldmatrix",
                                   "mma",     "wgmma",          "wgmma_commit", "wgmma_wait"};
  return names[static_cast<std::size_t>(kind)];
}

std::string place(Index block) {
  return "block (" + std::to_string(block.x) + ", " + std::to_string(block.y) + ", " +
         std::to_string(block.z) + ")";
}

}  // namespace

BlockRunner& BlockRunner::here() {
  // A plain pointer needs no check for first use; kernels call this often.
  constinit thread_local BlockRunner* mine = nullptr;
  if (mine == nullptr) [[unlikely]] {
    thread_local BlockRunner runner;
    mine = &runner;
  }
  return *mine;
}

void BlockRunner::thread_main() {
  BlockRunner& runner = here();
  for (;;) {
    try {
      runner.launch_->body();
    } catch (...) {
      // Exceptions cannot pass from one stack to another by themselves.
      runner.error_ = std::current_exception();
    }
    Thread& thread = runner.threads_[runner.current_];
    thread.state = State::ended;
    ++runner.ended_;
    runner.fibers_.give_back(std::exchange(thread.fiber, nullptr));
    Fiber::leave();  // comes back for another thread
  }
}

std::uint64_t BlockRunner::draw() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_ >> 16;
}

void BlockRunner::prepare(const Launch& launch, Index block) {
  launch_ = &launch;
  block_index = block;
  block_size = launch.block;
  grid_size = launch.grid;
  count_ = launch.block.x * launch.block.y * launch.block.z;
  ended_ = 0;
  error_ = nullptr;
  if (threads_.size() < count_) threads_.resize(count_);
  while (warps_.size() * warp_size < count_)
    warps_.push_back(std::make_unique<Warp>());
  for (const auto& warp : warps_) {
    warp->arrived = 0;
    warp->waiting.clear();
    warp->products = {};
  }
  ready_.clear();
  late_.clear();
  at_barrier_.clear();
  at_mbarrier_.clear();
  later_.clear();
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    thread.state = State::ready;
    thread.index = {i % launch.block.x, i / launch.block.x % launch.block.y,
                    i / (launch.block.x * launch.block.y)};
    thread.copies.pending.clear();
    thread.copies.group = 0;
    make_ready(i);
  }
  // A struct's size is a multiple of its alignment.
  const std::size_t alignment = std::min<std::size_t>(
      std::max<std::size_t>(launch.shared_bytes & -launch.shared_bytes, 128), 1024);
  if (shared_memory_.size() < launch.shared_bytes + alignment)
    shared_memory_.resize(launch.shared_bytes + alignment);
  auto start = reinterpret_cast<std::uintptr_t>(shared_memory_.data());
  // Placed at the end of the buffer, so that AddressSanitizer sees the first byte beyond it.
  start = (start + shared_memory_.size() - launch.shared_bytes) / alignment * alignment;
  shared_ = reinterpret_cast<std::byte*>(start);  // NOLINT(performance-no-int-to-ptr)
  std::memset(shared_, 0xFF, launch.shared_bytes);
}

void BlockRunner::run(const Launch& launch, Index block, std::uint64_t seed) {
  random_ = seed * 0x9E3779B97F4A7C15u | 1;
  draw();
  slow_warp_ = static_cast<unsigned>(
      draw() % (launch.block.x * launch.block.y * launch.block.z / warp_size + 1));
  prepare(launch, block);
  while (ended_ < count_ && !error_) {
    std::vector<unsigned>& ready = ready_.empty() ? late_ : ready_;
    // Work that is late is late by as much as a warp's way to its next barrier.
    if (!later_.empty() && (ready.empty() || draw() % 512 == 0)) {
      do_later_work();
      continue;
    }
    if (ready.empty()) break;
    // Taking the upper half of a product is cheaper than a remainder.
    const std::size_t pick = (draw() & 0xFFFFFFFFu) * ready.size() >> 32;
    current_ = ready[pick];
    ready[pick] = ready.back();
    ready.pop_back();
    Thread& thread = threads_[current_];
    thread_index = thread.index;
    // A thread takes a fiber when it starts: a kernel without barriers needs one for all threads.
    if (thread.fiber == nullptr) thread.fiber = fibers_.take();
    thread.fiber->enter();
  }
  if (!error_ && ended_ == count_ && later_.empty()) return;
  // The other fibers are abandoned; their stacks hold only plain data.
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i].fiber == nullptr) continue;
    threads_[i].fiber->restart();
    fibers_.give_back(std::exchange(threads_[i].fiber, nullptr));
  }
  if (error_) std::rethrow_exception(error_);
  if (ended_ == count_) fail(place(block_index) + " has ended before its copies to shared memory");
  report_stuck();
}

void BlockRunner::do_later_work() {
  std::swap(later_[draw() % later_.size()], later_.back());
  const std::function<void()> work = std::move(later_.back());
  later_.pop_back();
  try {
    work();
  } catch (...) {
    error_ = std::current_exception();  // run() then takes the fibers back
  }
}

void BlockRunner::recheck() {
  for (const unsigned thread : at_mbarrier_)
    make_ready(thread);
  at_mbarrier_.clear();
}

void BlockRunner::make_ready(unsigned thread) {
  threads_[thread].state = State::ready;
  (thread / warp_size == slow_warp_ ? late_ : ready_).push_back(thread);
}

bool BlockRunner::arrive(Warp& warp, Meeting kind) {
  if (warp.arrived > 0 && warp.kind != kind)
    fail(place(block_index) + ", thread " + std::to_string(current_) + " came to " + name_of(kind) +
         " while other lanes of its warp wait at " + name_of(warp.kind));
  warp.kind = kind;
  if (++warp.arrived == warp_size) return true;
  threads_[current_].state = State::in_warp;
  warp.waiting.push_back(current_);
  return false;
}

void BlockRunner::release(Warp& warp) {
  for (const unsigned thread : warp.waiting) {
    make_ready(thread);
  }
  warp.waiting.clear();
  warp.arrived = 0;
  ++warp.round;
}

void BlockRunner::sync_threads() {
  at_barrier_.push_back(current_);
  if (at_barrier_.size() == count_) {
    for (const unsigned thread : at_barrier_) {
      if (thread != current_) make_ready(thread);
    }
    at_barrier_.clear();
    return;
  }
  threads_[current_].state = State::in_block;
  Fiber::leave();
}

void BlockRunner::report_stuck() const {
  std::string text = place(block_index) + " is stuck:";
  for (unsigned i = 0; i < count_;) {
    const State state = threads_[i].state;
    unsigned end = i + 1;
    while (end < count_ && end % warp_size != 0 && threads_[end].state == state)
      ++end;
    text += " threads " + std::to_string(i) + "-" + std::to_string(end - 1);
    if (state == State::ended)
      text += " have left the kernel;";
    else if (state == State::in_block)
      text += " wait at __syncthreads;";
    else if (state == State::at_mbarrier)
      text += " wait at an mbarrier;";
    else
      text += std::string(" wait at ") + name_of(warps_[i / warp_size]->kind) + ";";
    i = end;
  }
  fail(text);
}

void sync_threads() {
  BlockRunner::here().sync_threads();
}

}  // namespace sluice::simt
