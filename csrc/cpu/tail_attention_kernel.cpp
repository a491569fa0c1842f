// The body of tail_attention: an online softmax over blocks of keys (Milakov and Gimelshein, 2018; Dao et al., 2022).
//
// Compiled once for each instruction set: PACKED_SS_ISA names the namespace, and the compiler's flags decide what the vector
// types become. Nothing here may have external linkage beside kTailAttention, and no inline function of the standard library
// is called: the linker would keep one copy of it, possibly one that a CPU cannot run.
#include <cstdint>

#include "cpu/narrow.h"
#include "cpu/tail_attention.h"
#include "cpu/tail_attention_layout.h"
#include "cpu/vectors.h"

namespace packed_ss::cpu::PACKED_SS_ISA {
extern const TailAttentionKernel kTailAttention;
namespace {

using std::int64_t;
using std::uint32_t;

// Scores of kKeyTile keys: out[key][lane] = sum over d of keys[key][d] * q[d][lane].
template <int kN, typename A>
PACKED_SS_HOST_DEVICE void score_tile(const A* q, const A* keys, int64_t size, A* out) {
  using V = Real<A>;
  constexpr int kLanes = kN * kWidth<A>;
  V sum[kKeyTile][kN] = {};
  for (int64_t d = 0; d < size; ++d) {
    V x[kN];
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) x[j] = load<V>(q + d * kLanes + j * kWidth<A>);
#pragma GCC unroll 16
    for (int i = 0; i < kKeyTile; ++i) {
      const V key = broadcast(keys[i * size + d]);
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) sum[i][j] += key * x[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kKeyTile; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) store(out + i * kLanes + j * kWidth<A>, sum[i][j]);
  }
}

// Weighted values: out[d][lane] = out[d][lane] * decay[lane] + sum over keys of values[key][d] * weights[key][lane], kDimTile d.
template <int kN, typename A>
PACKED_SS_HOST_DEVICE void value_tile(const A* weights, const A* values, int64_t count, const Real<A>* decay, A* out) {
  using V = Real<A>;
  constexpr int kLanes = kN * kWidth<A>;
  V sum[kDimTile][kN];
#pragma GCC unroll 16
  for (int i = 0; i < kDimTile; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) sum[i][j] = load<V>(out + i * kLanes + j * kWidth<A>) * decay[j];
  }
  for (int64_t key = 0; key < count; ++key) {
    V w[kN];
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) w[j] = load<V>(weights + key * kLanes + j * kWidth<A>);
#pragma GCC unroll 16
    for (int i = 0; i < kDimTile; ++i) {
      const V value = broadcast(values[key * kDimTile + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kN; ++j) sum[i][j] += value * w[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kDimTile; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kN; ++j) store(out + i * kLanes + j * kWidth<A>, sum[i][j]);
  }
}

// Visibility of the 32 slots that begin `first` slots after the cached prefix, of a row with these mask words.
PACKED_SS_HOST_DEVICE uint32_t visible_word(const std::int32_t* words, int64_t count, int64_t first) {
  if (first <= -32) return ~0u;
  if (first < 0) return static_cast<uint32_t>(words[0]) << -first | ((1u << -first) - 1u);
  const int64_t at = first >> 5;
  const std::uint64_t low = at < count ? static_cast<uint32_t>(words[at]) : 0u;
  const std::uint64_t high = at + 1 < count ? static_cast<uint32_t>(words[at + 1]) : 0u;
  return static_cast<uint32_t>((high << 32 | low) >> (first & 31));
}

// Keys and values of a block, packed; poison is null where there is none.
template <typename A>
struct Block {
  const A *keys, *values, *poison;
  int64_t count;  // a multiple of kKeyTile
};

// A block folded into the softmax of one group of kN vectors of lanes, to which all pointers belong. windows is null where
// everything is seen, else [kBlockWords] rows that are layout.lanes apart.
template <int kN, typename A>
void fold_block(const Layout<A>& layout, const Block<A>& block, const A* queries, const typename Vectors<A>::Lane* windows,
                A* scores, const State<A>& state) {
  using V = Real<A>;
  using I = Int<A>;
  constexpr int kLanes = kN * kWidth<A>;
  constexpr A kNone = -__builtin_inff();
  constexpr int kUnroll = 3;
  static_assert(kKeyTile % kUnroll == 0 && kKeyTile % 2 == 0);
  const int64_t count = block.count;
  for (int64_t i = 0; i < count; i += kKeyTile) {
    score_tile<kN>(queries, block.keys + i * layout.size, layout.size, scores + i * kLanes);
  }
  for (int64_t i = 0; block.poison != nullptr && i < count; ++i) {
    for (int64_t lane = 0; lane < kLanes; ++lane) scores[i * kLanes + lane] += block.poison[i];
  }
  V decay[kN];
  for (int j = 0; j < kN; ++j) {
    A* column = scores + j * kWidth<A>;
    if (windows != nullptr) {
      for (int64_t word = 0; word * 32 < count; ++word) {
        const I window = load<I>(windows + word * layout.lanes + j * kWidth<A>);
        for (int64_t bit = 0; bit < 32 && word * 32 + bit < count; ++bit) {
          A* at = column + (word * 32 + bit) * kLanes;
          const I seen = window & (typename Vectors<A>::Lane{1} << bit);
          store(at, seen != 0 ? load<V>(at) : broadcast(kNone));
        }
      }
    }
    const V before = load<V>(state.top + j * kWidth<A>);
    V high[kUnroll] = {before, before, before};  // independent, as each comparison waits for the one before
    for (int64_t i = 0; i < count; i += kUnroll) {
#pragma GCC unroll 8
      for (int u = 0; u < kUnroll; ++u) {
        const V score = load<V>(column + (i + u) * kLanes);
        high[u] = score > high[u] ? score : high[u];
      }
    }
    for (int u = 1; u < kUnroll; ++u) high[0] = high[u] > high[0] ? high[u] : high[0];
    const V origin = high[0] == kNone ? V{} : high[0];  // a lane that has seen nothing yet
    decay[j] = exp2_vector(before - origin);
    V sum[2] = {load<V>(state.total + j * kWidth<A>) * decay[j], V{}};
    for (int64_t i = 0; i < count; i += 2) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        A* at = column + (i + u) * kLanes;
        const V weight = exp2_vector(load<V>(at) - origin);
        store(at, weight);
        sum[u] += weight;
      }
    }
    store(state.top + j * kWidth<A>, high[0]);
    store(state.total + j * kWidth<A>, sum[0] + sum[1]);
  }
  for (int64_t d = 0; d < layout.padded_size; d += kDimTile) {
    value_tile<kN>(scores, block.values + d * kKeyBlock, count, decay, state.weighted + d * kLanes);
  }
}

