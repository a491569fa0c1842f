// Fibers: functions with stacks of their own that hand control to a scheduler and back, on one thread of the system.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace packed_ss::host_cuda {

// Memory for one fiber at a time, with an inaccessible page below it.
class Stack {
 public:
  explicit Stack(std::size_t offset);  // bytes left free at the top, so that stacks do not share the same cache sets
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void clear();  // forgets the frames of a fiber that was dropped (AddressSanitizer keeps marks between variables)
  char* bottom() const { return bottom_; }
  std::size_t size() const { return size_; }

 private:
  char* bottom_;
  std::size_t size_;
};

// One at a time runs; the scheduler is whoever calls resume. A fiber that is never finished may be dropped: what stands on
// its stack is forgotten, not destroyed.
class Fiber {
 public:
  using Entry = void (*)(void* argument);

  // Prepares to run entry(argument), which must end in finish().
  void start(Stack& stack, Entry entry, void* argument);
  void resume();               // scheduler: runs the fiber until it suspends or finishes
  void suspend();              // fiber: back to the scheduler, until resumed
  [[noreturn]] void finish();  // fiber: back to the scheduler for good

  // ThreadSanitizer knows a fiber as a thread; these are empty without it. What happened before `create_identity` is ordered
  // before the fiber, and nothing else is: switching orders no memory.
  void create_identity();
  void destroy_identity();
  void leave_identity();  // fiber: what follows is the scheduler's doing
  void take_identity();   // fiber: and what follows is its own again

 private:
  static void begin(Fiber* fiber);
  void leave(void** fake_stack);

  Stack* stack_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  void* identity_ = nullptr;
#if defined(__x86_64__)
  void* here_ = nullptr;
  void* scheduler_ = nullptr;
#else
  ucontext_t here_, scheduler_;
#endif
};

// Book-keeping on a fiber's stack that is nobody's access to memory, for ThreadSanitizer.
class Unobserved {
 public:
  explicit Unobserved(Fiber& fiber) : fiber_(fiber) { fiber_.leave_identity(); }
  ~Unobserved() { fiber_.take_identity(); }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

 private:
  Fiber& fiber_;
};

// Order of memory between fibers, for ThreadSanitizer: everything that a fiber did before release(token) comes before what
// another does after acquire(token). Empty without it.
#if defined(PACKED_SS_TSAN)
constexpr bool kChecksRaces = true;
void release(std::uint64_t* token);
void acquire(std::uint64_t* token);
#else
constexpr bool kChecksRaces = false;
inline void release(std::uint64_t*) {}
inline void acquire(std::uint64_t*) {}
#endif

}  // namespace packed_ss::host_cuda
