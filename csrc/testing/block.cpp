#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace packed_ss::host_cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr int kPoison = 0xff;                     // NaN in every float format, -1 in every integer
constexpr std::size_t kStaticShared = 48 << 10;
constexpr long kMaxAtomics = 1 << 20;             // by one thread: no kernel here comes near, a spinning one does
constexpr long kAtomicsPerTurn = 64;              // then others run, so that waiting for one of them works

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kGuard = 0;  // AddressSanitizer has its own
#else
constexpr std::size_t kGuard = 64;
#endif
constexpr unsigned char kGuardByte = 0xa7;

bool is_barrier(Op op) { return op <= Op::kBarrierOr; }
bool orders_memory(Op op) { return op <= Op::kSyncWarp; }
bool same_place(const Wait& a, const Wait& b) {
  return a.op == b.op && a.mask == b.mask && a.where.line == b.where.line && std::strcmp(a.where.file, b.where.file) == 0;
}

const char* name_of(Op op) {
  constexpr const char* kNames[] = {
      "__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or", "__syncwarp", "__shfl_sync",
      "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync", "__any_sync", "__all_sync",
      "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync", "__reduce_max_sync",
      "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync"};
  return kNames[static_cast<int>(op)];
}

std::string place(Where where) {
  const std::string file = where.file;
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line);
}

std::string hex(unsigned mask) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

std::string describe(const Wait& wait) {
  const std::string mask = is_barrier(wait.op) ? "" : ", mask " + hex(wait.mask);
  return std::string(name_of(wait.op)) + " (" + place(wait.where) + mask + ")";
}

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

}  // namespace

