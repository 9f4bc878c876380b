// SPDX-License-Identifier: Apache-2.0
// cdf and the derivative of gelu over lanes on the CPU, by the numbers of gelu.h.
//
// Rows of 16 bits are computed in fp32. Rows of fp32 are computed in fp64: that costs less than what fp32 would
// need to be right to its last digit. Rows of fp64, which are there for gradcheck, ask the C library.
#pragma once

#include "gelu.h"
#include "vendor/cpu_rows.h"

namespace kernelworks::geglu {
namespace {

// exp2 of numbers that are not positive: 2**y = 2**n * 2**f with f in [-1/2, 1/2], the latter a polynomial.
template <class Acc>
struct Exp2;
template <>
struct Exp2<float> {  // relative error 2**-18
  using Bits = int32_t;
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float lowest = -150;
  static constexpr float c[] = {0.999999261444823f, 0.6931218147384384f, 0.2402474483081567f, 0.055917860310008116f,
                                0.009570101791613883f};
};
template <>
struct Exp2<double> {  // 2**-29
  using Bits = int64_t;
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double lowest = -1000;
  static constexpr double c[] = {1.0000000005541674,  0.6931472057372654,    0.24022646890629862,   0.055503287769675724,
                                 0.00961848895755768, 0.0013399931218320837, 0.00015345811882738758};
};

template <class V>
struct WithSlope {
  V cdf;
  V slope;  // of gelu
};

template <class R>
struct LaneGelu {
  using Acc = typename R::Acc;
  using V = typename R::V;
  using E = Exp2<Acc>;
  using Bits = typename VectorOf<typename E::Bits, R::L::count>::type;
  static constexpr bool fine = sizeof(Acc) == 8;

  template <bool Tanh>
  static V cdf(V x) {
    const V a = absolute(x);
    if constexpr (Tanh) {
      return upper(x, logistic(exp2_of_minus_2u(a)));
    } else {
      return upper(x, erf_tail(a, exp2_of_minus_half_square(a)));
    }
  }

  template <bool Tanh>
  static WithSlope<V> with_slope(V x) {
    V tail, density;
    if constexpr (Tanh) {
      const V far = V{} + 64;  // where the tail is 0, and the square must not be Inf
      V a = absolute(x);
      a = a > far ? far : a;  // a NaN stays one
      tail = logistic(exp2_of_minus_2u(a));
      density = tail * (1 - tail) * (a * a * number(3 * tanh_cubic * two_sqrt_2_over_pi) + number(two_sqrt_2_over_pi));
    } else {
      const V a = absolute(x), e = exp2_of_minus_half_square(a);
      tail = erf_tail(a, e);
      density = e * number(inverse_sqrt_2pi);
    }
    const V cdf = upper(x, tail);
    return {cdf, x * density + cdf};
  }

 private:
  static constexpr auto numbers() {
    if constexpr (fine) {
      return fine_tail();
    } else {
      return coarse_tail();
    }
  }
  static Acc number(double value) { return static_cast<Acc>(value); }
  static V absolute(V x) { return (V)((Bits)x & ~((Bits{} + 1) << (8 * sizeof(Acc) - 1))); }
  static V upper(V x, V tail) { return x > 0 ? 1 - tail : tail; }

  // By Estrin's scheme, c[First] being the coefficient of 1 and power[k] x to the 2**k: all that a result waits for
  // is a few multiplications, and the processor has other work only within some dozen instructions.
  template <int First, int Count, class C>
  static V part(const V* power, const C& c) {
    if constexpr (Count == 1) {
      return V{} + number(c[First]);
    } else if constexpr (Count == 2) {
      return power[0] * number(c[First + 1]) + number(c[First]);
    } else {
      constexpr int level = Count > 8 ? 3 : Count > 4 ? 2 : 1, low = 1 << level;
      return part<First + low, Count - low>(power, c) * power[level] + part<First, low>(power, c);
    }
  }
  template <class C, int Count>
  static V polynomial(V x, const C (&c)[Count]) {
    const V second = x * x, fourth = second * second;
    const V power[] = {x, second, fourth, fourth * fourth};
    return part<0, Count>(power, c);
  }

  static V exp2(V y) {
    // 1.5 * 2**mantissa leaves no bits for a fraction, so this addition rounds y to a whole number; the low bits of
    // the sum are that number plus the bias, and in fp32 plus 64, as a result may be subnormal.
    constexpr int extra = fine ? 0 : 64;
    constexpr Acc shift = static_cast<Acc>(int64_t{3} << (E::mantissa - 1)) + (E::bias + extra);
    const V sum = y + shift;
    const V power = polynomial(y - (sum - shift), E::c) * (V)((Bits)sum << E::mantissa);
    return y < E::lowest ? V{} : fine ? power : power * number(0x1p-64);
  }

  static V exp2_of_minus_half_square(V a) { return exp2(a * a * number(-0.5 * log2_e)); }

  static V exp2_of_minus_2u(V a) {
    constexpr double linear = -log2_e * two_sqrt_2_over_pi;
    return exp2(a * (a * a * number(linear * tanh_cubic) + number(linear)));
  }

  static V logistic(V w) { return w / (w + 1); }

  // cdf(-a); e is exp(-a**2 / 2).
  static V erf_tail(V a, V e) {
    constexpr auto tail = numbers();
    return e * polynomial(1 / (a * number(tail.k) + 1), tail.c);
  }
};

// fp64 rows, one lane at a time.
template <class R>
struct ExactGelu {
  using V = typename R::V;

  template <bool Tanh>
  static V cdf(V x) {
    return with_slope<Tanh>(x).cdf;
  }

  template <bool Tanh>
  static WithSlope<V> with_slope(V x) {
    WithSlope<V> result;
    for (int i = 0; i < R::L::count; ++i) {
      const WithSlope<double> lane = of_lane<Tanh>(x[i]);
      result.cdf[i] = lane.cdf;
      result.slope[i] = lane.slope;
    }
    return result;
  }

 private:
  template <bool Tanh>
  static WithSlope<double> of_lane(double x) {
    if constexpr (Tanh) {
      const double a = __builtin_fabs(x);
      const double w = __builtin_exp(-two_sqrt_2_over_pi * (a + tanh_cubic * a * a * a));
      const double tail = w / (1 + w), cdf = x > 0 ? 1 - tail : tail;
      // Where w is 0 the square may be Inf.
      const double density = w == 0 ? 0 : tail * (1 - tail) * two_sqrt_2_over_pi * (1 + 3 * tanh_cubic * x * x);
      return {cdf, cdf + x * density};
    } else {
      const double cdf = 0.5 * __builtin_erfc(-x * 0.7071067811865476);
      return {cdf, cdf + x * (inverse_sqrt_2pi * __builtin_exp(-0.5 * x * x))};
    }
  }
};

// How rows of T are computed: R says in which lanes, Gelu by which functions.
template <class Isa, class T>
struct Computing {
  using R = RowLanes<Isa, T>;
  using Gelu = LaneGelu<R>;
};
template <class Isa>
struct Computing<Isa, float> {
  using R = RowLanes<Isa, double>;
  using Gelu = LaneGelu<R>;
};
template <class Isa>
struct Computing<Isa, double> {
  using R = RowLanes<Isa, double>;
  using Gelu = ExactGelu<R>;
};

}  // namespace
}  // namespace kernelworks::geglu
