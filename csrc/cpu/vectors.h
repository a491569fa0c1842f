// Vectors of the instruction set that the including source is compiled for (PACKED_SS_ISA names it), on the compiler's own vector
// types: arithmetic is by lane, a comparison gives a mask that ?: takes, a scalar operand stands for all lanes.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"

namespace packed_ss::cpu::PACKED_SS_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <typename A>
struct Vectors;
template <>
struct Vectors<float> {
  typedef float Real __attribute__((vector_size(kVectorBytes)));
  typedef std::int32_t Int __attribute__((vector_size(kVectorBytes)));
  using Lane = std::int32_t;
};
template <>
struct Vectors<double> {
  typedef double Real __attribute__((vector_size(kVectorBytes)));
  typedef std::int64_t Int __attribute__((vector_size(kVectorBytes)));
  using Lane = std::int64_t;
};
template <typename A>
using Real = typename Vectors<A>::Real;
template <typename A>
using Int = typename Vectors<A>::Int;
template <typename A>
constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(A));

template <typename V, typename A>
PACKED_SS_HOST_DEVICE V load(const A* p) {
  V x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
template <typename V, typename A>
PACKED_SS_HOST_DEVICE void store(A* p, V x) {
  __builtin_memcpy(p, &x, sizeof x);
}

// All lanes x. Less zero, and not plus: that is x for -0 too, so no instruction remains of it.
template <typename A>
PACKED_SS_HOST_DEVICE Real<A> broadcast(A x) {
  return x - Real<A>{};
}

// 2^x for x <= 0, within 1e-7 of it; 2^-127 and below are 0, NaN is NaN.
PACKED_SS_HOST_DEVICE Real<float> exp2_vector(Real<float> x) {
  using V = Real<float>;
  using I = Int<float>;
  x = x < -127.0f ? broadcast(-127.0f) : x;  // in this order NaN stays
  const V shifted = x + 0x1.8p23f;           // the integer part, rounded, in the low bits
  const V r = x - (shifted - 0x1.8p23f);
  V y = broadcast(0x1.41fbbcp-13f);
  y = y * r + 0x1.5f3e54p-10f;
  y = y * r + 0x1.3b2d4cp-7f;
  y = y * r + 0x1.c6aee8p-5f;
  y = y * r + 0x1.ebfbdcp-3f;
  y = y * r + 0x1.62e430p-1f;
  y = y * r + 1.0f;
  const I exponent = (I)shifted;
  const I power = (exponent + 127) << 23;  // 2 to that, as bits; those of 0x1.8p23 leave at the top
  return y * (V)power;
}
PACKED_SS_HOST_DEVICE Real<double> exp2_vector(Real<double> x) {
  for (int i = 0; i < kWidth<double>; ++i) x[i] = __builtin_exp2(x[i]);
  return x;
}

}  // namespace
}  // namespace packed_ss::cpu::PACKED_SS_ISA
