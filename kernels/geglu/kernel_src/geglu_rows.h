// SPDX-License-Identifier: Apache-2.0
// Gated GELU of a range of rows and columns on the CPU, written once; each instruction set includes it and
// instantiates its own.
#pragma once

#include "geglu.h"
#include "geglu_lanes.h"

namespace kernelworks::geglu {
namespace {

// T is the rows' type.
template <class Isa, class T, bool Tanh>
class RowMath {
  using R = typename Computing<Isa, T>::R;
  using Gelu = typename Computing<Isa, T>::Gelu;
  using P = Pair<R>;

 public:
  static void forward(const ForwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last) {
    for (int64_t row = begin; row < end; ++row) {
      const T* value = R::template row_of<const T*>(params.value, row) + first;
      const T* gate = R::template row_of<const T*>(params.gate, row) + first;
      T* y = static_cast<T*>(params.y) + row * params.problem.width + first;
      for_pairs(last - first, [&](int32_t column, int valid) __attribute__((always_inline)) {
        const P x = P::load(gate + column, valid);
        (P::load(value + column, valid) * (x * Gelu::template cdf<Tanh>(x))).store(y + column, valid);
      });
    }
  }

  static void backward(const BackwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last) {
    for (int64_t row = begin; row < end; ++row) {
      const T* grad = R::template row_of<const T*>(params.grad, row) + first;
      const T* value = R::template row_of<const T*>(params.value, row) + first;
      const T* gate = R::template row_of<const T*>(params.gate, row) + first;
      T* grad_value = static_cast<T*>(params.grad_value) + row * params.grad_stride + first;
      T* grad_gate = static_cast<T*>(params.grad_gate) + row * params.grad_stride + first;
      for_pairs(last - first, [&](int32_t column, int valid) __attribute__((always_inline)) {
        const P x = P::load(gate + column, valid), upstream = P::load(grad + column, valid);
        const auto gelu = Gelu::template with_slope<Tanh>(x);
        (upstream * (x * gelu.cdf)).store(grad_value + column, valid);
        (upstream * (P::load(value + column, valid) * gelu.slope)).store(grad_gate + column, valid);
      });
    }
  }

 private:
  // Calls step(column, valid lanes) over columns [0, width).
  template <class Step>
  static void for_pairs(int32_t width, Step step) {
    int32_t column = 0;
    for (; column <= width - P::count; column += P::count) step(column, P::count);
    if (column < width) step(column, width - column);
  }
};

// The routines of one instruction set: each finds its types, then runs RowMath.
template <class Isa>
struct Routines {
  template <class Body>
  static void with_types(const Problem& problem, Body&& body) {
    with_cpu_scalar(problem.scalar, [&](auto rows) {
      using T = typename decltype(rows)::type;
      if (problem.tanh) {
        body(RowMath<Isa, T, true>{});
      } else {
        body(RowMath<Isa, T, false>{});
      }
    });
  }
  static void forward(const ForwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last) {
    with_types(params.problem, [&](auto math) { math.forward(params, begin, end, first, last); });
  }
  static void backward(const BackwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last) {
    with_types(params.problem, [&](auto math) { math.backward(params, begin, end, first, last); });
  }
};

}  // namespace
}  // namespace kernelworks::geglu
