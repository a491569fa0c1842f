// The element types of logits: how one is stored, what it is worth, and its order key. Every function vectorises in a loop.
#pragma once

#include <cstdint>

#include "packed_ss/scores.h"

namespace packed_ss::cpu {

// Bits of a value back to the value.
PACKED_SS_HOST_DEVICE float as_float(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
PACKED_SS_HOST_DEVICE double as_float(std::uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

struct Float32 {
  using Bits = std::uint32_t;
  using Value = float;  // the type that a row is computed in
  static constexpr Bits kInf = kFloat32Inf;
  PACKED_SS_HOST_DEVICE static Value value(Bits bits) { return as_float(bits); }
};

struct Float64 {
  using Bits = std::uint64_t;
  using Value = double;
  static constexpr Bits kInf = kFloat64Inf;
  PACKED_SS_HOST_DEVICE static Value value(Bits bits) { return as_float(bits); }
};

struct BFloat16 {
  using Bits = std::uint16_t;
  using Value = float;
  static constexpr Bits kInf = kBFloat16Inf;
  PACKED_SS_HOST_DEVICE static Value value(Bits bits) { return as_float(std::uint32_t{bits} << 16); }
};

struct Float16 {
  using Bits = std::uint16_t;
  using Value = float;
  static constexpr Bits kInf = kFloat16Inf;
  PACKED_SS_HOST_DEVICE static Value value(Bits bits) {
    constexpr std::uint32_t kLeastNormal = 0x38800000u;  // 2^-14
    const std::uint32_t magnitude = (bits & 0x7FFFu) << 13;
    const std::uint32_t exponent = magnitude & 0x0F800000u;
    const std::uint32_t normal = magnitude + (exponent == 0x0F800000u ? 0x70000000u : 0x38000000u);  // inf and NaN, or finite
    const std::uint32_t subnormal = float_bits(as_float(magnitude + kLeastNormal) - as_float(kLeastNormal));
    return as_float((exponent == 0 ? subnormal : normal) | ((bits & 0x8000u) << 16));
  }
};

template <class Element>
PACKED_SS_HOST_DEVICE typename Element::Bits element_key(typename Element::Bits bits) {
  return bits_key<typename Element::Bits, Element::kInf>(bits);
}

// The value that a key was made from; of the two zeros, +0.
template <class Element>
PACKED_SS_HOST_DEVICE typename Element::Value key_value(typename Element::Bits key) {
  using Bits = typename Element::Bits;
  constexpr Bits kSignBit = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const bool negative = key < Element::kInf;
  const auto magnitude = static_cast<Bits>(negative ? Element::kInf - key : key - Element::kInf);
  return Element::value(negative ? static_cast<Bits>(magnitude | kSignBit) : magnitude);
}

}  // namespace packed_ss::cpu
