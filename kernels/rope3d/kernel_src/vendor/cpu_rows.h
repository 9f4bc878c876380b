// SPDX-License-Identifier: Apache-2.0
// Rows on the CPU: from run-time types to compile-time ones, and loops over the columns of a row.
#pragma once

#include "cpu_lanes.h"
#include "dispatch.h"
#include "row_layout.h"

namespace kernelworks {
namespace {

template <class Body>
void with_cpu_scalar(Scalar scalar, Body&& body) {
  switch (scalar) {
    case Scalar::f32: body(TypeTag<float>{}); break;
    case Scalar::f16: body(TypeTag<Half>{}); break;
    case Scalar::bf16: body(TypeTag<BFloat16>{}); break;
    case Scalar::f64: body(TypeTag<double>{}); break;
  }
}

template <class T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};

// 16 bytes: what SSE2 and NEON, the baselines of x86-64 and aarch64, hold in a register.
struct Portable {
  static constexpr int bytes = 16;
  template <int Count>
  using Convert = Lanes32<Count>;
};

// Isa says how wide a register is and how 16-bit floats are converted. T is the rows' type.
template <class Isa, class T>
struct RowLanes {
  using Acc = typename Accumulator<T>::type;
  using L = Lanes<Acc, Isa::bytes, Isa::template Convert>;
  using V = typename L::V;
  static constexpr int unroll = 4;  // independent sums, to hide the latency of an addition

  // Calls step(column, valid lanes, which of the sums) over columns [0, width).
  template <class Step>
  static void for_columns(int32_t width, Step step) {
    int32_t column = 0;
    for (; column <= width - unroll * L::count; column += unroll * L::count) {
      for (int k = 0; k < unroll; ++k) step(column + k * L::count, L::count, k);
    }
    for (; column <= width - L::count; column += L::count) step(column, L::count, 0);
    if (column < width) step(column, width - column, 0);
  }

  // The sum of term(column, valid lanes) over a row, block by block: one running sum over a row 100,000 wide
  // would lose four of fp32's digits.
  template <class Term>
  static Acc row_sum(int32_t width, Term term) {
    constexpr int32_t block = 4096;
    Acc total = 0;
    for (int32_t start = 0; start < width; start += block) {
      V sums[unroll] = {};
      for_columns(width - start < block ? width - start : block,
                  [&](int32_t column, int valid, int k) __attribute__((always_inline)) {
                    sums[k] += term(start + column, valid);
                  });
      total += L::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    return total;
  }

  // Flattened, or what it calls would be a function that the linker may take from here for baseline callers.
  template <class P>
  [[gnu::flatten]] static P row_of(const Rows& rows, int64_t row) {
    return static_cast<P>(rows.data) + rows.layout.offset(row);
  }

  static float sqrt_of(float value) { return __builtin_sqrtf(value); }
  static double sqrt_of(double value) { return __builtin_sqrt(value); }
};

}  // namespace
}  // namespace kernelworks
