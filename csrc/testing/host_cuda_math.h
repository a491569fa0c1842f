// Vector types, bit casts and arithmetic intrinsics of CUDA for the C++ compiler. Approximate intrinsics are the exact functions
// of <cmath> here, so results that depend on them differ from a GPU's in the last bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define PACKED_SS_VECTOR_TYPES(scalar, name)                                                        \
  struct alignas(2 * sizeof(scalar)) name##2 { scalar x, y; };                                      \
  struct alignas(4 * sizeof(scalar) < 16 ? 4 * sizeof(scalar) : 16) name##4 { scalar x, y, z, w; }; \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                              \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
PACKED_SS_VECTOR_TYPES(float, float)
PACKED_SS_VECTOR_TYPES(int, int)
PACKED_SS_VECTOR_TYPES(unsigned, uint)
PACKED_SS_VECTOR_TYPES(short, short)
PACKED_SS_VECTOR_TYPES(unsigned short, ushort)
#undef PACKED_SS_VECTOR_TYPES

#define PACKED_SS_BIT_CAST(name, from, to) \
  inline to name(from x) {                 \
    to y;                                  \
    static_assert(sizeof y == sizeof x);   \
    std::memcpy(&y, &x, sizeof y);         \
    return y;                              \
  }
PACKED_SS_BIT_CAST(__float_as_int, float, int)
PACKED_SS_BIT_CAST(__float_as_uint, float, unsigned)
PACKED_SS_BIT_CAST(__int_as_float, int, float)
PACKED_SS_BIT_CAST(__uint_as_float, unsigned, float)
PACKED_SS_BIT_CAST(__double_as_longlong, double, long long)
PACKED_SS_BIT_CAST(__longlong_as_double, long long, double)
#undef PACKED_SS_BIT_CAST

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

// CUDA declares these for every pair of equal arithmetic types, at global scope.
#define PACKED_SS_MIN_MAX(type)                             \
  inline type min(type a, type b) { return b < a ? b : a; } \
  inline type max(type a, type b) { return a < b ? b : a; }
PACKED_SS_MIN_MAX(int)
PACKED_SS_MIN_MAX(unsigned)
PACKED_SS_MIN_MAX(long)
PACKED_SS_MIN_MAX(unsigned long)
PACKED_SS_MIN_MAX(long long)
PACKED_SS_MIN_MAX(unsigned long long)
#undef PACKED_SS_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Cache hints are plain loads and stores.
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}
template <typename T>
T __ldlu(const T* p) {
  return *p;
}
template <typename T>
void __stcg(T* p, T value) {
  *p = value;
}
template <typename T>
void __stcs(T* p, T value) {
  *p = value;
}