// Windows of the lanes on slots [block, block + kKeyBlock), cut at end_key. Lanes past the end repeat the last.
template <typename A>
void load_windows(const TailAttention& args, const Piece& piece, const Layout<A>& layout, int64_t block,
                  typename Vectors<A>::Lane* windows) {
  const int64_t heads_per_kv = args.heads / args.kv_heads, used = piece.end_lane - piece.first_lane;
  const std::int32_t* mask = args.tail_mask + piece.sequence * args.mask_sequence;
  for (int word = 0; word < kBlockWords; ++word) {
    const int64_t slot = block + 32 * word, left = piece.end_key - slot;
    const uint32_t inside = left >= 32 ? ~0u : left <= 0 ? 0u : (1u << left) - 1u;
    int64_t row = -1;
    uint32_t bits = 0;
    for (int64_t i = 0; i < layout.lanes; ++i) {
      const int64_t lane = piece.first_lane + (i < used ? i : used - 1);
      if (lane / heads_per_kv != row) {
        row = lane / heads_per_kv;
        bits = visible_word(mask + row * args.words, args.words, slot - args.cache_len[piece.sequence]) & inside;
      }
      windows[word * layout.lanes + i] = static_cast<typename Vectors<A>::Lane>(bits);
    }
  }
}

template <class E, typename A = typename E::Value>
void attend(const TailAttention& args, const Piece& piece, void* scratch, void* state_memory) {
  using Lane = typename Vectors<A>::Lane;
  const Layout<A> layout(args, piece.end_lane - piece.first_lane);
  const auto state = State<A>::at(layout, state_memory);
  A* queries = static_cast<A*>(scratch);
  A* keys = queries + layout.queries();
  A* values = keys + layout.keys();
  A* scores = values + layout.values();
  Lane* windows = reinterpret_cast<Lane*>(scores + layout.scores());
  alignas(64) A poison[kKeyBlock];

  load_queries<E>(args, piece, layout, queries);
  for (int64_t i = 0; i < layout.lanes; ++i) {
    state.top[i] = -__builtin_inff();
    state.total[i] = 0;
  }
  for (int64_t i = 0; i < layout.padded_size * layout.lanes; ++i) state.weighted[i] = 0;

  const int64_t head = piece.kv_head * args.size;
  const auto* k_cache = static_cast<const typename E::Bits*>(args.k_cache) + piece.sequence * args.k_sequence + head;
  const auto* v_cache = static_cast<const typename E::Bits*>(args.v_cache) + piece.sequence * args.v_sequence + head;
  for (int64_t block = piece.first_key; block < piece.end_key; block += kKeyBlock) {
    const int64_t left = piece.end_key - block, count = left < kKeyBlock ? left : kKeyBlock;
    const bool prefix = count == kKeyBlock && block + kKeyBlock <= args.cache_len[piece.sequence];
    if (!prefix) load_windows(args, piece, layout, block, windows);
    bool packed = false, poisoned = false;
    for (int64_t at = 0; at < layout.lanes;) {
      const int64_t width = layout.group_width(at);
      Lane some = 0;
      for (int word = 0; !prefix && word < kBlockWords; ++word) {
        for (int64_t i = 0; i < width; ++i) some |= windows[word * layout.lanes + at + i];
      }
      if (prefix || some != 0) {
        if (!packed) {
          packed = true;
          pack_keys<E>(k_cache + block * args.k_slot, args.k_slot, count, layout.size, keys);
          poisoned = pack_values<E>(v_cache + block * args.v_slot, args.v_slot, count, layout.size, values, poison);
        }
        const auto fold = width > kWidth<A> ? fold_block<kVectors, A> : fold_block<1, A>;
        fold(layout, {keys, values, poisoned ? poison : nullptr, round_up(count, kKeyTile)}, queries + at * layout.size,
             prefix ? nullptr : windows + at, scores, state.group(layout, at));
      }
      at += width;
    }
  }
}

