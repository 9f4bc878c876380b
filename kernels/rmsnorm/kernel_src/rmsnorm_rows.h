// SPDX-License-Identifier: Apache-2.0
// RMSNorm of a range of rows on the CPU, written once; each instruction set includes it and instantiates its own.
#pragma once

#include "rmsnorm.h"
#include "vendor/cpu_lanes.h"

namespace kernelworks::rmsnorm {
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

// Isa says how wide a register is and how 16-bit floats are converted. T is the rows' type, W the weight's.
template <class Isa, class T, class W>
class RowMath {
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

  template <class P>
  static P row_of(const Rows& rows, int64_t row) {
    return static_cast<P>(rows.data) + rows.layout.offset(row);
  }

 public:
  static void forward(const ForwardParams& params, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) forward_row(params, row);
  }

  static void backward(const BackwardParams& params, int64_t begin, int64_t end, int32_t partial) {
    Acc* sums = nullptr;
    if (params.grad_weight != nullptr) {
      sums = static_cast<Acc*>(params.partials) + partial * static_cast<int64_t>(params.problem.width);
      for (int32_t column = 0; column < params.problem.width; ++column) sums[column] = 0;
    }
    for (int64_t row = begin; row < end; ++row) backward_row(params, row, sums);
  }

  static void reduce_partials(const BackwardParams& params, int64_t begin, int64_t end) {
    const Acc* partials = static_cast<const Acc*>(params.partials) + begin;
    W* out = static_cast<W*>(params.grad_weight) + begin;
    for_columns(static_cast<int32_t>(end - begin), [&](int32_t column, int valid, int) {
      V sum = {};
      for (int32_t row = 0; row < params.partial_rows; ++row) {
        sum += L::load(partials + row * static_cast<int64_t>(params.problem.width) + column, valid);
      }
      L::store(out + column, sum, valid);
    });
  }

 private:
  static void forward_row(const ForwardParams& params, int64_t row) {
    const Problem& problem = params.problem;
    const T* x = row_of<const T*>(params.x, row);
    Acc sum;
    if (params.residual.data == nullptr) {
      sum = row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
        const V value = L::load(x + column, valid);
        return value * value;
      });
    } else {
      const T* residual = row_of<const T*>(params.residual, row);
      T* total = static_cast<T*>(params.residual_out) + row * problem.width;
      sum = row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
        const V value = L::template round_to<T>(L::load(x + column, valid) + L::load(residual + column, valid));
        L::store(total + column, value, valid);
        return value * value;
      });
      x = total;
    }
    const Acc mean = sum / problem.width;
    const Acc rstd = 1 / sqrt_of(mean + static_cast<Acc>(params.eps));
    if (params.rstd != nullptr) static_cast<Acc*>(params.rstd)[row] = rstd;

    T* y = static_cast<T*>(params.y) + row * problem.width;
    const W* weight = static_cast<const W*>(params.weight.data);
    const Acc offset = static_cast<Acc>(problem.weight_offset);
    const bool round = problem.round_before_weight;
    for_columns(problem.width, [&](int32_t column, int valid, int) __attribute__((always_inline)) {
      V value = L::load(x + column, valid) * rstd;
      if (round) value = L::template round_to<T>(value);
      if (weight != nullptr) value *= L::load(weight + column, valid) + offset;
      L::store(y + column, value, valid);
    });
  }

  static void backward_row(const BackwardParams& params, int64_t row, Acc* weight_sums) {
    const Problem& problem = params.problem;
    const T* x = row_of<const T*>(params.x, row);
    const T* grad = row_of<const T*>(params.grad, row);
    const T* extra = params.grad_residual.data == nullptr ? nullptr : row_of<const T*>(params.grad_residual, row);
    T* grad_x = static_cast<T*>(params.grad_x) + row * problem.width;
    const W* weight = static_cast<const W*>(params.weight.data);
    const Acc offset = static_cast<Acc>(problem.weight_offset);
    const Acc rstd = static_cast<const Acc*>(params.rstd)[row];
    const bool round = problem.round_before_weight;

    const auto weighted = [&](V value, int32_t column, int valid) __attribute__((always_inline)) {
      return weight == nullptr ? value : value * (L::load(weight + column, valid) + offset);
    };
    const Acc dot = row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
      return weighted(L::load(grad + column, valid), column, valid) * (L::load(x + column, valid) * rstd);
    });
    const Acc mean = dot / problem.width;

    for_columns(problem.width, [&](int32_t column, int valid, int) __attribute__((always_inline)) {
      const V grad_values = L::load(grad + column, valid);
      const V n = L::load(x + column, valid) * rstd;
      V result = rstd * (weighted(grad_values, column, valid) - n * mean);
      if (extra != nullptr) result += L::load(extra + column, valid);
      L::store(grad_x + column, result, valid);
      if (weight_sums != nullptr) {
        const V multiplied = round ? L::template round_to<T>(n) : n;
        L::store(weight_sums + column, L::load(weight_sums + column, valid) + grad_values * multiplied, valid);
      }
    });
  }

  static float sqrt_of(float value) { return __builtin_sqrtf(value); }
  static double sqrt_of(double value) { return __builtin_sqrt(value); }
};

// The routines of one instruction set: each finds its types, then runs RowMath.
template <class Isa>
struct Routines {
  template <class Body>
  static void with_types(const Problem& problem, const Weight& weight, Body&& body) {
    with_cpu_scalar(problem.scalar, [&](auto rows) {
      with_cpu_scalar(weight.scalar, [&](auto weights) {
        body(RowMath<Isa, typename decltype(rows)::type, typename decltype(weights)::type>{});
      });
    });
  }
  static void forward(const ForwardParams& params, int64_t begin, int64_t end) {
    with_types(params.problem, params.weight, [&](auto math) { math.forward(params, begin, end); });
  }
  static void backward(const BackwardParams& params, int64_t begin, int64_t end, int32_t partial) {
    with_types(params.problem, params.weight, [&](auto math) { math.backward(params, begin, end, partial); });
  }
  static void reduce_partials(const BackwardParams& params, int64_t begin, int64_t end) {
    with_types(params.problem, params.weight, [&](auto math) { math.reduce_partials(params, begin, end); });
  }
};

}  // namespace
}  // namespace kernelworks::rmsnorm
