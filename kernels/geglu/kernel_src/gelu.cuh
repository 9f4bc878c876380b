// SPDX-License-Identifier: Apache-2.0
// GELU of one number on the GPU: as cheap as 16-bit results allow, or right to the last place of fp32.
//
// exp2 and reciprocal are the multiprocessor's own, of some 22 bits, and take no subnormal numbers; so exponentials are
// made 2**64 too large, and become what they are in a multiplication, which does know subnormal numbers.
#pragma once

#include "gelu.h"

namespace kernelworks::geglu {

constexpr double scale_up = 18446744073709551616.0;  // 2**64
constexpr float scale_down = static_cast<float>(1 / scale_up);

__device__ __forceinline__ float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

struct CdfAndSlope {
  float cdf;
  float slope;  // the derivative of gelu
};

// For results of 16 bits. With the compiler's eye on what is used: the slope costs nothing where it is not.
template <bool Tanh>
__device__ __forceinline__ CdfAndSlope coarse_gelu(float x) {
  const float a = fabsf(x), square = x * x;
  float tail, density;  // density: x times the derivative of the cdf
  if constexpr (Tanh) {
    constexpr float cubic = static_cast<float>(two_sqrt_2_over_pi * log2_e * tanh_cubic);
    constexpr float linear = static_cast<float>(two_sqrt_2_over_pi * log2_e);
    const float w = fast_exp2(fmaf(-a, fmaf(square, cubic, linear), 64.0f)) * scale_down;
    tail = w * fast_reciprocal(1.0f + w);
    // From |x| = 64 on the tail is zero, and times infinity it would not be.
    const float slope_of_u = fmaf(fminf(square, 4096.0f), static_cast<float>(3 * tanh_cubic * two_sqrt_2_over_pi),
                                  static_cast<float>(two_sqrt_2_over_pi));
    density = x * (tail * (1.0f - tail)) * slope_of_u;
  } else {
    constexpr Tail<6> fit = coarse_tail();
    const float power = fast_exp2(fmaf(square, static_cast<float>(-log2_e / 2), 64.0f));
    const float t = fast_reciprocal(fmaf(a, static_cast<float>(fit.k), 1.0f));
    float p = static_cast<float>(fit.c[5] / scale_up);
#pragma unroll
    for (int i = 4; i >= 0; --i) p = fmaf(p, t, static_cast<float>(fit.c[i] / scale_up));
    tail = power * p;
    density = x * (power * static_cast<float>(inverse_sqrt_2pi / scale_up));
  }
  const float cdf = x > 0.0f ? 1.0f - tail : tail;
  return {cdf, cdf + density};
}

// A number and what rounding took from it. A product whose rounding matters is written __fmul_rn, or the compiler would
// melt it into the sum that it goes to.
struct Two {
  float high;
  float low;
};

// exp(-high - low) * 2**64 to 2**-28, for numbers from 0 to 130, where that is as good as zero.
__device__ __forceinline__ Two exact_exp(float high, float low) {
  constexpr float ln2_high = 0.693145751953125f;  // 16 bits, so that a multiple of it is exact
  constexpr float ln2_low = 1.42860682030941723e-6f;
  constexpr float round = 12582912.0f;  // 1.5 * 2**23: added to a number, it leaves the nearest integer in the last bits
  const float rounded = fmaf(high, static_cast<float>(-log2_e), round), n = rounded - round;
  const float remainder = fmaf(n, -ln2_high, -high), rest = fmaf(n, -ln2_low, -low);
  const float h = remainder + rest, l = rest - (h - remainder);
  float p = 0.0013950808319732912f;
  p = fmaf(p, h, 0.008369073002005522f);
  p = fmaf(p, h, 0.04166620104622451f);
  p = fmaf(p, h, 0.1666651730942802f);
  p = fmaf(p, h, 0.5000000096662974f);
  const float bend = __fmul_rn(h * h, p);
  const float line = 1.0f + h, lost = h - (line - 1.0f);
  const float sum = line + bend, lost_too = bend - (sum - line);
  const float power = __int_as_float((__float_as_int(rounded) + 127 + 64) << 23);
  return {sum * power, (lost + lost_too + l) * power};
}

// The tail of |x| to 2**-26 or so, 2**64 too large, and x times the derivative of the cdf as a single number.
struct ExactTail {
  Two tail;
  float density;
};

__device__ __forceinline__ ExactTail exact_tanh_tail(float x, float a) {
  // 2 u = a * (linear + cubic * a * a), each product with what its rounding took.
  constexpr double cubic = two_sqrt_2_over_pi * tanh_cubic, linear = two_sqrt_2_over_pi;
  constexpr float cubic_high = static_cast<float>(cubic), cubic_low = static_cast<float>(cubic - cubic_high);
  constexpr float linear_high = static_cast<float>(linear), linear_low = static_cast<float>(linear - linear_high);
  const float square = __fmul_rn(a, a), square_low = fmaf(a, a, -square);
  const float bent = __fmul_rn(square, cubic_high);
  const float bent_low = fmaf(square, cubic_high, -bent) + fmaf(square, cubic_low, square_low * cubic_high);
  const float sum = linear_high + bent, back = sum - bent;
  const float sum_low = (linear_high - back) + (bent - (sum - back)) + (bent_low + linear_low);
  const float u = __fmul_rn(a, sum);
  const Two w = exact_exp(u, fmaf(a, sum, -u) + a * sum_low);
  const float high = __fmul_rn(w.high, scale_down), low = w.low * scale_down;
  const float whole = 1.0f + high, whole_low = high - (whole - 1.0f) + low;
  const float inverse = fast_reciprocal(whole);
  const float tail = __fmul_rn(w.high, inverse);
  const float tail_low = (fmaf(-tail, whole, w.high) + fmaf(-tail, whole_low, w.low)) * inverse;
  const float slope_of_u = fmaf(square, static_cast<float>(3 * cubic), linear_high);
  const float plain = tail * scale_down;
  // Of infinity it is no number, as in torch, which x * 0 sees to; any other x is as good as its clamped self.
  const float density = copysignf(a, x) * (tail * (1.0f - plain)) * slope_of_u * scale_down;
  return {{tail, tail_low}, density + x * 0.0f};
}

__device__ __forceinline__ ExactTail exact_erf_tail(float x, float a) {
  constexpr Tail<11> fit = centered_tail();
  const float half = 0.5f * a, square = __fmul_rn(half, a);
  const Two power = exact_exp(square, fmaf(half, a, -square));
  constexpr float k = static_cast<float>(fit.k);  // exact
  const float d = fmaf(a, k, 1.0f), d_low = fmaf(a, k, 1.0f - d);
  const float guess = fast_reciprocal(d), missing = __fmul_rn(guess, fmaf(-d, guess, 1.0f) - d_low * guess);
  constexpr float center = static_cast<float>(tail_center);
  const float t = guess + missing, t_low = missing - (t - guess);
  const float w = t - center, w_low = t - (w + center) + t_low;
  float p = static_cast<float>(fit.c[10]);
#pragma unroll
  for (int i = 9; i >= 2; --i) p = fmaf(p, w, static_cast<float>(fit.c[i]));
  float p_low = 0;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const float c = static_cast<float>(fit.c[i]), c_low = static_cast<float>(fit.c[i] - c);
    const float next = fmaf(p, w, c);
    p_low = fmaf(p, w, c - next) + fmaf(p, w_low, fmaf(p_low, w, c_low));
    p = next;
  }
  const float m = __fmul_rn(p, t), m_low = fmaf(p, t, -m) + fmaf(p, t_low, p_low * t);
  const float high = 0.5f * power.high, low = 0.5f * power.low;
  const float tail = __fmul_rn(high, m);
  return {{tail, fmaf(high, m, -tail) + fmaf(high, m_low, low * m)},
          x * (power.high * static_cast<float>(inverse_sqrt_2pi / scale_up))};
}

