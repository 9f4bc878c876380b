// SPDX-License-Identifier: Apache-2.0
// Modulated normalisation of a range of rows on the CPU, written once; each instruction set instantiates its own.
#pragma once

#include "adaln_fold.h"

namespace kernelworks::adaln {
namespace {

// T is the rows' type.
template <class Isa, class T>
class RowMath {
  using R = RowLanes<Isa, T>;
  using Acc = typename R::Acc;
  using L = typename R::L;
  using V = typename R::V;
  using Fold = Folded<Isa, T>;

 public:
  static void forward(const ForwardParams& params, int64_t begin, int64_t end) {
    Fold fold;
    for (int64_t row = begin; row < end; ++row) forward_row(params, fold, row);
  }

  static void backward(const BackwardParams& params, int64_t begin, int64_t end) {
    Fold fold;
    const Problem& problem = params.problem;
    const int64_t each = params.sums_each() * static_cast<int64_t>(problem.width);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = item / params.parts, part = item % params.parts;
      Acc* sums = params.wants_sums() ? static_cast<Acc*>(params.partials) + item * each : nullptr;
      for (int64_t i = 0; sums != nullptr && i < each; ++i) sums[i] = 0;
      const int64_t first = group * problem.group_rows + problem.group_rows * part / params.parts;
      const int64_t last = group * problem.group_rows + problem.group_rows * (part + 1) / params.parts;
      for (int64_t row = first; row < last; ++row) backward_row(params, fold, group, row, sums);
    }
  }

  static void reduce_partials(const BackwardParams& params, int64_t begin, int64_t end) {
    for (int64_t start = begin; start < end; start += Reduction::block) {
      const int64_t left = end - start;
      reduce_block(params, static_cast<int32_t>(start),
                   left < Reduction::block ? static_cast<int32_t>(left) : Reduction::block);
    }
  }

 private:
  struct Statistics {
    Acc mean;
    Acc rstd;
  };

  // residual + gate * x, rounded to T and stored; the row that lies there then.
  static const T* add_row(const ForwardParams& params, Fold& fold, int64_t row) {
    const int32_t width = params.problem.width;
    const int64_t group = row / params.problem.group_rows;
    const T* x = R::template row_of<const T*>(params.x, row);
    const T* residual = R::template row_of<const T*>(params.residual, row);
    T* total = static_cast<T*>(params.residual_out) + row * width;
    Fold::for_blocks(params.problem, [&](int32_t start, int32_t count) {
      const Acc* gate = fold.gate(params.gate, group, start, count);
      Fold::for_vectors(count, [&](int32_t i, int valid) __attribute__((always_inline)) {
        const V added = L::load(gate + i, valid) * L::load(x + start + i, valid);
        L::store(total + start + i, L::load(residual + start + i, valid) + added, valid);
      });
    });
    return total;
  }