std::uint64_t Order::next() {  // splitmix64
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Block::Block(Launch& launch, dim3 size) : launch_(launch), threads_(std::size_t{size.x} * size.y * size.z) {
  for (unsigned id = 0; id < threads_.size(); ++id) {
    threads_[id].id = id;
    threads_[id].index = {id % size.x, id / size.x % size.y, id / size.x / size.y};
    sequence_.push_back(id);
  }
}

Block::~Block() {
  for (Thread& thread : threads_) {
    if (kChecksRaces) thread.fiber.destroy_identity();
    if (thread.stack) {
      thread.stack->clear();
      launch_.stacks.push_back(std::move(thread.stack));
    }
  }
  free_shared();
}

void Block::run() {
  free_shared();
  alive_ = static_cast<unsigned>(threads_.size());
  at_barrier_ = 0;
  for (Thread& thread : threads_) {
    thread.state = State::kNotStarted;
    thread.atomics = 0;
    thread.fence = nullptr;
    if (kChecksRaces) {  // before any of them runs
      thread.stack = std::make_unique<Stack>(0);
      thread.fiber.create_identity();
    }
  }
  while (alive_ > 0) {
    bool moved = false;
    if (launch_.order.shuffles()) launch_.order.shuffle(sequence_);
    for (const unsigned id : sequence_) {
      Thread& thread = threads_[id];
      if (thread.state == State::kWaiting || thread.state == State::kExited) continue;
      moved = true;
      resume(thread);
      if (failure_) std::rethrow_exception(failure_);
    }
    if (!moved) stalled();
  }
  check_guards();
}

void Block::resume(Thread& thread) {
  if (thread.state == State::kNotStarted) {
    // A thread that never waits gives its stack, still in the cache, to the next one.
    if (!thread.stack) {
      if (launch_.stacks.empty()) launch_.stacks.push_back(std::make_unique<Stack>(thread.id * 192 % 4096));
      thread.stack = std::move(launch_.stacks.back());
      launch_.stacks.pop_back();
    }
    thread.state = State::kRunnable;
    thread.fiber.start(*thread.stack, &Block::enter, this);
  }
  current_ = &thread;
  thread_index = thread.index;
  thread.fiber.resume();
  if (thread.state == State::kExited && !kChecksRaces) launch_.stacks.push_back(std::move(thread.stack));
}

void Block::enter(void* block) {
  auto& self = *static_cast<Block*>(block);
  Thread& thread = *self.current_;
  try {
    self.launch_.body(self.launch_.context);
  } catch (...) {
    self.failure_ = std::current_exception();
  }
  release(&self.launch_.finished);
  thread.state = State::kExited;
  --self.alive_;
  thread.fiber.finish();
}

void Block::yield() { current_->fiber.suspend(); }

// ---- Barriers and warp operations --------------------------------------------------------------------------------------------
std::uint64_t Block::collective(const Wait& wait) {
  Thread& self = *current_;
  {
    const Unobserved unobserved(self.fiber);
    if (!is_barrier(wait.op) && (wait.mask >> (self.id % kWarp) & 1) == 0) {
      fail("thread " + std::to_string(self.id) + " calls " + describe(wait) + " with a mask that leaves itself out");
    }
    if (wait.width < 1 || wait.width > static_cast<int>(kWarp) || (wait.width & (wait.width - 1)) != 0) {
      fail("the width of " + describe(wait) + " must be a power of two up to 32, got " + std::to_string(wait.width));
    }
    self.wait = wait;
    self.meeting = kChecksRaces && orders_memory(wait.op) ? find_meeting(self) : nullptr;
  }
  if (self.meeting != nullptr) release(self.meeting);
  bool everybody;
  {
    const Unobserved unobserved(self.fiber);
    self.state = State::kWaiting;
    if (is_barrier(wait.op)) ++at_barrier_;
    everybody = is_complete(self);
    if (everybody) complete(self);
  }
  if (!everybody) self.fiber.suspend();
  if (self.meeting != nullptr) acquire(self.meeting);
  return self.result;
}

const Thread* Block::lane(const Thread& of, unsigned number) const {
  const std::size_t id = of.id / kWarp * kWarp + number;
  return id < threads_.size() ? &threads_[id] : nullptr;
}

std::uint64_t* Block::find_meeting(const Thread& thread) {
  for (const Thread& other : threads_) {
    const bool together = is_barrier(thread.wait.op) || other.id / kWarp == thread.id / kWarp;
    if (together && other.state == State::kWaiting && same_place(other.wait, thread.wait)) return other.meeting;
  }
  return &launch_.tokens.emplace_back(0);
}

// Those that do not come, or come to another place, leave the others waiting, until nobody moves: then everybody's place is known.
bool Block::is_complete(const Thread& arrived) const {
  if (is_barrier(arrived.wait.op)) {
    return at_barrier_ == threads_.size() && std::all_of(threads_.begin(), threads_.end(), [&](const Thread& other) {
             return same_place(other.wait, arrived.wait);
           });
  }
  for (int number = kWarp - 1; number >= 0; --number) {
    if ((arrived.wait.mask >> number & 1) == 0) continue;
    const Thread* other = lane(arrived, static_cast<unsigned>(number));
    if (other == nullptr || other->state != State::kWaiting || !same_place(other->wait, arrived.wait)) return false;
  }
  return true;
}

// The lane of the warp from which a shuffle of `thread` reads.
unsigned Block::source_lane(const Thread& thread) const {
  const Wait& wait = thread.wait;
  const int own = static_cast<int>(thread.id % kWarp);
  const int first = own & ~(wait.width - 1);
  const int last = first + wait.width - 1;
  int source = own;
  switch (wait.op) {
    case Op::kShuffle: source = first + (wait.operand & (wait.width - 1)); break;
    case Op::kShuffleUp: source = own - (wait.operand & 31) < first ? own : own - (wait.operand & 31); break;
    case Op::kShuffleDown: source = own + (wait.operand & 31) > last ? own : own + (wait.operand & 31); break;
    default: source = (own ^ (wait.operand & 31)) > last ? own : own ^ (wait.operand & 31); break;
  }
  if ((wait.mask >> source & 1) == 0) {
    fail("thread " + std::to_string(thread.id) + " reads lane " + std::to_string(source) + " in " + describe(wait) +
         ", a source lane outside the mask");
  }
  return static_cast<unsigned>(source);
}

void Block::complete(const Thread& arrived) {
  const Wait& wait = arrived.wait;
  std::vector<Thread*> present;
  if (is_barrier(wait.op)) {
    at_barrier_ = 0;
    for (Thread& thread : threads_) present.push_back(&thread);
  } else {
    for (unsigned number = 0; number < kWarp; ++number) {
      if (wait.mask >> number & 1) present.push_back(const_cast<Thread*>(lane(arrived, number)));
    }
  }
  std::uint64_t result = present[0]->wait.value;
  const auto reduce = [&](auto combine) {
    for (std::size_t i = 1; i < present.size(); ++i) {
      result = combine(static_cast<std::uint32_t>(result), static_cast<std::uint32_t>(present[i]->wait.value));
    }
  };
  const auto is_signed_less = [](std::uint32_t a, std::uint32_t b) { return static_cast<int>(a) < static_cast<int>(b); };
  switch (wait.op) {
    case Op::kBarrier:
    case Op::kSyncWarp: break;
    case Op::kBarrierCount:
    case Op::kReduceAdd: reduce([](std::uint32_t a, std::uint32_t b) { return a + b; }); break;
    case Op::kBarrierAnd:
    case Op::kAll:
    case Op::kReduceAnd: reduce([](std::uint32_t a, std::uint32_t b) { return a & b; }); break;
    case Op::kBarrierOr:
    case Op::kAny:
    case Op::kReduceOr: reduce([](std::uint32_t a, std::uint32_t b) { return a | b; }); break;
    case Op::kReduceXor: reduce([](std::uint32_t a, std::uint32_t b) { return a ^ b; }); break;
    case Op::kReduceMin: reduce([](std::uint32_t a, std::uint32_t b) { return std::min(a, b); }); break;
    case Op::kReduceMax: reduce([](std::uint32_t a, std::uint32_t b) { return std::max(a, b); }); break;
    case Op::kReduceMinSigned: reduce([&](std::uint32_t a, std::uint32_t b) { return is_signed_less(b, a) ? b : a; }); break;
    case Op::kReduceMaxSigned: reduce([&](std::uint32_t a, std::uint32_t b) { return is_signed_less(a, b) ? b : a; }); break;
    case Op::kBallot:
      result = 0;
      for (const Thread* thread : present) result |= thread->wait.value << (thread->id % kWarp);
      break;
    case Op::kShuffle:
    case Op::kShuffleUp:
    case Op::kShuffleDown:
    case Op::kShuffleXor:
      for (Thread* thread : present) thread->result = lane(*thread, source_lane(*thread))->wait.value;
      for (Thread* thread : present) thread->state = State::kRunnable;
      return;
  }
  for (Thread* thread : present) {
    thread->result = result;
    thread->state = State::kRunnable;
  }
}

// ---- Faults ----------------------------------------------------------------------------------------------------------------------
void Block::fail(const std::string& reason) const {
  const std::string at = std::to_string(block_index.x) + ", " + std::to_string(block_index.y) + ", " + std::to_string(block_index.z);
  throw Fault(std::string(launch_.name) + ", block (" + at + "): " + reason + "." + report());
}

std::string Block::report() const {
  const auto status = [this](const Thread& thread) -> std::string {
    if (thread.state == State::kExited) return "exited";
    if (thread.state == State::kWaiting) return "waiting at " + describe(thread.wait);
    return &thread == current_ ? "running" : "ready to run";
  };
  std::vector<std::pair<std::string, std::string>> lines;  // status, threads
  for (std::size_t first = 0; first < threads_.size();) {
    const std::string common = status(threads_[first]);
    std::size_t end = first + 1;
    while (end < threads_.size() && status(threads_[end]) == common) ++end;
    const std::string range = std::to_string(first) + (end > first + 1 ? "-" + std::to_string(end - 1) : "");
    const auto known = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.first == common; });
    if (known == lines.end()) {
      lines.emplace_back(common, range);
    } else {
      known->second += ", " + range;
    }
    first = end;
  }
  std::string text;
  for (const auto& [common, ranges] : lines) text += "\n  threads " + ranges + ": " + common;
  return text;
}

