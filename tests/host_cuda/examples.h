// Small kernels that use the host execution of CUDA sources, correct and broken.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace packed_ss::examples {

// What is wrong with the argmax kernel.
enum class Mistake : int {
  kNone,
  kNoBarrier,       // another warp's shared memory is read without a barrier between
  kShuffle,         // a shuffle stands where __syncwarp is needed
  kNoReleaseFence,  // the ticket is taken without a fence after the partial result
  kNoAcquireFence,  // and without one before the partial results are read
  kPlainTicket,     // the ticket is not atomic
  kSharedOverrun,   // a write past the end of static shared memory
  kDynamicOverrun,  // and of dynamic shared memory
  kGlobalOverrun,   // a read past the end of a row
  kOverflow,        // an overflow of a signed integer
  kCount
};

// argmax of every row, the lowest id on ties, split over `splits` blocks a row of which the last one combines.
struct Argmax {
  const float* scores;  // [rows, size]
  std::int64_t rows;
  std::int64_t size;
  std::int64_t splits;
  unsigned long long* partial;  // [rows, splits]
  unsigned* ticket;             // [rows], zero before and after
  std::int32_t* id;             // [rows]
  Mistake mistake;
};
int launch_argmax(const Argmax& args, CUstream_st* stream);

// Where threads do not meet as they should.
enum class Meeting : int {
  kEverybody,             // nothing is wrong
  kSomeSkipBarrier,       // half of the block goes on to the end
  kTwoBarriers,           // each half has a barrier of its own
  kExitedLane,            // a full mask after half of the warp has left
  kMissingLane,           // a full mask in a block of 16 threads
  kOutsideMask,           // a shuffle reads from a lane that is not in the mask
  kNotInMask,             // a thread calls with a mask that leaves itself out
  kDifferentCollectives,  // half of the warp shuffles, half votes, all with a full mask
  kDeadlock,              // a lane waits for one that waits at a barrier
  kSpin,                  // a thread waits for a store that nobody does
  kTrap,
  kCount
};

struct Meet {
  Meeting meeting;
  int threads;
  std::int32_t* out;  // [threads]
};
int launch_meet(const Meet& args, CUstream_st* stream);

// Every warp operation once, of which tests know the results.
struct Warp {
  const std::int32_t* in;  // [threads], a multiple of 32
  int threads;
  std::int32_t* out;  // [kWarpResults, threads]
};
constexpr int kWarpResults = 18;
int launch_warp(const Warp& args, CUstream_st* stream);

}  // namespace packed_ss::examples
