#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace sluice::simt {

/// A stack that runs a function, which can be left and re-entered. It stays on the OS thread that
/// made it. Assembly switches stacks on x86-64, ucontext elsewhere; sanitizers learn every stack.
class Fiber {
 public:
  using Body = void (*)();

  /// `body` must never return.
  explicit Fiber(Body body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the fiber until it calls leave(). May only be called from outside of fibers.
  void enter();
  /// Returns to the enter() that runs the current fiber.
  static void leave();
  /// Abandons the fiber's work: the next enter() starts the body afresh.
  void restart();

  struct Context;  ///< saved stack positions, and the sanitizers' data about them

 private:
  Body body_;
  std::byte* memory_ = nullptr;
  Context* context_ = nullptr;
};

/// Fibers with one body, on one OS thread. The one that came back last is taken first, since the
/// caches hold its stack.
class FiberPool {
 public:
  explicit FiberPool(Fiber::Body body) : body_(body) {}

  Fiber* take();
  /// `fiber` must be about to leave() at the end of its work, or have been restarted.
  void give_back(Fiber* fiber) { idle_.push_back(fiber); }

 private:
  Fiber::Body body_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
};

}  // namespace sluice::simt
