"""Functions of one score, for kernels: the order of scores, and logarithms and exponentials to a few units in the last place.

A score's key is an integer in the order of floats: -0 equals +0, and NaN, of any sign, is above everything::

    -inf -> -INF < negative < zeros -> 0 < positive < +inf -> INF < NaN -> NAN

A packed result is a key above the complement of an id, so that one integer maximum finds the largest score and, of several, the
lowest id.  Products and sums that a compiler could contract are written as `tl.fma`, so that every kernel gets the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Keys of +inf and NaN; the score of a row is finite where its key is strictly between -INF and INF.
INF = tl.constexpr(0x7F800000)
NAN = tl.constexpr(0x7FFFFFFF)
SIGN = tl.constexpr(-(2**31))
#: A packed result below that of every score.
NOTHING = tl.constexpr(-(2**63))


@triton.jit
def order_key(x):
    """int32 key of float32 scores."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    key = tl.where(bits < 0, -magnitude, magnitude)
    return tl.where(magnitude > INF, NAN, key)


@triton.jit
def key_score(key):
    """The score of a key, NaN for `NAN`; of the two zeros +0."""
    bits = tl.where(key < 0, (-key) | SIGN, key)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def is_finite(key):
    return (key > -INF) & (key < INF)


@triton.jit
def pack(key, ids):
    """int64 results of keys and ids, both int32."""
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def packed_key(packed):
    return (packed >> 32).to(tl.int32)


@triton.jit
def packed_id(packed):
    return 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _log1p_near_zero(s):
    """log(1 + s) for sqrt(1/2) <= 1 + s <= sqrt(2): s - s^2/2 + s^3 P(s), P a minimax polynomial (relative error 3e-9)."""
    p = tl.fma(s, 0.06746646016836166, -0.1167566105723381)
    p = tl.fma(s, p, 0.11888165026903152)
    p = tl.fma(s, p, -0.124055877327919)
    p = tl.fma(s, p, 0.14219552278518677)
    p = tl.fma(s, p, -0.1666799634695053)
    p = tl.fma(s, p, 0.2000211924314499)
    p = tl.fma(s, p, -0.25000008940696716)
    p = tl.fma(s, p, 0.3333331346511841)
    return tl.fma(s * s, tl.fma(s, p, -0.5), s)


@triton.jit
def _exponent(x):
    """k with sqrt(1/2) <= x / 2^k < sqrt(2), of positive normal float32 numbers."""
    return (x.to(tl.int32, bitcast=True) - 0x3F3504F3) >> 23


@triton.jit
def _with_exponent(k, log_mantissa):
    """k log 2 + log_mantissa."""
    k = k.to(tl.float32)
    return tl.fma(k, 0.693145751953125, tl.fma(k, 1.428606765330187e-06, log_mantissa))


@triton.jit
def _scaled_down(x, k):
    """x / 2^k."""
    return (x.to(tl.int32, bitcast=True) - (k << 23)).to(tl.float32, bitcast=True)


@triton.jit
def log(x):
    """Natural logarithm of positive normal float32 numbers."""
    k = _exponent(x)
    return _with_exponent(k, _log1p_near_zero(_scaled_down(x, k) - 1.0))


@triton.jit
def log1p_of_minus(u):
    """log(1 - u) for 0 <= u <= 1, -inf at 1.  Exact in relative terms at both ends: near 0 nothing is rounded before the
    polynomial, and from 1/2 on 1 - u is exact."""
    left = 1.0 - u
    k = _exponent(left)
    result = _with_exponent(k, _log1p_near_zero(tl.where(k == 0, -u, _scaled_down(left, k) - 1.0)))
    return tl.where(left > 0.0, result, -float("inf"))


@triton.jit
def exp_of_negative(z):
    """e^z for z <= 0, 0 below -87: 2^k (1 + r + r^2 Q(r)), r = z - k log 2, Q a minimax polynomial (relative error 4e-9)."""
    inside = z >= -87.0
    z = tl.where(inside, z, 0.0)
    k = tl.floor(tl.fma(z, 1.4426950216293335, 0.5))
    r = tl.fma(k, -1.428606765330187e-06, tl.fma(k, -0.693145751953125, z))
    q = tl.fma(r, 0.0013814467238262296, 0.008368780836462975)
    q = tl.fma(r, q, 0.04166839271783829)
    q = tl.fma(r, q, 0.1666651964187622)
    q = tl.fma(r, q, 0.4999999403953552)
    mantissa = tl.fma(r * r, q, r) + 1.0
    bits = mantissa.to(tl.int32, bitcast=True) + (k.to(tl.int32) << 23)
    return tl.where(inside, bits.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def scaled(x, maximum, temperature):
    """A row's score before filters: x less the row's maximum, over the temperature."""
    return tl.div_rn(x - maximum, temperature)
