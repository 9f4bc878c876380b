// SPDX-License-Identifier: Apache-2.0
// The rotation of a range of tokens on the CPU, written once; each instruction set instantiates its own.
#pragma once

#include "rope3d_angles.h"

namespace kernelworks::rope3d {
namespace {

// T is the rows' type.
template <class Isa, class T>
class TokenMath {
  using R = RowLanes<Isa, T>;
  using Acc = typename R::Acc;
  using L = typename R::L;
  using V = typename R::V;
  using N = Neighbours<L>;

 public:
  static void forward(const ForwardParams& params, int64_t begin, int64_t end) {
    const Problem& problem = params.problem;
    Turns<Isa, T> turns(problem, params.angles, params.inverse);
    const Weights q_weight(problem, params.q.weight, params.q.heads);
    const Weights k_weight(problem, params.k.weight, params.k.heads);
    for_tokens(problem, begin, end, [&](int64_t sample, int64_t token) {
      turns.move_to(sample, token);
      forward_token(params, turns, params.q, q_weight.get(), sample, token);
      forward_token(params, turns, params.k, k_weight.get(), sample, token);
    });
  }

  static void backward(const BackwardParams& params, int64_t begin, int64_t end, int32_t partial) {
    const Problem& problem = params.problem;
    Turns<Isa, T> turns(problem, params.angles, true);
    const Weights q_weight(problem, params.q.weight, params.q.heads);
    const Weights k_weight(problem, params.k.weight, params.k.heads);
    const int32_t most_heads = params.q.heads > params.k.heads ? params.q.heads : params.k.heads;
    const Scratch<Acc> turned(length(problem, most_heads), L::count);
    Acc* q_sums = sums_of(problem, params.q, partial);
    Acc* k_sums = sums_of(problem, params.k, partial);
    for_tokens(problem, begin, end, [&](int64_t sample, int64_t token) {
      turns.move_to(sample, token);
      backward_token(problem, turns, params.q, q_weight.get(), q_sums, turned.get(), sample, token);
      backward_token(problem, turns, params.k, k_weight.get(), k_sums, turned.get(), sample, token);
    });
  }

  static void reduce_partials(const BackwardParams& params, const BackwardTensor& tensor, int64_t begin, int64_t end) {
    const int64_t width = length(params.problem, tensor.heads);
    const Acc* partials = static_cast<const Acc*>(tensor.partials) + begin;
    with_cpu_scalar(tensor.weight.scalar, [&](auto scalar) {
      auto* out = static_cast<typename decltype(scalar)::type*>(tensor.grad_weight) + begin;
      R::for_columns(static_cast<int32_t>(end - begin), [&](int32_t column, int valid, int) {
        V sum = {};
        for (int32_t row = 0; row < params.partial_rows; ++row) sum += L::load(partials + row * width + column, valid);
        L::store(out + column, sum, valid);
      });
    });
  }

 private:
  // How many numbers are normalised together, and the weight has.
  static int64_t length(const Problem& problem, int32_t heads) {
    return problem.norm == Norm::full ? static_cast<int64_t>(heads) * problem.width : problem.width;
  }

  // A weight in the accumulator's type, so that no other type of weight needs code of its own.
  class Weights {
   public:
    Weights(const Problem& problem, const Weight& weight, int32_t heads)
        : values_(weight.data == nullptr ? 0 : length(problem, heads), L::count) {
      if (weight.data == nullptr) return;
      with_cpu_scalar(weight.scalar, [&](auto scalar) {
        const auto* from = static_cast<const typename decltype(scalar)::type*>(weight.data);
        for (int64_t start = 0; start < length(problem, heads); start += problem.width) {
          R::for_columns(problem.width, [&](int32_t column, int valid, int) {
            L::store(&values_[start + column], L::load(from + start + column, valid), valid);
          });
        }
      });
    }
    const Acc* get() const { return values_.get(); }

   private:
    Scratch<Acc> values_;
  };

  template <class Body>
  static void for_tokens(const Problem& problem, int64_t begin, int64_t end, Body body) {
    for (int64_t i = begin; i < end; ++i) body(i % problem.batch, i / problem.batch);
  }

  template <class Element>
  static Element* row_of(Element* data, const Strides& strides, int64_t sample, int64_t token, int32_t head) {
    return data + sample * strides.batch + token * strides.token + head * strides.head;
  }

