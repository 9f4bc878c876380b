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

// Two registers that are computed in step. What is computed is one long chain, and a processor finds the work that it
// could do meanwhile within some dozen instructions only. Two members and no array, which GCC would put in memory.
template <class R>
struct Pair {
  using Acc = typename R::Acc;
  using L = typename R::L;
  using V = typename R::V;
  static constexpr int count = 2 * L::count;
  V a, b;

  [[gnu::always_inline]] static Pair of(Acc number) { return {V{} + number, V{} + number}; }

  [[gnu::always_inline]] friend Pair operator+(const Pair& x, const Pair& y) { return {x.a + y.a, x.b + y.b}; }
  [[gnu::always_inline]] friend Pair operator-(const Pair& x, const Pair& y) { return {x.a - y.a, x.b - y.b}; }
  [[gnu::always_inline]] friend Pair operator*(const Pair& x, const Pair& y) { return {x.a * y.a, x.b * y.b}; }
  [[gnu::always_inline]] friend Pair operator/(const Pair& x, const Pair& y) { return {x.a / y.a, x.b / y.b}; }
  [[gnu::always_inline]] friend Pair operator+(const Pair& x, Acc y) { return {x.a + y, x.b + y}; }
  [[gnu::always_inline]] friend Pair operator-(const Pair& x, Acc y) { return {x.a - y, x.b - y}; }
  [[gnu::always_inline]] friend Pair operator*(const Pair& x, Acc y) { return {x.a * y, x.b * y}; }
  [[gnu::always_inline]] friend Pair operator-(Acc x, const Pair& y) { return {x - y.a, x - y.b}; }
  [[gnu::always_inline]] friend Pair operator/(Acc x, const Pair& y) { return {x / y.a, x / y.b}; }

  // 0 where x is greater than `limit`; a NaN is not.
  [[gnu::always_inline]] Pair none_beyond(const Pair& x, Acc limit) const {
    return {x.a > limit ? V{} : a, x.b > limit ? V{} : b};
  }
  [[gnu::always_inline]] Pair where_positive(const Pair& x, const Pair& other) const {
    return {x.a > 0 ? other.a : a, x.b > 0 ? other.b : b};
  }

  // The first `valid` lanes, as in Lanes.
  template <class T>
  [[gnu::always_inline]] static Pair load(const T* from, int valid) {
    if (valid == count) return {L::load(from), L::load(from + L::count)};
    if (valid <= L::count) return {L::load(from, valid), V{}};
    return {L::load(from), L::load(from + L::count, valid - L::count)};
  }
  template <class T>
  [[gnu::always_inline]] void store(T* to, int valid) const {
    L::store(to, a, valid < L::count ? valid : L::count);
    if (valid > L::count) L::store(to + L::count, b, valid - L::count);
  }
};

// exp2 of numbers from -1000 (fp32: -190) to 0: 2**y = 2**n * 2**f with f in [-1/2, 1/2], the latter a polynomial.
template <class Acc>
struct Exp2;
template <>
struct Exp2<float> {  // relative error 2**-18
  using Bits = int32_t;
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float c[] = {0.999999261444823f, 0.6931218147384384f, 0.2402474483081567f, 0.055917860310008116f,
                                0.009570101791613883f};
};
template <>
struct Exp2<double> {  // 2**-29
  using Bits = int64_t;
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double c[] = {1.0000000005541674,   0.6931472057372654,  0.24022646890629862,
                                 0.055503287769675724, 0.00961848895755768, 0.0013399931218320837,
                                 0.00015345811882738758};
};

// exp(a**2 / 2) * erfc(a / sqrt(2)) / 2 in fp64 as a quotient: relative error 2**-26.5 for a up to 20, from where on
// there is nothing left of it beside the largest number of fp32. Of the one division that there is either way this
// makes more than gelu.h's polynomial, with four terms fewer. The coefficients were fitted as those are.
struct Quotient {
  static constexpr double over[] = {0.5000000050382265, 0.44686338921671725, 0.1896573446328042, 0.04281798714017413,
                                    0.004445616259985908};
  static constexpr double under[] = {1.0, 1.6916120291462464, 1.2290182627974464, 0.48643855792016605,
                                     0.10733274523936037, 0.011143444901017624};
};

template <class P>
struct WithSlope {
  P cdf;
  P slope;  // of gelu
};

template <class R>
struct LaneGelu {
  using Acc = typename R::Acc;
  using V = typename R::V;
  using P = Pair<R>;
  using E = Exp2<Acc>;
  using Bits = typename VectorOf<typename E::Bits, R::L::count>::type;
  static constexpr bool fine = sizeof(Acc) == 8;

