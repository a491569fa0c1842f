#include "cpu/resolve.h"
#include "packed_ss/commit.h"

namespace packed_ss::cpu {

void pack_block(const DecodeState& state, const NextRows& next) {
  const std::int64_t rows = next.shape.rows();
  for (std::int64_t i = 0; i < state.sequences; ++i) {
    for (std::int64_t r = 0; r < rows; ++r) write_row(state, next, i, r);
  }
}

}  // namespace packed_ss::cpu