  // Turns the pairs of a head: load(column, valid) gives lanes, store(column, value, valid) takes them.
  template <class Load, class Store>
  static void turn(const Problem& problem, const Turns<Isa, T>& turns, const Load& load, const Store& store) {
    const Acc* cosines = turns.lane_cos();
    const Acc* sines = turns.lane_sin();
    const int32_t pairs = problem.pairs;
    if (problem.interleaved) {
      R::for_columns(2 * pairs, [&](int32_t lane, int valid, int) __attribute__((always_inline)) {
        const V value = load(lane, valid);
        store(lane, value * L::load(cosines + lane) + N::swapped(value) * L::load(sines + lane), valid);
      });
    } else {
      R::for_columns(pairs, [&](int32_t pair, int valid, int) __attribute__((always_inline)) {
        const V first = load(pair, valid), second = load(pairs + pair, valid);
        const V cosine = L::load(cosines + pair), sine = L::load(sines + pair);
        store(pair, first * cosine - second * sine, valid);
        store(pairs + pair, second * cosine + first * sine, valid);
      });
    }
  }

  // Lanes beyond the pairs as they come.
  template <class Load, class Store>
  static void pass(const Problem& problem, const Load& load, const Store& store) {
    const int32_t start = 2 * problem.pairs;
    R::for_columns(problem.width - start, [&](int32_t column, int valid, int) __attribute__((always_inline)) {
      store(start + column, load(start + column, valid), valid);
    });
  }

  static Acc squares(const Problem& problem, const T* x) {
    return R::row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
      const V value = L::load(x + column, valid);
      return value * value;
    });
  }

  static Acc rstd_of(const Problem& problem, Acc sum, int32_t heads) {
    return 1 / R::sqrt_of(sum / static_cast<Acc>(length(problem, heads)) + static_cast<Acc>(problem.eps));
  }

  static int64_t token_index(const Problem& problem, int64_t sample, int64_t token) {
    return sample * problem.tokens + token;
  }

  static void forward_token(const ForwardParams& params, const Turns<Isa, T>& turns, const ForwardTensor& tensor,
                            const Acc* weight, int64_t sample, int64_t token) {
    const Problem& problem = params.problem;
    const auto in_row = [&](int32_t head) {
      return row_of(static_cast<const T*>(tensor.in), tensor.in_strides, sample, token, head);
    };
    const int64_t index = token_index(problem, sample, token);
    Acc* rstds = static_cast<Acc*>(tensor.rstd);
    Acc rstd = 0;
    if (problem.norm == Norm::full && tensor.heads > 0) {
      Acc sum = 0;
      for (int32_t head = 0; head < tensor.heads; ++head) sum += squares(problem, in_row(head));
      rstd = rstd_of(problem, sum, tensor.heads);
      if (rstds != nullptr) rstds[index] = rstd;
    }
    for (int32_t head = 0; head < tensor.heads; ++head) {
      const T* in = in_row(head);
      T* out = row_of(static_cast<T*>(tensor.out), tensor.out_strides, sample, token, head);
      if (problem.norm == Norm::none) {
        turn_row(problem, turns, in, out);
        continue;
      }
      if (problem.norm == Norm::head) {
        rstd = rstd_of(problem, squares(problem, in), 1);
        if (rstds != nullptr) rstds[index * tensor.heads + head] = rstd;
      }
      const int64_t start = problem.norm == Norm::full ? static_cast<int64_t>(head) * problem.width : 0;
      turn_normed_row(problem, turns, in, out, rstd, weight == nullptr ? nullptr : weight + start);
    }
  }

  static void turn_row(const Problem& problem, const Turns<Isa, T>& turns, const T* in, T* out) {
    turn(problem, turns, [&](int32_t column, int valid) __attribute__((always_inline)) {
      return L::load(in + column, valid);
    }, [&](int32_t column, V value, int valid) __attribute__((always_inline)) {
      L::store(out + column, value, valid);
    });
    const int32_t start = 2 * problem.pairs;
    // Bit for bit: what a NaN carries would not survive a conversion.
    if (in != out && start < problem.width) memcpy(out + start, in + start, (problem.width - start) * sizeof(T));
  }

  static void turn_normed_row(const Problem& problem, const Turns<Isa, T>& turns, const T* in, T* out, Acc rstd,
                              const Acc* weight) {
    const auto load = [&](int32_t column, int valid) __attribute__((always_inline)) {
      const V normed = L::load(in + column, valid) * rstd;
      return weight == nullptr ? normed : normed * L::load(weight + column, valid);
    };
    const auto store = [&](int32_t column, V value, int valid) __attribute__((always_inline)) {
      L::store(out + column, value, valid);
    };
    turn(problem, turns, load, store);
    pass(problem, load, store);
  }

