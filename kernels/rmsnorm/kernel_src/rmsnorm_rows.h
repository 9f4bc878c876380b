// SPDX-License-Identifier: Apache-2.0
// RMSNorm of a range of rows on the CPU, written once; each instruction set includes it and instantiates its own.
#pragma once

#include "rmsnorm.h"
#include "vendor/cpu_rows.h"

namespace kernelworks::rmsnorm {
namespace {

// T is the rows' type, W the weight's.
template <class Isa, class T, class W>
class RowMath {
  using R = RowLanes<Isa, T>;
  using Acc = typename R::Acc;
  using L = typename R::L;
  using V = typename R::V;

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
    R::for_columns(static_cast<int32_t>(end - begin), [&](int32_t column, int valid, int) {
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
    const T* x = R::template row_of<const T*>(params.x, row);
    Acc sum;
    if (params.residual.data == nullptr) {
      sum = R::row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
        const V value = L::load(x + column, valid);
        return value * value;
      });
    } else {
      const T* residual = R::template row_of<const T*>(params.residual, row);
      T* total = static_cast<T*>(params.residual_out) + row * problem.width;
      sum = R::row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
        const V value = L::template round_to<T>(L::load(x + column, valid) + L::load(residual + column, valid));
        L::store(total + column, value, valid);
        return value * value;
      });
      x = total;
    }
    const Acc mean = sum / problem.width;
    const Acc rstd = 1 / R::sqrt_of(mean + static_cast<Acc>(params.eps));
    if (params.rstd != nullptr) static_cast<Acc*>(params.rstd)[row] = rstd;

    T* y = static_cast<T*>(params.y) + row * problem.width;
    const W* weight = static_cast<const W*>(params.weight.data);
    const Acc offset = static_cast<Acc>(problem.weight_offset);
    const bool round = problem.round_before_weight;
    R::for_columns(problem.width, [&](int32_t column, int valid, int) __attribute__((always_inline)) {
      V value = L::load(x + column, valid) * rstd;
      if (round) value = L::template round_to<T>(value);
      if (weight != nullptr) value *= L::load(weight + column, valid) + offset;
      L::store(y + column, value, valid);
    });
  }

  static void backward_row(const BackwardParams& params, int64_t row, Acc* weight_sums) {
    const Problem& problem = params.problem;
    const T* x = R::template row_of<const T*>(params.x, row);
    const T* grad = R::template row_of<const T*>(params.grad, row);
    const T* extra = params.grad_residual.data == nullptr ? nullptr : R::template row_of<const T*>(params.grad_residual, row);
    T* grad_x = static_cast<T*>(params.grad_x) + row * problem.width;
    const W* weight = static_cast<const W*>(params.weight.data);
    const Acc offset = static_cast<Acc>(problem.weight_offset);
    const Acc rstd = static_cast<const Acc*>(params.rstd)[row];
    const bool round = problem.round_before_weight;

    const auto weighted = [&](V value, int32_t column, int valid) __attribute__((always_inline)) {
      return weight == nullptr ? value : value * (L::load(weight + column, valid) + offset);
    };
    const Acc dot = R::row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
      return weighted(L::load(grad + column, valid), column, valid) * (L::load(x + column, valid) * rstd);
    });
    const Acc mean = dot / problem.width;

    R::for_columns(problem.width, [&](int32_t column, int valid, int) __attribute__((always_inline)) {
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
