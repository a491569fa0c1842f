// Barriers and warp operations: who meets whom, and with what result.
#include <algorithm>
#include <cstdio>

#include "block.h"

namespace packed_ss::host_cuda {
namespace {

bool orders_memory(Op op) { return op <= Op::kSyncWarp; }

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"__syncthreads",     "__syncthreads_count", "__syncthreads_and", "__syncthreads_or",
                                    "__syncwarp",        "__shfl_sync",         "__shfl_up_sync",    "__shfl_down_sync",
                                    "__shfl_xor_sync",   "__ballot_sync",       "__any_sync",        "__all_sync",
                                    "__reduce_add_sync", "__reduce_min_sync",   "__reduce_max_sync", "__reduce_min_sync",
                                    "__reduce_max_sync", "__reduce_and_sync",   "__reduce_or_sync",  "__reduce_xor_sync"};
  return kNames[static_cast<int>(op)];
}

std::string hex(unsigned mask) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

}  // namespace

bool is_barrier(Op op) { return op <= Op::kBarrierOr; }

bool same_location(const Wait& a, const Wait& b) {
  return a.op == b.op && a.mask == b.mask && a.where.line == b.where.line && std::strcmp(a.where.file, b.where.file) == 0;
}

std::string location(Where where) {
  const std::string file = where.file;
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line);
}

std::string describe(const Wait& wait) {
  const std::string mask = is_barrier(wait.op) ? "" : ", mask " + hex(wait.mask);
  return std::string(name_of(wait.op)) + " (" + location(wait.where) + mask + ")";
}

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
    if (together && other.state == State::kWaiting && same_location(other.wait, thread.wait)) return other.meeting;
  }
  return &launch_.tokens.emplace_back(0);
}

// Those that do not come, or come to another line, leave the others waiting, until nobody moves: then everybody's line is
// known.
bool Block::is_complete(const Thread& arrived) const {
  if (is_barrier(arrived.wait.op)) {
    return at_barrier_ == threads_.size() && std::all_of(threads_.begin(), threads_.end(), [&](const Thread& other) {
             return same_location(other.wait, arrived.wait);
           });
  }
  for (int number = kWarp - 1; number >= 0; --number) {
    if ((arrived.wait.mask >> number & 1) == 0) continue;
    const Thread* other = lane(arrived, static_cast<unsigned>(number));
    if (other == nullptr || other->state != State::kWaiting || !same_location(other->wait, arrived.wait)) return false;
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

}  // namespace packed_ss::host_cuda
