#pragma once

#include <cstddef>

namespace sluice::simt {

/// A stack that runs a function and can be left and entered again. It stays on the OS thread that
/// made it. Switched by hand on x86-64, by ucontext elsewhere; sanitizers are told of every stack.
class Fiber {
 public:
  using Body = void (*)();

  /// `body` must never return.
  explicit Fiber(Body body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the fiber until it calls leave(). From outside of fibers only.
  void enter();
  /// Goes back to the enter() that runs the current fiber.
  static void leave();
  /// Forgets what the fiber was doing: the next enter() starts the body afresh.
  void restart();

  struct Context;  ///< where the stacks go on, and what the sanitizers know of them

 private:
  Body body_;
  std::byte* memory_ = nullptr;
  Context* context_ = nullptr;
};

}  // namespace sluice::simt
