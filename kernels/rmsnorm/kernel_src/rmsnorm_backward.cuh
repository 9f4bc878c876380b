// SPDX-License-Identifier: Apache-2.0
// RMSNorm backward on the GPU: persistent blocks that copy rows ahead and keep their sums for the weight's gradient.
#pragma once

#include "rmsnorm_kernel.cuh"
#include "vendor/launch.cuh"
#include "vendor/row_ring.cuh"

namespace kernelworks::rmsnorm {

// The sum over a granule of grad * weight * x; times rstd, that is grad * weight * n.
template <class T>
__device__ __forceinline__ float weighted_dot(const Granule<T>& x, const Granule<T>& grad,
                                              const float (&factors)[Granule<T>::size], float dot) {
  float xs[Granule<T>::size], grads[Granule<T>::size];
  x.unpack(xs);
  grad.unpack(grads);
#pragma unroll
  for (int i = 0; i < Granule<T>::size; ++i) dot = fmaf(grads[i] * factors[i], xs[i], dot);
  return dot;
}

struct RowGradient {
  float rstd;
  float pull;  // rstd * rstd * mean(grad * weight * n): how much of x is taken off
  bool round_before_weight;

  // grad_x into `result`, which comes with what else is to be added; grad * n is added to `sums`, n rounded where
  // forward rounded it.
  template <class T>
  __device__ void add(const Granule<T>& x, const Granule<T>& grad, const float (&factors)[Granule<T>::size],
                      float (&result)[Granule<T>::size], float (&sums)[Granule<T>::size]) const {
    float xs[Granule<T>::size], grads[Granule<T>::size];
    x.unpack(xs);
    grad.unpack(grads);
#pragma unroll
    for (int i = 0; i < Granule<T>::size; ++i) {
      result[i] = fmaf(rstd, grads[i] * factors[i], fmaf(-pull, xs[i], result[i]));
      xs[i] *= rstd;
    }
    if (round_before_weight) round_to<T>(xs);
#pragma unroll
    for (int i = 0; i < Granule<T>::size; ++i) sums[i] = fmaf(grads[i], xs[i], sums[i]);
  }
};

template <class T, int Width, int Held, bool AnyType>
__global__ void __launch_bounds__(max_backward_block)
    backward_kernel(const __grid_constant__ BackwardParams params, Ring shape) {
  constexpr int size = Granule<T>::size;
  __shared__ float scratch[2][1][max_warps];

  const Problem& problem = params.problem;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  // The block's partial of grad_weight. Each thread adds to its own columns only: no atomics, and one order.
  float* partial = params.grad_weight == nullptr
                       ? nullptr
                       : static_cast<float*>(params.partials) + static_cast<int64_t>(blockIdx.x) * problem.width;
  const RowRing<T, Width, Held> ring(shape);
  const auto start = [&](int64_t row, int stage) {
    if (row < problem.rows) {
      ring.start(stage, 0, row_of<T>(params.x, row), problem.width);
      ring.start(stage, 1, row_of<T>(params.grad, row), problem.width);
      if (ring.streams == 3) ring.start(stage, 2, row_of<T>(params.grad_residual, row), problem.width);
    } else {  // a row of threads without a row works on zeros, as all of a block meet in the reduction
      for (int stream = 0; stream < ring.streams; ++stream) ring.clear(stage, stream);
    }
    end_group();  // an empty one too, so that their number tells which rows have come
  };
  const auto rstd_of_row = [&](int64_t row) {
    return row < problem.rows ? static_cast<const float*>(params.rstd)[row] : 0.0f;
  };

  wait_for_earlier_kernels();
  for (int stage = 0; stage < ring.stages; ++stage) start(first + stage * step, stage);
  const Scale<T, Width, Held, AnyType> scale(problem, params.weight);
  let_next_kernel_start();
  float weight_sums[Held][size] = {};
  const float inverse_width = 1.0f / problem.width;
  const bool beyond = column_of<T>(Held) < problem.width;  // columns that are in no slot, and are read twice
  float next_rstd = rstd_of_row(first);

  int stage = 0, turn = 0;
  for (int64_t row = first; row - threadIdx.y < problem.rows; row += step, turn ^= 1) {
    const bool live = row < problem.rows;
    const int width = live ? problem.width : 0;
    const int64_t safe = live ? row : 0;
    T* grad_x = static_cast<T*>(params.grad_x) + safe * problem.width;
    const float rstd = next_rstd;
    next_rstd = rstd_of_row(row + step);

    wait_for_groups(ring.stages - 1);
    Granule<T> xs[Held], grads[Held];
    float factors[size];
    float dot = 0;
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      xs[g] = *ring.at(stage, 0, g);
      grads[g] = *ring.at(stage, 1, g);
      scale.get(g, column_of<T>(g), factors);
      dot = weighted_dot(xs[g], grads[g], factors, dot);
    }
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      xs[g].keep_packed();
      grads[g].keep_packed();
    }
    if (beyond) {
      const T* x = row_of<T>(params.x, safe);
      const T* grad = row_of<T>(params.grad, safe);
      for (int g = Held; column_of<T>(g) < width; ++g) {
        scale.get_late(column_of<T>(g), factors);
        dot = weighted_dot(load<Width>(x, column_of<T>(g), width), load<Width>(grad, column_of<T>(g), width), factors,
                           dot);
      }
    }
    const float mean = row_sum(dot, scratch[turn]) * rstd * inverse_width;
    const RowGradient gradient{rstd, rstd * rstd * mean, problem.round_before_weight};

#pragma unroll
    for (int g = 0; g < Held; ++g) {
      const int column = column_of<T>(g);
      float result[size] = {};
      if (ring.streams == 3) {
        ring.at(stage, 2, g)->unpack(result);
      } else if (params.grad_residual.data != nullptr) {
        load<Width>(row_of<T>(params.grad_residual, safe), column, width).unpack(result);
      }
      scale.get(g, column, factors);
      gradient.add(xs[g], grads[g], factors, result, weight_sums[g]);
      Granule<T> granule;
      granule.pack(result);
      store<Width>(grad_x, column, width, granule);
    }
    start(row + ring.stages * step, stage);
    stage = ring.after(stage);
    if (!beyond) continue;
    const T* x = row_of<T>(params.x, safe);
    const T* grad = row_of<T>(params.grad, safe);
    for (int g = Held; column_of<T>(g) < width; ++g) {
      const int column = column_of<T>(g);
      float result[size] = {}, sums[size] = {};
      if (params.grad_residual.data != nullptr) {
        load<Width>(row_of<T>(params.grad_residual, safe), column, width).unpack(result);
      }
      scale.get_late(column, factors);
      // Only blocks of a single row have such columns. The first row of a partial finds nothing to add to.
      if (partial != nullptr && row != first) load_float<Width>(partial, Scalar::f32, column, width, sums);
      gradient.add(load<Width>(x, column, width), load<Width>(grad, column, width), factors, result, sums);
      Granule<T> granule;
      granule.pack(result);
      store<Width>(grad_x, column, width, granule);
      if (partial != nullptr) store_float<Width>(partial, column, width, sums);
    }
  }
  if (partial == nullptr) return;
  if (blockDim.y > 1) {
    sum_over_rows_of_block<T>(shared_floats(), weight_sums);  // the ring is done with
    if (threadIdx.y != blockDim.y - 1) return;
  }
#pragma unroll
  for (int g = 0; g < Held; ++g) store_float<Width>(partial, column_of<T>(g), problem.width, weight_sums[g]);
}

}  // namespace kernelworks::rmsnorm
