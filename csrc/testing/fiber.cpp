#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define PACKED_SS_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PACKED_SS_ASAN
#endif
#endif

#if defined(PACKED_SS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(PACKED_SS_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__)
// switch_stack(void** from, void* to): saves the registers that a call preserves on this stack and its pointer in *from, and
// takes up those saved at `to`. ucontext would also swap the signal mask, with a system call each time.
extern "C" void packed_ss_switch_stack(void** from, void* to);
asm(R"(
.text
.p2align 4
.hidden packed_ss_switch_stack
.globl packed_ss_switch_stack
.type packed_ss_switch_stack, @function
packed_ss_switch_stack:
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
.size packed_ss_switch_stack, .-packed_ss_switch_stack
)");
#endif

namespace packed_ss::host_cuda {
namespace {

#if defined(PACKED_SS_ASAN) || defined(PACKED_SS_TSAN)
constexpr std::size_t kStackBytes = 256 << 10;  // frames are several times as large
#else
constexpr std::size_t kStackBytes = 64 << 10;
#endif

#if defined(PACKED_SS_TSAN)
constexpr unsigned kNoOrder = __tsan_switch_to_fiber_no_sync;
void* scheduler_identity = nullptr;
#endif
#if defined(PACKED_SS_ASAN)
const void* scheduler_bottom = nullptr;
std::size_t scheduler_size = 0;
#endif

std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// The fiber that runs or is about to, for the first instructions on a new stack.
Fiber* starting = nullptr;

}  // namespace

Stack::Stack(std::size_t offset) : size_(kStackBytes - offset) {
  void* memory = mmap(nullptr, page() + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page(), PROT_NONE);
  bottom_ = static_cast<char*>(memory) + page();
}

Stack::~Stack() { munmap(bottom_ - page(), page() + kStackBytes); }

void Stack::clear() {
#if defined(PACKED_SS_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(bottom_, size_);
#endif
}

void Fiber::start(Stack& stack, Entry entry, void* argument) {
  stack_ = &stack;
  entry_ = entry;
  argument_ = argument;
#if defined(__x86_64__)
  // Six registers, the address to return to, and one more word, which a caller would have left: a function finds the stack
  // pointer at 8 mod 16.
  auto top = reinterpret_cast<std::uintptr_t>(stack.bottom() + stack.size()) & ~std::uintptr_t{15};
  void** frame = reinterpret_cast<void**>(top) - 8;
  for (int i = 0; i < 8; ++i) frame[i] = nullptr;
  frame[6] = reinterpret_cast<void*>(+[] { begin(starting); });
  here_ = frame;
#else
  getcontext(&here_);
  here_.uc_stack.ss_sp = stack.bottom();
  here_.uc_stack.ss_size = stack.size();
  here_.uc_link = nullptr;
  makecontext(&here_, +[] { begin(starting); }, 0);
#endif
}

void Fiber::begin(Fiber* fiber) {
#if defined(PACKED_SS_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
  fiber->entry_(fiber->argument_);
  std::abort();  // an entry ends in finish()
}

void Fiber::resume() {
  starting = this;
#if defined(PACKED_SS_ASAN)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_->bottom(), stack_->size());
#endif
#if defined(PACKED_SS_TSAN)
  scheduler_identity = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(identity_, kNoOrder);
#endif
#if defined(__x86_64__)
  packed_ss_switch_stack(&scheduler_, here_);
#else
  swapcontext(&scheduler_, &here_);
#endif
#if defined(PACKED_SS_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::leave(void** fake_stack) {
#if defined(PACKED_SS_ASAN)
  __sanitizer_start_switch_fiber(fake_stack, scheduler_bottom, scheduler_size);
#else
  static_cast<void>(fake_stack);
#endif
#if defined(PACKED_SS_TSAN)
  __tsan_switch_to_fiber(scheduler_identity, kNoOrder);
#endif
#if defined(__x86_64__)
  packed_ss_switch_stack(&here_, scheduler_);
#else
  swapcontext(&here_, &scheduler_);
#endif
}

void Fiber::suspend() {
  void* fake_stack = nullptr;
  leave(&fake_stack);
#if defined(PACKED_SS_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack, &scheduler_bottom, &scheduler_size);
#endif
}

void Fiber::finish() {
  leave(nullptr);
  std::abort();
}

#if defined(PACKED_SS_TSAN)
void Fiber::create_identity() { identity_ = __tsan_create_fiber(0); }
void Fiber::destroy_identity() {
  __tsan_destroy_fiber(identity_);
  identity_ = nullptr;
}
void Fiber::leave_identity() { __tsan_switch_to_fiber(scheduler_identity, kNoOrder); }
void Fiber::take_identity() { __tsan_switch_to_fiber(identity_, kNoOrder); }
void release(std::uint64_t* token) { __tsan_release(token); }
void acquire(std::uint64_t* token) { __tsan_acquire(token); }
#else
void Fiber::create_identity() {}
void Fiber::destroy_identity() {}
void Fiber::leave_identity() {}
void Fiber::take_identity() {}
#endif

}  // namespace packed_ss::host_cuda
