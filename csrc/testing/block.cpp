#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace packed_ss::host_cuda {
namespace {

constexpr int kPoison = 0xff;  // NaN in every float format, -1 in every integer
constexpr std::size_t kStaticShared = 48 << 10;
constexpr long kMaxAtomics = 1 << 20;  // by one thread: no kernel here comes near, a spinning one does
constexpr long kAtomicsPerTurn = 64;   // then others run, so that waiting for one of them works

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kGuard = 0;  // AddressSanitizer has its own
#else
constexpr std::size_t kGuard = 64;
#endif
constexpr unsigned char kGuardByte = 0xa7;

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
    if (launch_.order.shuffles()) {
      launch_.order.shuffle(sequence_);
      moved = run_ahead();
    }
    for (const unsigned id : sequence_) moved |= step(id);
    if (!moved) stalled();
  }
  check_guards();
}

// Some warps, chosen at random, get as far ahead of the others as they can without them.
bool Block::run_ahead() {
  constexpr int kMostTurns = 100;  // where they wait for memory that another has to change
  const std::uint64_t chosen = launch_.order.next();
  bool moved = false;
  bool goes_on = true;
  for (int turn = 0; turn < kMostTurns && goes_on; ++turn) {
    goes_on = false;
    for (const unsigned id : sequence_) {
      if (chosen >> (id / kWarp) & 1) goes_on |= step(id);
    }
    moved |= goes_on;
  }
  return moved;
}

// Lets a thread run until it waits or yields. Returns whether it could.
bool Block::step(unsigned id) {
  Thread& thread = threads_[id];
  if (thread.state == State::kWaiting || thread.state == State::kExited) return false;
  resume(thread);
  if (failure_) std::rethrow_exception(failure_);
  return true;
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

// ---- Faults
// ----------------------------------------------------------------------------------------------------------------------
void Block::fail(const std::string& reason) const {
  const std::string at =
      std::to_string(block_index.x) + ", " + std::to_string(block_index.y) + ", " + std::to_string(block_index.z);
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
      if (names_back && !same_location(other->wait, wait)) {
        fail("different collectives meet, " + describe(wait) + " and " + describe(other->wait));
      }
    }
  }
  if (warp != nullptr) fail("deadlock, nobody can go on");
  fail("divergent barrier, not all threads of the block reached " + describe(barrier->wait));
}

// ---- Shared memory
// -----------------------------------------------------------------------------------------------------------------
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

// ---- Atomics and fences
// --------------------------------------------------------------------------------------------------------------
void Block::before_atomic(const void* address, Where where) {
  Thread& self = *current_;
  if (++self.atomics > kMaxAtomics) {
    fail("deadlock, thread " + std::to_string(self.id) + " spins on an atomic (" + location(where) + ")");
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
