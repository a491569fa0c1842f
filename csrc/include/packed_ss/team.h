// Who works on one sequence: one thread, or the threads of a block or a warp.
//
// A team's type has
//   int lane() const, int lanes() const     lane 0 ... lanes - 1
//   void sync() const                       every lane waits, and sees what the others wrote before
//   T min(T x) const                        the least x of all lanes, for all of them; waits as sync does
//   Counted count(bool flag) const          flags of lower lanes, and of all; waits as sync does
// All lanes of a team make the same calls. Nothing is read or written out of the buffers, whatever the state holds.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"

namespace packed_ss {

struct Counted {
  std::int32_t before;
  std::int32_t total;
};

// The team of one thread.
struct OneLane {
  PACKED_SS_HOST_DEVICE int lane() const { return 0; }
  PACKED_SS_HOST_DEVICE int lanes() const { return 1; }
  PACKED_SS_HOST_DEVICE void sync() const {}
  template <class T>
  PACKED_SS_HOST_DEVICE T min(T x) const {
    return x;
  }
  PACKED_SS_HOST_DEVICE Counted count(bool flag) const { return {0, flag ? 1 : 0}; }
};

}  // namespace packed_ss