// The lanes of `next` merged into those of `into`, one group of `width` lanes.
template <typename A>
void merge(const Layout<A>& layout, int64_t width, const State<A>& next, const State<A>& into) {
  using V = Real<A>;
  for (int64_t i = 0; i < width; i += kWidth<A>) {
    const V a = load<V>(into.top + i), b = load<V>(next.top + i);
    const V high = b > a ? b : a;
    const V origin = high == -__builtin_inff() ? V{} : high;
    const V keep = exp2_vector(a - origin), add = exp2_vector(b - origin);
    store(into.top + i, high);
    store(into.total + i, load<V>(into.total + i) * keep + load<V>(next.total + i) * add);
    for (int64_t at = i; at < layout.padded_size * width; at += width) {
      store(into.weighted + at, load<V>(into.weighted + at) * keep + load<V>(next.weighted + at) * add);
    }
  }
}

template <class E, typename A = typename E::Value>
void finish(const TailAttention& args, const Piece& piece, void* states, int64_t stride, int64_t count) {
  const int64_t heads_per_kv = args.heads / args.kv_heads, used = piece.end_lane - piece.first_lane;
  const Layout<A> layout(args, used);
  for (int64_t at = 0; at < layout.lanes;) {
    const int64_t width = layout.group_width(at);
    const auto state = State<A>::at(layout, states).group(layout, at);
    for (int64_t s = 1; s < count; ++s) {
      merge(layout, width, State<A>::at(layout, static_cast<char*>(states) + s * stride).group(layout, at), state);
    }
    for (int64_t i = 0; i < width && at + i < used; ++i) {
      const int64_t lane = piece.first_lane + at + i, row = piece.sequence * args.rows + lane / heads_per_kv;
      const int64_t head = piece.kv_head * heads_per_kv + lane % heads_per_kv;
      auto* out = static_cast<typename E::Bits*>(args.out) + (row * args.heads + head) * args.size;
      // A lane that sees nothing has 0 / 0, one that met NaN has NaN in its total: either way all of the row is NaN.
      const A total = state.total[i];
      for (int64_t d = 0; d < layout.size; ++d) out[d] = narrow(E{}, state.weighted[d * width + i] / total);
    }
    at += width;
  }
}

// Calls f(element type).
template <typename F>
PACKED_SS_HOST_DEVICE auto with_element(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat64: return f(Float64{});
    case DType::kBFloat16: return f(BFloat16{});
    case DType::kFloat16: return f(Float16{});
    default: return f(Float32{});
  }
}

int64_t scratch_bytes(const TailAttention& args, int64_t lanes) {
  return with_element(args.dtype, [&](auto element) {
    using A = typename decltype(element)::Value;
    return Layout<A>(args, lanes).scratch() * static_cast<int64_t>(sizeof(A));
  });
}
int64_t state_bytes(const TailAttention& args, int64_t lanes) {
  return with_element(args.dtype, [&](auto element) {
    using A = typename decltype(element)::Value;
    return Layout<A>(args, lanes).state() * static_cast<int64_t>(sizeof(A));
  });
}
void attend_any(const TailAttention& args, const Piece& piece, void* scratch, void* state) {
  with_element(args.dtype, [&](auto element) { attend<decltype(element)>(args, piece, scratch, state); });
}
void finish_any(const TailAttention& args, const Piece& piece, void* states, int64_t stride, int64_t count) {
  with_element(args.dtype, [&](auto element) { finish<decltype(element)>(args, piece, states, stride, count); });
}

}  // namespace

const TailAttentionKernel kTailAttention = {scratch_bytes, state_bytes, attend_any, finish_any};

}  // namespace packed_ss::cpu::PACKED_SS_ISA
