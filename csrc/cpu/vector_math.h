// exp for arguments of at most 0, as plain arithmetic: loops over it vectorise.
//
// From some argument down the value stays the same, 1e-38 or 1e-304, for -inf too: nothing next to the 1 that every sum here has.
// A second choice to make it 0 would share its condition with the first, which the compiler turns into a branch.
#pragma once

#include <cstdint>

#include "cpu/element.h"

namespace packed_ss::cpu {

// Relative error below 2^-22. n = round(x / ln 2) is read off the low bits of a sum whose
// unit is 1; ln 2 is split so that n times its first part is exact.
PACKED_SS_HOST_DEVICE float exp_nonpositive(float x) {
  constexpr float kUnit = 12582912.0f;  // 1.5 * 2^23
  constexpr float kLowest = -87.0f;
  const float clamped = x < kLowest ? kLowest : x;
  const float sum = clamped * 1.44269504f + kUnit;
  const float n = sum - kUnit;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040;  // Taylor: |r| <= ln 2 / 2 leaves 5e-9
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t shifted = (float_bits(sum) - float_bits(kUnit)) << 23;
  return as_float(float_bits(p) + shifted);
}

// Relative error below 2^-50.
PACKED_SS_HOST_DEVICE double exp_nonpositive(double x) {
  constexpr double kUnit = 6755399441055744.0;  // 1.5 * 2^52
  constexpr double kLowest = -700.0;
  const double clamped = x < kLowest ? kLowest : x;
  const double sum = clamped * 1.4426950408889634 + kUnit;
  const double n = sum - kUnit;
  const double r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800;  // Taylor: |r| <= ln 2 / 2 leaves 4e-18
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const std::uint64_t shifted = (float_bits(sum) - float_bits(kUnit)) << 52;
  return as_float(float_bits(p) + shifted);
}

}  // namespace packed_ss::cpu