void Block::stalled() const {
  const Thread* barrier = nullptr;
  const Thread* warp = nullptr;
  for (const Thread& thread : threads_) {
    if (thread.state != State::kWaiting) continue;
    const Wait& wait = thread.wait;
    (is_barrier(wait.op) ? barrier : warp) = &thread;
    if (is_barrier(wait.op)) continue;
    for (unsigned number = 0; number < kWarp; ++number) {
      if ((wait.mask >> number & 1) == 0) continue;
      const Thread* other = lane(thread, number);
      if (other == nullptr) fail("the mask of " + describe(wait) + " names lanes that the block does not have");
      if (other->state == State::kExited) fail("the mask of " + describe(wait) + " names lanes that have exited");
      const bool names_back = !is_barrier(other->wait.op) && (other->wait.mask >> (thread.id % kWarp) & 1);
      if (names_back && !same_place(other->wait, wait)) {
        fail("different collectives meet, " + describe(wait) + " and " + describe(other->wait));
      }
    }
  }
  if (warp != nullptr) fail("deadlock, nobody can go on");
  fail("divergent barrier, not all threads of the block reached " + describe(barrier->wait));
}

// ---- Shared memory -----------------------------------------------------------------------------------------------------------------
void* Block::static_shared(const void* key, const char* name, std::size_t bytes, std::size_t alignment) {
  return shared(key, name, bytes, alignment);
}

