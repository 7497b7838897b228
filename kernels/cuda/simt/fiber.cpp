#include "kernels/cuda/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/base/error.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace sluice::simt {

#ifdef __x86_64__
// Pushes the registers that the System V ABI preserves across a call, and switches stacks.
// Floating-point control words are not saved, since nothing here changes them.
extern "C" void sluice_switch_stack(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl sluice_switch_stack
.hidden sluice_switch_stack
.type sluice_switch_stack, @function
sluice_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sluice_switch_stack, .-sluice_switch_stack
)");
#endif

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t stack_bytes = 256 << 10;  // sanitizers enlarge stack frames
#else
constexpr std::size_t stack_bytes = 64 << 10;
#endif

std::size_t page_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

/// The point at which a suspended stack continues.
#ifdef __x86_64__
struct StackState {
  void* stack_pointer = nullptr;
};

void switch_stack(StackState& from, const StackState& to) {
  sluice_switch_stack(&from.stack_pointer, to.stack_pointer);
}

void begin_at(StackState& place, std::byte* stack, void (*function)()) {
  // Sets the stack up as a call would: 8 past a multiple of 16 at the function's first instruction.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack + stack_bytes);
  *--top = 0;  // stands for the return address
  *--top = reinterpret_cast<std::uintptr_t>(function);
  for (int saved = 0; saved < 6; ++saved)
    *--top = 0;
  place.stack_pointer = top;
}
#else
using StackState = ucontext_t;

void switch_stack(StackState& from, const StackState& to) {
  swapcontext(&from, &to);
}

void begin_at(StackState& place, std::byte* stack, void (*function)()) {
  getcontext(&place);
  place.uc_stack.ss_sp = stack;
  place.uc_stack.ss_size = stack_bytes;
  place.uc_link = nullptr;
  makecontext(&place, function, 0);
}
#endif

}  // namespace

struct Fiber::Context {
  StackState own{}, outside{};
  Body body = nullptr;
  // The sanitizers' handles for the two stacks.
  [[maybe_unused]] void* fake_stack = nullptr;
  [[maybe_unused]] const void* outside_bottom = nullptr;
  [[maybe_unused]] std::size_t outside_size = 0;
  [[maybe_unused]] void* tsan_fiber = nullptr;
  [[maybe_unused]] void* tsan_outside = nullptr;
};

namespace {

thread_local Fiber::Context* running = nullptr;

/// Clears AddressSanitizer's guards of frames that were abandoned midway on this stack.
void forget_frames([[maybe_unused]] std::byte* stack) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack, stack_bytes);
#endif
}

/// The first function on the new stack: it tells the sanitizer that the switch is complete.
void arrive() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &running->outside_bottom, &running->outside_size);
#endif
  running->body();
}

}  // namespace

void Fiber::restart() {
  forget_frames(memory_ + page_bytes());
  context_->body = body_;
  begin_at(context_->own, memory_ + page_bytes(), arrive);
}

void Fiber::enter() {
  running = context_;
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, memory_ + page_bytes(), stack_bytes);
#endif
#ifdef __SANITIZE_THREAD__
  if (context_->tsan_fiber == nullptr) context_->tsan_fiber = __tsan_create_fiber(0);
  context_->tsan_outside = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(context_->tsan_fiber, 0);
#endif
  switch_stack(context_->outside, context_->own);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  running = nullptr;
}

void Fiber::leave() {
  Context* self = running;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&self->fake_stack, self->outside_bottom, self->outside_size);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(self->tsan_outside, 0);
#endif
  switch_stack(self->own, self->outside);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(self->fake_stack, &self->outside_bottom, &self->outside_size);
#endif
}

Fiber::Fiber(Body body) : body_(body) {
  // The page below the stack keeps no access rights, so that an overflow faults there.
  void* memory = mmap(nullptr, page_bytes() + stack_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(memory != MAP_FAILED, "the system refused the stack of a fiber");
  memory_ = static_cast<std::byte*>(memory);
  check(mprotect(memory_ + page_bytes(), stack_bytes, PROT_READ | PROT_WRITE) == 0,
        "the system refused the stack of a fiber");
  context_ = new Context;
  restart();
}

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  if (context_->tsan_fiber != nullptr) __tsan_destroy_fiber(context_->tsan_fiber);
#endif
  delete context_;
  forget_frames(memory_ + page_bytes());
  munmap(memory_, page_bytes() + stack_bytes);
}

Fiber* FiberPool::take() {
  if (idle_.empty()) return fibers_.emplace_back(std::make_unique<Fiber>(body_)).get();
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

}  // namespace sluice::simt
