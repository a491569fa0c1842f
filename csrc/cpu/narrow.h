// Rounding a value to an element type, to nearest even; the other direction is in element.h. Every function vectorises in a loop.
#pragma once

#include <cstdint>

#include "cpu/element.h"

namespace packed_ss::cpu {

PACKED_SS_HOST_DEVICE std::uint32_t narrow(Float32, float x) { return float_bits(x); }
PACKED_SS_HOST_DEVICE std::uint64_t narrow(Float64, double x) { return float_bits(x); }

PACKED_SS_HOST_DEVICE std::uint16_t narrow(BFloat16, float x) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>(x == x ? rounded : 0x7FC0u);
}

PACKED_SS_HOST_DEVICE std::uint16_t narrow(Float16, float x) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Below 2^-14 a half has steps of 2^-24: the sum with 1/2 has just these, and rounds to them.
  const std::uint32_t subnormal = float_bits(as_float(magnitude) + 0.5f) - 0x3F000000u;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  std::uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x47800000u ? 0x7C00u : half;  // 65536 and above; 65520 ... 65535 carry into infinity by themselves
  half = magnitude > 0x7F800000u ? 0x7E00u : half;
  return static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000u));
}

}  // namespace packed_ss::cpu