  template <bool Tanh>
  [[gnu::always_inline]] static P cdf(const P& x) {
    const P a = absolute(x), e = exponential<Tanh>(a);
    return upper(x, vanishing<Tanh>(a, tail<Tanh>(a, e)));
  }

  template <bool Tanh>
  [[gnu::always_inline]] static WithSlope<P> with_slope(const P& x) {
    const P a = absolute(x), e = exponential<Tanh>(a), t = tail<Tanh>(a, e);
    P density;
    if constexpr (Tanh) {
      density = t * (1 - t) * (a * a * number(3 * tanh_cubic * two_sqrt_2_over_pi) + number(two_sqrt_2_over_pi));
    } else {
      density = e * number(inverse_sqrt_2pi);
    }
    const P cdf = upper(x, vanishing<Tanh>(a, t));
    return {cdf, x * vanishing<Tanh>(a, density) + cdf};
  }

 private:
  static Acc number(double value) { return static_cast<Acc>(value); }
  [[gnu::always_inline]] static P absolute(const P& x) {
    const Bits rest = ~((Bits{} + 1) << (8 * sizeof(Acc) - 1));
    return {(V)((Bits)x.a & rest), (V)((Bits)x.b & rest)};
  }
  [[gnu::always_inline]] static P upper(const P& x, const P& tail) { return tail.where_positive(x, 1 - tail); }

  template <class C, int Count>
  [[gnu::always_inline]] static P polynomial(const P& x, const C (&c)[Count]) {
    P sum = P::of(number(c[Count - 1]));
#pragma GCC unroll 16
    for (int i = Count - 2; i >= 0; --i) sum = sum * x + number(c[i]);
    return sum;
  }

  [[gnu::always_inline]] static P exp2(const P& y) {
    // 1.5 * 2**mantissa leaves no bits for a fraction, so this addition rounds y to a whole number; the low bits of
    // the sum are that number plus the bias, and in fp32 plus 64, as a result may be subnormal.
    constexpr int extra = fine ? 0 : 64;
    constexpr Acc shift = static_cast<Acc>(int64_t{3} << (E::mantissa - 1)) + (E::bias + extra);
    const P sum = y + shift;
    const P scale = {(V)((Bits)sum.a << E::mantissa), (V)((Bits)sum.b << E::mantissa)};
    const P power = polynomial(y - (sum - shift), E::c) * scale;
    return fine ? power : power * number(0x1p-64);
  }

  // exp(-a**2 / 2), or exp(-2 u).
  template <bool Tanh>
  [[gnu::always_inline]] static P exponential(const P& a) {
    if constexpr (Tanh) {
      constexpr double linear = -log2_e * two_sqrt_2_over_pi;
      return exp2(a * (a * a * number(linear * tanh_cubic) + number(linear)));
    } else {
      return exp2(a * a * number(-0.5 * log2_e));
    }
  }

  // cdf(-a), of which e is the exponential.
  template <bool Tanh>
  [[gnu::always_inline]] static P tail(const P& a, const P& e) {
    if constexpr (Tanh) {
      return e / (e + number(1));
    } else if constexpr (fine) {
      return e * polynomial(a, Quotient::over) / polynomial(a, Quotient::under);
    } else {
      constexpr auto fit = coarse_tail();
      return e * polynomial(number(1) / (a * number(fit.k) + number(1)), fit.c);
    }
  }

  // The same, or 0 where the exponential is none: too small a number, and beyond what exp2 can make.
  template <bool Tanh>
  [[gnu::always_inline]] static P vanishing(const P& a, const P& result) {
    return result.none_beyond(a, number(Tanh ? (fine ? 21 : 11.5) : (fine ? 37 : 15)));
  }
};

// fp64 rows, one lane at a time.
template <class R>
struct ExactGelu {
  using P = Pair<R>;

  template <bool Tanh>
  static P cdf(const P& x) {
    return with_slope<Tanh>(x).cdf;
  }

  template <bool Tanh>
  static WithSlope<P> with_slope(const P& x) {
    WithSlope<P> result;
    for (int i = 0; i < R::L::count; ++i) {
      const WithSlope<double> a = of_lane<Tanh>(x.a[i]), b = of_lane<Tanh>(x.b[i]);
      result.cdf.a[i] = a.cdf;
      result.cdf.b[i] = b.cdf;
      result.slope.a[i] = a.slope;
      result.slope.b[i] = b.slope;
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
