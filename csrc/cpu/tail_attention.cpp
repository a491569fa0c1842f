#include "cpu/tail_attention.h"

#include <algorithm>

namespace packed_ss::cpu {

namespace portable {
extern const TailAttentionKernel kTailAttention;
}
#ifdef PACKED_SS_X86_KERNELS
namespace avx2 {
extern const TailAttentionKernel kTailAttention;
}
namespace avx512 {
extern const TailAttentionKernel kTailAttention;
}
#endif

const TailAttentionKernel& tail_attention_kernel([[maybe_unused]] InstructionSet set) {
#ifdef PACKED_SS_X86_KERNELS
  if (set == InstructionSet::kAvx512) return avx512::kTailAttention;
  if (set == InstructionSet::kAvx2) return avx2::kTailAttention;
#endif
  return portable::kTailAttention;
}

std::int64_t visible_end(const TailAttention& args, std::int64_t sequence) {
  const std::int32_t* words = args.tail_mask + sequence * args.mask_sequence;
  for (std::int64_t word = args.words - 1; word >= 0; --word) {
    std::uint32_t any = 0;
    for (std::int64_t row = 0; row < args.rows; ++row) any |= static_cast<std::uint32_t>(words[row * args.words + word]);
    if (any != 0) {
      const std::int64_t bits = 32 * (word + 1) - __builtin_clz(any);
      return std::min(args.slots, args.cache_len[sequence] + bits);
    }
  }
  return args.cache_len[sequence];
}

}  // namespace packed_ss::cpu