void* Block::dynamic_shared() { return shared(this, "dynamic shared memory", launch_.dynamic_bytes, 16); }

void* Block::shared(const void* key, const char* name, std::size_t bytes, std::size_t alignment) {
  Shared* found = nullptr;
  {
    const Unobserved unobserved(current_->fiber);
    std::size_t total = bytes;
    for (Shared& shared : shared_) {
      if (shared.key == key) found = &shared;
      if (shared.key != this) total += shared.bytes;
    }
    if (found == nullptr) {
      if (key != this && total > kStaticShared) fail("more than 48 KiB of static shared memory, with " + std::string(name));
      void* memory = nullptr;
      if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes + 2 * kGuard) != 0) throw std::bad_alloc();
      std::memset(memory, kGuardByte, bytes + 2 * kGuard);
      char* inner = static_cast<char*>(memory) + kGuard;
      std::memset(inner, kPoison, bytes);
      found = &shared_.emplace_back(Shared{key, name, bytes, inner, 0});
      release(&found->token);
    }
  }
  acquire(&found->token);
  return found->memory;
}

void Block::check_guards() const {
  for (const Shared& shared : shared_) {
    for (std::size_t i = 0; i < kGuard; ++i) {
      const auto before = static_cast<unsigned char>(shared.memory[-1 - static_cast<std::ptrdiff_t>(i)]);
      const auto after = static_cast<unsigned char>(shared.memory[shared.bytes + i]);
      if (before != kGuardByte || after != kGuardByte) {
        fail("shared memory overrun, a write " + std::string(after != kGuardByte ? "past the end" : "before the start") + " of " +
             shared.name + " (" + std::to_string(shared.bytes) + " bytes)");
      }
    }
  }
}

void Block::free_shared() {
  for (const Shared& shared : shared_) std::free(shared.memory - kGuard);
  shared_.clear();
}

// ---- Atomics and fences --------------------------------------------------------------------------------------------------------------
void Block::before_atomic(const void* address, Where where) {
  Thread& self = *current_;
  if (++self.atomics > kMaxAtomics) {
    fail("deadlock, thread " + std::to_string(self.id) + " spins on an atomic (" + place(where) + ")");
  }
  if (self.atomics % kAtomicsPerTurn == 0 || (launch_.order.shuffles() && launch_.order.next() % 4 == 0)) yield();
  if (kChecksRaces) {
    const Unobserved unobserved(self.fiber);
    auto& fences = launch_.fences[address];
    self.unread.insert(self.unread.end(), fences.begin(), fences.end());
    if (self.fence != nullptr) fences.push_back(self.fence);
  }
}

// A fence after an atomic that read a value, and a fence before the atomic that wrote it, order what lies before the latter
// before what follows the former.
void Block::fence() {
  Thread& self = *current_;
  if (launch_.order.shuffles() && launch_.order.next() % 4 == 0) yield();
  if (!kChecksRaces) return;
  for (std::uint64_t* token : self.unread) acquire(token);
  {
    const Unobserved unobserved(self.fiber);
    self.unread.clear();
    self.fence = &launch_.tokens.emplace_back(0);
  }
  release(self.fence);
}

}  // namespace packed_ss::host_cuda