  // Two passes: the mean of squares less the square of the mean would lose all digits of a row far from zero.
  static Statistics statistics(const Problem& problem, double eps, const T* v) {
    Acc mean = 0;
    if (problem.norm == Norm::layer) {
      mean = R::row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
        return L::load(v + column, valid);
      }) / problem.width;
    }
    const Acc squares = R::row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
      const V centred = first_lanes(L::load(v + column, valid) - mean, valid);
      return centred * centred;
    });
    return {mean, 1 / R::sqrt_of(squares / problem.width + static_cast<Acc>(eps))};
  }

  // The lanes after the first `valid` become zero.
  static V first_lanes(V value, int valid) {
    if (valid == L::count) return value;
    Acc lane[L::count];
    L::store(lane, value);
    return L::load(lane, valid);
  }

  static void forward_row(const ForwardParams& params, Fold& fold, int64_t row) {
    const Problem& problem = params.problem;
    const T* v = params.residual.data == nullptr ? maybe_row(params.x, row) : add_row(params, fold, row);
    if (params.y == nullptr) return;
    const Statistics found = statistics(problem, params.eps, v);
    if (params.mean != nullptr) static_cast<Acc*>(params.mean)[row] = found.mean;
    if (params.rstd != nullptr) static_cast<Acc*>(params.rstd)[row] = found.rstd;

    T* y = static_cast<T*>(params.y) + row * problem.width;
    Fold::for_blocks(problem, [&](int32_t start, int32_t count) {
      const auto to = fold.affine(params.scale, params.shift, params.weight, params.bias, row / problem.group_rows,
                                  start, count);
      Fold::for_vectors(count, [&](int32_t i, int valid) __attribute__((always_inline)) {
        const V n = (L::load(v + start + i, valid) - found.mean) * found.rstd;
        L::store(y + start + i, n * L::load(to.a + i, valid) + L::load(to.b + i, valid), valid);
      });
    });
  }

  static const T* maybe_row(const Rows& rows, int64_t row) {
    return rows.data == nullptr ? nullptr : R::template row_of<const T*>(rows, row);
  }

  // What one row of backward reads. Null: not there.
  struct BackwardRow {
    const T* grad;
    const T* extra;  // gradient of residual_out
    const T* v;
    const T* x;
    Acc mean;
    Acc rstd;

    V n(int32_t column, int valid) const __attribute__((always_inline)) {
      return (L::load(v + column, valid) - mean) * rstd;
    }
  };

  static BackwardRow backward_row_of(const BackwardParams& params, int64_t row) {
    return {maybe_row(params.grad, row),
            maybe_row(params.grad_residual, row),
            maybe_row(params.v, row),
            maybe_row(params.x, row),
            params.mean == nullptr ? 0 : static_cast<const Acc*>(params.mean)[row],
            params.rstd == nullptr ? 0 : static_cast<const Acc*>(params.rstd)[row]};
  }

  // mean(grad * a * n) and, for layer, mean(grad * a).
  struct Means {
    Acc with_n = 0;
    Acc plain = 0;
  };

  static const Acc* a_of(const BackwardParams& params, Fold& fold, int64_t group, int32_t start, int32_t count) {
    return fold.affine(params.scale, no_modulator, params.weight, no_columns, group, start, count).a;
  }

  static Means means_of(const BackwardParams& params, Fold& fold, int64_t group, const BackwardRow& in) {
    Means means;
    if (in.grad == nullptr) return means;
    const int32_t width = params.problem.width;
    Fold::for_blocks(params.problem, [&](int32_t start, int32_t count) {
      const Acc* a = a_of(params, fold, group, start, count);
      means.with_n += R::row_sum(count, [&](int32_t i, int valid) __attribute__((always_inline)) {
        return L::load(in.grad + start + i, valid) * L::load(a + i, valid) * in.n(start + i, valid);
      });
      if (params.problem.norm == Norm::rms) return;
      means.plain += R::row_sum(count, [&](int32_t i, int valid) __attribute__((always_inline)) {
        return L::load(in.grad + start + i, valid) * L::load(a + i, valid);
      });
    });
    return {means.with_n / width, means.plain / width};
  }

  static void backward_row(const BackwardParams& params, Fold& fold, int64_t group, int64_t row, Acc* sums) {
    const int32_t width = params.problem.width;
    const BackwardRow in = backward_row_of(params, row);
    const Means means = means_of(params, fold, group, in);
    T* grad_v = params.grad_v == nullptr ? nullptr : static_cast<T*>(params.grad_v) + row * width;
    T* grad_x = params.grad_x == nullptr ? nullptr : static_cast<T*>(params.grad_x) + row * width;

    const auto add = [&](int which, int32_t column, int valid, V term) __attribute__((always_inline)) {
      Acc* sum = sums + which * static_cast<int64_t>(width) + column;
      L::store(sum, L::load(sum, valid) + term, valid);
    };
    Fold::for_blocks(params.problem, [&](int32_t start, int32_t count) {
      const Acc* a = in.grad == nullptr ? nullptr : a_of(params, fold, group, start, count);
      const Acc* gate = grad_x == nullptr ? nullptr : fold.gate(params.gate, group, start, count);
      Fold::for_vectors(count, [&](int32_t i, int valid) __attribute__((always_inline)) {
        const int32_t column = start + i;
        V result = {};
        if (in.grad != nullptr) {
          const V grad = L::load(in.grad + column, valid);
          const V n = in.n(column, valid);
          result = in.rstd * (grad * L::load(a + i, valid) - n * means.with_n - means.plain);
          if (sums != nullptr) {
            add(0, column, valid, grad);
            add(1, column, valid, grad * n);
          }
        }
        if (in.extra != nullptr) result += L::load(in.extra + column, valid);
        if (grad_v != nullptr) L::store(grad_v + column, result, valid);
        if (grad_x != nullptr) L::store(grad_x + column, result * L::load(gate + i, valid), valid);
        if (in.x != nullptr && sums != nullptr) add(2, column, valid, result * L::load(in.x + column, valid));
      });
    });
  }

  // Sums of a block of columns, and over groups in two steps: one running sum over 100,000 groups would lose
  // four of fp32's digits.
  struct Reduction {
    static constexpr int32_t block = 1024;
    static constexpr int64_t groups_at_once = 64;
    Acc sum[3][block];   // of a group: S0, S1, and that of the gate's gradient
    Acc scale[block];    // weight * S1 + bias * S0
    Acc some[2][block];  // of (1 + scale) * S1 and (1 + scale) * S0, over a few groups
    Acc all[2][block];
  };

  static void reduce_block(const BackwardParams& params, int32_t start, int32_t count) {
    Reduction r;
    Fold fold;
    for (int which = 0; which < 2; ++which) {
      Fold::fill(r.some[which], count, 0);
      Fold::fill(r.all[which], count, 0);
    }
    const bool affine = params.grad_weight.data != nullptr || params.grad_bias.data != nullptr;
    const int64_t groups = params.problem.groups();
    for (int64_t group = 0; group < groups; ++group) {
      for (int which = 0; which < params.sums_each(); ++which) {
        sum_parts(params, group, which, start, count, r.sum[which]);
      }
      if (params.grad_scale.data != nullptr) fold_scale_sum(params, start, count, r);
      store_sum(params, params.grad_shift, group, start, count, r.sum[0]);
      store_sum(params, params.grad_scale, group, start, count, r.scale);
      store_sum(params, params.grad_gate, group, start, count, r.sum[2]);
      if (!affine) continue;
      const Acc* scale = fold.affine(params.scale, no_modulator, no_columns, no_columns, group, start, count).a;
      const bool last = group + 1 == groups || (group + 1) % Reduction::groups_at_once == 0;
      for (int which = 0; which < 2; ++which) {
        const Acc* sum = r.sum[1 - which];
        for (int32_t i = 0; i < count; ++i) r.some[which][i] += scale[i] * sum[i];
        for (int32_t i = 0; last && i < count; ++i) {
          r.all[which][i] += r.some[which][i];
          r.some[which][i] = 0;
        }
      }
    }
    store_sum(params, params.grad_weight, 0, start, count, r.all[0]);
    store_sum(params, params.grad_bias, 0, start, count, r.all[1]);
  }

  static void sum_parts(const BackwardParams& params, int64_t group, int which, int32_t start, int32_t count, Acc* to) {
    const int64_t width = params.problem.width, each = params.sums_each();
    const Acc* from = static_cast<const Acc*>(params.partials) + (group * params.parts * each + which) * width + start;
    Fold::fill(to, count, 0);
    for (int32_t part = 0; part < params.parts; ++part) {
      for (int32_t i = 0; i < count; ++i) to[i] += from[part * each * width + i];
    }
  }

  static void fold_scale_sum(const BackwardParams& params, int32_t start, int32_t count, Reduction& r) {
    Fold::for_vectors(count, [&](int32_t i, int valid) { L::store(r.scale + i, L::load(r.sum[1] + i, valid), valid); });
    const auto multiply = [&](const Columns& by, const Acc* what, bool add) {
      if (by.data == nullptr) return;
      Fold::with_columns(by, [&](auto from) {
        Fold::for_vectors(count, [&](int32_t i, int valid) {
          const V product = L::load(from + start + i, valid) * L::load(what + i, valid);
          L::store(r.scale + i, add ? L::load(r.scale + i, valid) + product : product, valid);
        });
      });
    };
    multiply(params.weight, r.sum[1], false);
    multiply(params.bias, r.sum[0], true);
  }

  static void store_sum(const BackwardParams& params, const Sum& to, int64_t group, int32_t start, int32_t count,
                        const Acc* from) {
    if (to.data == nullptr) return;
    with_cpu_scalar(to.scalar, [&](auto tag) {
      using P = typename decltype(tag)::type;
      P* out = static_cast<P*>(to.data) + group * params.problem.width + start;
      Fold::for_vectors(count, [&](int32_t i, int valid) { L::store(out + i, L::load(from + i, valid), valid); });
    });
  }
};

// The routines of one instruction set: each finds the rows' type, then runs RowMath.
template <class Isa>
struct Routines {
  template <class Body>
  static void with_type(const Problem& problem, Body&& body) {
    with_cpu_scalar(problem.scalar, [&](auto tag) { body(RowMath<Isa, typename decltype(tag)::type>{}); });
  }
  static void forward(const ForwardParams& params, int64_t begin, int64_t end) {
    with_type(params.problem, [&](auto math) { math.forward(params, begin, end); });
  }
  static void backward(const BackwardParams& params, int64_t begin, int64_t end) {
    with_type(params.problem, [&](auto math) { math.backward(params, begin, end); });
  }
  static void reduce_partials(const BackwardParams& params, int64_t begin, int64_t end) {
    with_type(params.problem, [&](auto math) { math.reduce_partials(params, begin, end); });
  }
};

}  // namespace
}  // namespace kernelworks::adaln