// |x|, or a number whose tail is as good as zero.
template <bool Tanh>
__device__ __forceinline__ float clamped(float x) {
  return fminf(fabsf(x), Tanh ? 11.25f : 16.0f);
}

template <bool Tanh>
__device__ __forceinline__ ExactTail exact_tail(float x) {
  return Tanh ? exact_tanh_tail(x, clamped<true>(x)) : exact_erf_tail(x, clamped<false>(x));
}

// The same as plain numbers, for the gradient of the gate, which is a sum.
__device__ __forceinline__ CdfAndSlope to_single(float x, const ExactTail& exact) {
  const float tail = exact.tail.high * scale_down;
  const float cdf = x > 0.0f ? 1.0f - tail : tail;
  return {cdf, cdf + exact.density};
}

// value * gelu(x), to the last place of fp32.
template <bool Tanh>
__device__ __forceinline__ float exact_geglu(float value, float x, const Two& tail) {
  // gelu(x) = max(x, 0) - a * tail
  // Far down, where gelu(x) may be subnormal, a large value is made smaller instead.
  const bool far = x < -9.0f && x > (Tanh ? -11.25f : -16.0f) && fabsf(value) >= 1.0f && fabsf(value) < INFINITY;
  const float a = clamped<Tanh>(x), base = x > 0.0f ? x : x * 0.0f;
  const float large = __fmul_rn(a, tail.high), large_low = fmaf(a, tail.high, -large) + a * tail.low;
  const float small = value * scale_down;
  if (far) return -fmaf(small, large, small * large_low);
  const float part = __fmul_rn(large, scale_down), part_low = large_low * scale_down;
  const float gelu = base - part, gelu_low = (base - gelu) - part - part_low;
  const float exact = fmaf(value, gelu, value * gelu_low);
  // There is no remainder of infinity, and one of zero would cost the sign of a zero.
  return gelu_low != 0.0f && exact == exact ? exact : value * gelu;
}

}  // namespace kernelworks::geglu
