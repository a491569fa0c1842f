// One block of a grid: its threads as fibers, the barriers and warp operations at which they meet, its shared memory.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fiber.h"
#include "host_cuda.h"

namespace packed_ss::host_cuda {

constexpr unsigned kWarp = 32;

enum class State : std::uint8_t { kNotStarted, kRunnable, kWaiting, kExited };

// Where a thread waits, and what it brings.
struct Wait {
  Op op;
  unsigned mask;
  std::uint64_t value;
  int operand;
  int width;
  Where where;
};

bool is_barrier(Op op);  // of the block; others are a warp's
bool same_location(const Wait& a, const Wait& b);
std::string location(Where where);       // file:line
std::string describe(const Wait& wait);  // the operation, its line and its mask

struct Thread {
  Fiber fiber;
  std::unique_ptr<Stack> stack;
  uint3 index;
  unsigned id;  // x + y * size x + z * size x * size y
  State state;
  Wait wait;
  std::uint64_t result;
  long atomics;
  std::uint64_t* meeting;              // orders memory between those who wait together
  std::uint64_t* fence;                // of the last __threadfence
  std::vector<std::uint64_t*> unread;  // fences before the values that atomics have returned, since this thread's last fence
};

// Random numbers for the order of blocks and threads; seed 0 keeps everything in ascending order.
class Order {
 public:
  void seed(std::uint64_t seed) { state_ = seed; }
  bool shuffles() const { return state_ != 0; }
  std::uint64_t next();
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next() % i]);
  }

 private:
  std::uint64_t state_ = 0;
};

// A launch, as long as it runs. The tokens order memory for ThreadSanitizer (fiber.h).
struct Launch {
  const char* name;
  Body body;
  const void* context;
  std::size_t dynamic_bytes;
  Order& order;
  std::uint64_t finished = 0;                                           // what all threads did comes before the end of the launch
  std::deque<std::uint64_t> tokens;                                     // one for every meeting and every fence
  std::unordered_map<const void*, std::vector<std::uint64_t*>> fences;  // those before the values at an address
  std::vector<std::unique_ptr<Stack>> stacks;                           // free ones
};

// Where races are checked, no two blocks of a launch may share a Block, and all live until it ends: reuse would order them.
class Block {
 public:
  Block(Launch& launch, dim3 size);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void run();  // all threads from start to end; throws Fault

  // These are called by the running thread.
  std::uint64_t collective(const Wait& wait);
  void* static_shared(const void* key, const char* name, std::size_t bytes, std::size_t alignment);
  void* dynamic_shared();
  void before_atomic(const void* address, Where where);
  void fence();
  [[noreturn]] void fail(const std::string& reason) const;
  unsigned running() const { return current_->id; }

 private:
  struct Shared {
    const void* key;
    std::string name;
    std::size_t bytes;
    char* memory;  // between two guards
    std::uint64_t token;
  };

  static void enter(void* block);
  bool run_ahead();
  bool step(unsigned id);
  void resume(Thread& thread);
  void yield();
  std::string report() const;
  [[noreturn]] void stalled() const;

  void* shared(const void* key, const char* name, std::size_t bytes, std::size_t alignment);
  void check_guards() const;
  void free_shared();

  const Thread* lane(const Thread& of, unsigned number) const;
  std::uint64_t* find_meeting(const Thread& thread);
  bool is_complete(const Thread& arrived) const;
  void complete(const Thread& arrived);
  unsigned source_lane(const Thread& thread) const;

  Launch& launch_;
  std::vector<Thread> threads_;
  std::vector<unsigned> sequence_;
  std::deque<Shared> shared_;
  Thread* current_ = nullptr;
  unsigned alive_ = 0;
  unsigned at_barrier_ = 0;
  std::exception_ptr failure_;
};

}  // namespace packed_ss::host_cuda