  // Zeroed; null where the gradient of the weight is not wanted.
  static Acc* sums_of(const Problem& problem, const BackwardTensor& tensor, int32_t partial) {
    if (tensor.grad_weight == nullptr) return nullptr;
    const int64_t count = length(problem, tensor.heads);
    Acc* sums = static_cast<Acc*>(tensor.partials) + partial * count;
    for (int64_t i = 0; i < count; ++i) sums[i] = 0;
    return sums;
  }

  static void backward_token(const Problem& problem, const Turns<Isa, T>& turns, const BackwardTensor& tensor,
                             const Acc* weight, Acc* sums, Acc* turned, int64_t sample, int64_t token) {
    const bool full = problem.norm == Norm::full;
    const int64_t index = token_index(problem, sample, token);
    const Acc* rstds = static_cast<const Acc*>(tensor.rstd);
    const int32_t together = full ? tensor.heads : 1;  // heads that are normalised as one
    for (int32_t first = 0; first < tensor.heads; first += together) {
      const Acc rstd = rstds[full ? index : index * tensor.heads + first];
      Acc dot = 0;
      for (int32_t i = 0; i < together; ++i) {
        const int64_t start = static_cast<int64_t>(i) * problem.width;
        const T* grad = row_of(static_cast<const T*>(tensor.grad), tensor.grad_strides, sample, token, first + i);
        const T* x = row_of(static_cast<const T*>(tensor.x), tensor.x_strides, sample, token, first + i);
        turn_grad_row(problem, turns, grad, turned + start);
        dot += dot_row(problem, turned + start, x, rstd, weight == nullptr ? nullptr : weight + start);
      }
      const Acc mean = dot / static_cast<Acc>(length(problem, tensor.heads));
      for (int32_t i = 0; i < together; ++i) {
        const int64_t start = static_cast<int64_t>(i) * problem.width;
        const T* x = row_of(static_cast<const T*>(tensor.x), tensor.x_strides, sample, token, first + i);
        T* grad_x = row_of(static_cast<T*>(tensor.grad_x), tensor.grad_x_strides, sample, token, first + i);
        backward_row(problem, turned + start, x, grad_x, rstd, mean, weight == nullptr ? nullptr : weight + start,
                     sums == nullptr ? nullptr : sums + start);
      }
    }
  }

  static void turn_grad_row(const Problem& problem, const Turns<Isa, T>& turns, const T* grad, Acc* turned) {
    const auto load = [&](int32_t column, int valid) __attribute__((always_inline)) {
      return L::load(grad + column, valid);
    };
    const auto store = [&](int32_t column, V value, int valid) __attribute__((always_inline)) {
      L::store(turned + column, value, valid);
    };
    turn(problem, turns, load, store);
    pass(problem, load, store);
  }

  static V weighted(V value, const Acc* weight, int32_t column, int valid) {
    return weight == nullptr ? value : value * L::load(weight + column, valid);
  }

  static Acc dot_row(const Problem& problem, const Acc* turned, const T* x, Acc rstd, const Acc* weight) {
    return R::row_sum(problem.width, [&](int32_t column, int valid) __attribute__((always_inline)) {
      return weighted(L::load(turned + column, valid), weight, column, valid) * (L::load(x + column, valid) * rstd);
    });
  }

  static void backward_row(const Problem& problem, const Acc* turned, const T* x, T* grad_x, Acc rstd, Acc mean,
                           const Acc* weight, Acc* sums) {
    R::for_columns(problem.width, [&](int32_t column, int valid, int) __attribute__((always_inline)) {
      const V grad = L::load(turned + column, valid);
      const V normed = L::load(x + column, valid) * rstd;
      L::store(grad_x + column, rstd * (weighted(grad, weight, column, valid) - normed * mean), valid);
      if (sums != nullptr) L::store(sums + column, L::load(sums + column, valid) + grad * normed, valid);
    });
  }
};

// The routines of one instruction set: each finds its type, then runs TokenMath.
template <class Isa>
struct Routines {
  template <class Body>
  static void with_type(const Problem& problem, Body&& body) {
    with_cpu_scalar(problem.scalar, [&](auto rows) { body(TokenMath<Isa, typename decltype(rows)::type>{}); });
  }
  static void forward(const ForwardParams& params, int64_t begin, int64_t end) {
    with_type(params.problem, [&](auto math) { math.forward(params, begin, end); });
  }
  static void backward(const BackwardParams& params, int64_t begin, int64_t end, int32_t partial) {
    with_type(params.problem, [&](auto math) { math.backward(params, begin, end, partial); });
  }
  static void reduce_partials(const BackwardParams& params, const BackwardTensor& tensor, int64_t begin, int64_t end) {
    with_type(params.problem, [&](auto math) { math.reduce_partials(params, tensor, begin, end); });
  }
};

}  // namespace
}  // namespace kernelworks::rope3d
