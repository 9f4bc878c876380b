// SPDX-License-Identifier: Apache-2.0
// The numbers behind both cumulative distribution functions of GELU, for every backend.
//
// Only the tail is computed, of a = |x|, as nothing cancels in it; the other side is one minus that:
//
//   tail(a) = cdf(-a)        cdf(x) = x > 0 ? 1 - tail(x) : tail(-x)        gelu(x) = x * cdf(x)
//
//   erf    tail(a) = exp(-a**2 / 2) * p(t),  t = 1 / (1 + k * a)
//   tanh   tail(a) = w / (1 + w),  w = exp(-2 u),  u = sqrt(2 / pi) * (a + 0.044715 * a**3)
//
// p is a polynomial that approximates exp(a**2 / 2) * erfc(a / sqrt(2)) / 2 in the relative sense for a up to 14.5,
// from where on the exponential is zero in fp32. The coefficients come from a least-squares fit whose weights were
// moved until the largest relative error was as small as it gets (Lawson's method).
//
// The derivative of gelu is cdf(x) + x * cdf'(x), with
//
//   erf    cdf'(x) = exp(-x**2 / 2) / sqrt(2 * pi)
//   tanh   cdf'(x) = tail * (1 - tail) * 2 u',  u' = sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2)
#pragma once

namespace kernelworks::geglu {

constexpr double log2_e = 1.4426950408889634;
constexpr double inverse_sqrt_2pi = 0.3989422804014327;
constexpr double two_sqrt_2_over_pi = 1.5957691216057308;
constexpr double tanh_cubic = 0.044715;

template <int Count>
struct Tail {
  double k;
  double c[Count];  // of t**0, t**1 and so on
};

// For results of 16 bits: relative error 2**-16.
constexpr Tail<6> coarse_tail() {
  return {0.36,
          {0.00018229953090455263, 0.14023979159894853, 0.16814811209948874, 0.03631102380458014, 0.2531785276046583,
           -0.09805787260180414}};
}

// For fp32 results computed in fp32: twice p over t, of powers of t - tail_center, which is small at either end, so
// that rounding errors of the first terms do not matter; 2**-29.
constexpr double tail_center = 0.625;
constexpr Tail<11> centered_tail() {
  return {0.28125,  // with few bits, so that its products are exact
          {0.5123216036001518, 0.8520227414094041, 0.9540617939996543, 0.6343772860189619, 0.10385950843101731,
           -0.18288539703131845, -0.0840781922386284, 0.07459535702866764, 0.04158729122296202, -0.03606297867112901,
           -0.020742238792415144}};
}

}  // namespace kernelworks::geglu
