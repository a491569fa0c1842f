// Scores of one row: their order, the argmax, the acceptance test and the residual.
//
// order_key maps floats to unsigned integers of the same width so that integer order is float order, -0 equals +0 and NaN is
// above everything:
//   -inf -> 0 < negative < zeros -> kInf < positive < +inf -> 2 kInf < NaN        (kInf: the bits of +inf)
// One integer maximum over keys so finds the largest score, and whether the row has a finite one.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "packed_ss/host_device.h"

namespace packed_ss {

constexpr std::uint32_t kFloat32Inf = 0x7F800000u;
constexpr std::uint64_t kFloat64Inf = 0x7FF0000000000000u;
constexpr std::uint16_t kBFloat16Inf = 0x7F80u;
constexpr std::uint16_t kFloat16Inf = 0x7C00u;

// The key of a float given as its bits. Distinct NaNs have distinct keys, all above 2 * kInf.
template <class Bits, Bits kInf>
PACKED_SS_HOST_DEVICE Bits bits_key(Bits bits) {
  constexpr int kSign = 8 * sizeof(Bits) - 1;
  const auto magnitude = static_cast<Bits>(bits & static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1));
  const auto negative = static_cast<Bits>(Bits{0} - static_cast<Bits>(bits >> kSign));  // all ones, or none
  return static_cast<Bits>(static_cast<Bits>(magnitude ^ negative) - negative + kInf);
}

// Whether the largest key of a row belongs to a finite score: not to -inf (the row has nothing else), +inf or NaN.
template <class Bits, Bits kInf>
PACKED_SS_HOST_DEVICE bool is_finite_key(Bits key) {
  return key != 0 && key < static_cast<Bits>(kInf + kInf);
}

PACKED_SS_HOST_DEVICE std::uint32_t float_bits(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

PACKED_SS_HOST_DEVICE std::uint64_t float_bits(double x) {
  std::uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Key of a score; every NaN has the largest one there is, so that the first of several NaNs wins as any tie does.
PACKED_SS_HOST_DEVICE std::uint32_t order_key(float x) {
  return x != x ? ~std::uint32_t{0} : bits_key<std::uint32_t, kFloat32Inf>(float_bits(x));
}
PACKED_SS_HOST_DEVICE std::uint64_t order_key(double x) {
  return x != x ? ~std::uint64_t{0} : bits_key<std::uint64_t, kFloat64Inf>(float_bits(x));
}
PACKED_SS_HOST_DEVICE bool is_finite_key(std::uint32_t key) { return is_finite_key<std::uint32_t, kFloat32Inf>(key); }
PACKED_SS_HOST_DEVICE bool is_finite_key(std::uint64_t key) { return is_finite_key<std::uint64_t, kFloat64Inf>(key); }

// The best token so far, by key; the lowest id on ties. The initial value loses against every token.
template <class Key>
struct Best {
  Key key = 0;
  std::int32_t id = INT32_MAX;
};

template <class Key>
PACKED_SS_HOST_DEVICE Best<Key> better(Best<Key> a, Best<Key> b) {
  return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a;
}

// The same in one integer, for atomic maxima and shuffles of a float32 score: its maximum is the better one.
PACKED_SS_HOST_DEVICE std::uint64_t pack_best(Best<std::uint32_t> best) {
  return (std::uint64_t{best.key} << 32) | ~static_cast<std::uint32_t>(best.id);
}
PACKED_SS_HOST_DEVICE Best<std::uint32_t> unpack_best(std::uint64_t packed) {
  return {static_cast<std::uint32_t>(packed >> 32), static_cast<std::int32_t>(~static_cast<std::uint32_t>(packed))};
}

// The processed score before filters: x less the row's maximum, over the temperature. At most 0; monotone in x.
template <class Value>
PACKED_SS_HOST_DEVICE Value scaled(Value x, Value row_maximum, Value temperature) {
  return (x - row_maximum) / temperature;
}

// Acceptance test of a draft token d (Algorithm 2, line 6): u < min(1, p(d) / Q(d)), strict. False where p is NaN.
template <class Value>
PACKED_SS_HOST_DEVICE bool accepts(float u, Value log_p_d, Value log_q_d) {
  return static_cast<Value>(logf(u)) < log_p_d - log_q_d;
}

// log [p - Q]+ (Algorithm 2, line 7), not normalised: log p + log1p(-Q/p) where p > Q, else -inf.
PACKED_SS_HOST_DEVICE float residual(float log_p, float log_q) {
  return log_q < log_p ? log_p + log1pf(-expf(log_q - log_p)) : -INFINITY;
}
PACKED_SS_HOST_DEVICE double residual(double log_p, double log_q) {
  return log_q < log_p ? log_p + log1p(-exp(log_q - log_p)) : -static_cast<double>(INFINITY);
}

}  // namespace packed_ss
