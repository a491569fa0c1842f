// How tail_attention lays out memory, and how queries, keys and values get there. Part of tail_attention_kernel.cpp, which is
// compiled once for each instruction set: the rules at its head hold here.
#pragma once

#include <cstdint>

#include "cpu/tail_attention.h"
#include "cpu/vectors.h"

namespace packed_ss::cpu::PACKED_SS_ISA {
namespace {

using std::int64_t;

constexpr int kVectors = 2;  // vectors of lanes that are computed together
// Keys of a score tile, elements of a value tile: times two vectors, 24 and 16 of 32 registers accumulate, or 12 of 16.
constexpr int kKeyTile = kVectorBytes == 64 ? 12 : 6, kDimTile = kVectorBytes == 64 ? 8 : 6;
constexpr int kBlockWords = kKeyBlock / 32;
static_assert(kKeyBlock % kKeyTile == 0 && kKeyBlock % 32 == 0);

constexpr int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// How memory is laid out, by vectors of lanes: queries and weighted values are [vectors / 2][size][2 vectors], with one group
// of a single vector at the end where the number of vectors is odd.
template <typename A>
struct Layout {
  int64_t vectors, lanes, size, padded_size;

  PACKED_SS_HOST_DEVICE Layout(const TailAttention& args, int64_t used_lanes)
      : vectors((used_lanes + kWidth<A> - 1) / kWidth<A>),
        lanes(vectors * kWidth<A>),
        size(args.size),
        padded_size(round_up(args.size, kDimTile)) {}

  // Lanes of the group that starts at lane `at`.
  PACKED_SS_HOST_DEVICE int64_t group_width(int64_t at) const {
    return lanes - at >= kVectors * kWidth<A> ? kVectors * kWidth<A> : kWidth<A>;
  }

  // Elements; each array takes a multiple of 64 bytes.
  PACKED_SS_HOST_DEVICE static int64_t padded(int64_t elements) {
    return round_up(elements, 64 / static_cast<int64_t>(sizeof(A)));
  }
  PACKED_SS_HOST_DEVICE int64_t queries() const { return padded(size * lanes); }
  PACKED_SS_HOST_DEVICE int64_t keys() const { return padded(kKeyBlock * size); }
  PACKED_SS_HOST_DEVICE int64_t values() const { return padded(kKeyBlock * padded_size); }
  PACKED_SS_HOST_DEVICE int64_t scores() const { return padded(kKeyBlock * kVectors * kWidth<A>); }
  PACKED_SS_HOST_DEVICE int64_t windows() const { return padded(kBlockWords * lanes); }
  PACKED_SS_HOST_DEVICE int64_t scratch() const { return queries() + keys() + values() + scores() + windows(); }
  PACKED_SS_HOST_DEVICE int64_t state() const { return 2 * padded(lanes) + padded(padded_size * lanes); }
};

// Of each lane the largest score, in base 2, the sum of weights relative to it, and the sum of weighted values.
template <typename A>
struct State {
  A *top, *total, *weighted;  // [lanes], [lanes], [padded_size][lanes] by groups

  PACKED_SS_HOST_DEVICE static State at(const Layout<A>& layout, void* memory) {
    A* top = static_cast<A*>(memory);
    return {top, top + layout.padded(layout.lanes), top + 2 * layout.padded(layout.lanes)};
  }
  PACKED_SS_HOST_DEVICE State group(const Layout<A>& layout, int64_t first_lane) const {
    return {top + first_lane, total + first_lane, weighted + first_lane * layout.padded_size};
  }
};

constexpr double kLog2E = 1.4426950408889634074;

// Queries to [size][lane] by groups, times scale * log2(e); lanes past the end are zero.
template <class E, typename A>
void load_queries(const TailAttention& args, const Piece& piece, const Layout<A>& layout, A* queries) {
  const int64_t heads_per_kv = args.heads / args.kv_heads, used = piece.end_lane - piece.first_lane;
  const A factor = static_cast<A>(args.scale * kLog2E);
  for (int64_t at = 0; at < layout.lanes;) {
    const int64_t width = layout.group_width(at);
    A* out = queries + at * layout.size;
    for (int64_t i = 0; i < width; ++i) {
      if (at + i >= used) {
        for (int64_t d = 0; d < layout.size; ++d) out[d * width + i] = 0;
        continue;
      }
      const int64_t lane = piece.first_lane + at + i;
      const int64_t row = lane / heads_per_kv, head = piece.kv_head * heads_per_kv + lane % heads_per_kv;
      const auto* q =
          static_cast<const typename E::Bits*>(args.q) + piece.sequence * args.q_sequence + row * args.q_row + head * args.q_head;
      for (int64_t d = 0; d < layout.size; ++d) out[d * width + i] = E::value(q[d]) * factor;
    }
    at += width;
  }
}

// Keys of `count` slots to [whole tiles][size]; zeros for the rest.
template <class E, typename A>
PACKED_SS_HOST_DEVICE void pack_keys(const typename E::Bits* cache, int64_t stride, int64_t count, int64_t size, A* keys) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < size; ++d) keys[i * size + d] = E::value(cache[i * stride + d]);
  }
  for (int64_t i = count * size; i < round_up(count, kKeyTile) * size; ++i) keys[i] = 0;
}

// Values of `count` slots to [padded_size / kDimTile][kKeyBlock][kDimTile], of which whole tiles of keys are filled. Zeros for
// the rest, and for slots that hold a value that is not finite: poison[slot] is NaN for these, else 0. Returns whether there
// are any.
template <class E, typename A>
PACKED_SS_HOST_DEVICE bool pack_values(const typename E::Bits* cache, int64_t stride, int64_t count, int64_t size, A* values,
                                       A* poison) {
  bool any = false;
  for (int64_t i = 0; i < round_up(count, kKeyTile); ++i) {
    A* out = values + i * kDimTile;
    A sum = 0;
    if (i < count) {
      const auto* in = cache + i * stride;
      int64_t d = 0;
      A sums[kDimTile] = {};
      for (; d + kDimTile <= size; d += kDimTile, out += kKeyBlock * kDimTile) {
        for (int j = 0; j < kDimTile; ++j) {
          out[j] = E::value(in[d + j]);
          sums[j] += out[j] * 0;  // NaN from infinity and NaN
        }
      }
      if (d < size) {
        for (int j = 0; j < kDimTile; ++j) {
          out[j] = d + j < size ? E::value(in[d + j]) : 0;
          sums[j] += out[j] * 0;
        }
      }
      for (int j = 0; j < kDimTile; ++j) sum += sums[j];
    }
    poison[i] = sum;
    if (i >= count || sum != 0) {
      any |= i < count;
      out = values + i * kDimTile;
      for (int64_t d = 0; d < size; d += kDimTile, out += kKeyBlock * kDimTile) {
        for (int j = 0; j < kDimTile; ++j) out[j] = 0;
      }
    }
  }
  return any;
}

}  // namespace
}  // namespace packed_ss::cpu::PACKED_SS_ISA
