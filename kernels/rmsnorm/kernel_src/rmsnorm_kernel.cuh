// SPDX-License-Identifier: Apache-2.0
// RMSNorm on the GPU: load a row, reduce, transform, store.
#pragma once

#include "rmsnorm.h"
#include "rmsnorm_policy.h"
#include "vendor/numeric.cuh"
#include "vendor/row_reduce.cuh"
#include "vendor/vec.cuh"

namespace kernelworks::rmsnorm {

// The thread's place: which row it works on and which granules of that row it owns.
template <class T>
struct Place {
  static constexpr int granule = granule_size<T>;

  int threads_per_row;
  int group;   // row of this thread within the block
  int lane;    // thread within the row

  __device__ explicit Place(int threads)
      : threads_per_row(threads), group(threadIdx.x / threads), lane(threadIdx.x % threads) {}

  __device__ int column(int granule_index) const { return (granule_index * threads_per_row + lane) * granule; }
  __device__ int rows_per_block() const { return blockDim.x / threads_per_row; }
};

// n * (weight + offset), n rounded to T before that where the model does so. Fills `out` with fp32.
template <class T, int Width, int Count>
__device__ __forceinline__ void apply_weight(const Problem& problem, const Weight& weight, int column,
                                             float (&values)[Count]) {
  if (problem.round_before_weight) {
#pragma unroll
    for (int i = 0; i < Count; ++i) values[i] = to_float(to_scalar<T>(values[i]));
  }
  if (weight.data == nullptr) return;
  const float offset = static_cast<float>(problem.weight_offset);
  float scale[Count];
  load_float<Width>(weight.data, weight.scalar, column, problem.width, scale);
#pragma unroll
  for (int i = 0; i < Count; ++i) values[i] *= scale[i] + offset;
}

// The row to normalise: x, or the rounded sum x + residual, which is written to residual_out on the way.
template <class T, int Width, bool HasResidual>
struct Source {
  static constexpr int granule = granule_size<T>;
  const T* x;
  const T* residual;
  T* residual_out;
  int width;

  // Granules [first, first + Count) of this thread. All loads are issued before anything waits for one.
  template <int Count>
  __device__ void read(const Place<T>& place, int first, T (&values)[Count][granule]) const {
#pragma unroll
    for (int g = 0; g < Count; ++g) load<Width>(x, place.column(first + g), width, values[g]);
    if constexpr (HasResidual) {
      T other[Count][granule];
#pragma unroll
      for (int g = 0; g < Count; ++g) load<Width>(residual, place.column(first + g), width, other[g]);
#pragma unroll
      for (int g = 0; g < Count; ++g) {
#pragma unroll
        for (int i = 0; i < granule; ++i) {
          values[g][i] = to_scalar<T>(to_float(values[g][i]) + to_float(other[g][i]));
        }
        store<Width>(residual_out, place.column(first + g), width, values[g]);
      }
    }
  }
  // After read: the sum is in residual_out, written by this very thread.
  __device__ void read_again(int column, T (&values)[granule]) const {
    load<Width>(HasResidual ? residual_out : x, column, width, values);
  }
};

template <class T, int Count>
__device__ __forceinline__ float sum_of_squares(const T (&values)[Count]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Count; ++i) sum = fmaf(to_float(values[i]), to_float(values[i]), sum);
  return sum;
}

template <class T, int Width, bool HasResidual>
__global__ void __launch_bounds__(max_block)
    forward_kernel(const __grid_constant__ ForwardParams params, int threads_per_row) {
  constexpr int granule = granule_size<T>;
  constexpr int cached = forward_cached / granule;
  __shared__ float scratch[max_warps];

  const Problem& problem = params.problem;
  const Place<T> place(threads_per_row);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * place.rows_per_block() + place.group;
  // A thread without a row still takes part in the reduction: it reads a row of width 0.
  const bool live = row < problem.rows;
  const int width = live ? problem.width : 0;
  const int64_t safe_row = live ? row : 0;
  const int64_t out = safe_row * problem.width;
  const Source<T, Width, HasResidual> source{
      static_cast<const T*>(params.x.data) + params.x.layout.offset(safe_row),
      HasResidual ? static_cast<const T*>(params.residual.data) + params.residual.layout.offset(safe_row)
                  : nullptr,
      static_cast<T*>(params.residual_out) + (HasResidual ? out : 0), width};
  T* y = static_cast<T*>(params.y) + out;

  T values[cached][granule];
  source.read(place, 0, values);
  float sum = 0;
#pragma unroll
  for (int g = 0; g < cached; ++g) sum += sum_of_squares(values[g]);
  for (int g = cached; place.column(g) < width; ++g) {
    T wide[1][granule];
    source.read(place, g, wide);
    sum += sum_of_squares(wide[0]);
  }

  const float mean = row_sum(sum, threads_per_row, scratch) / problem.width;
  const float rstd = rsqrtf(mean + static_cast<float>(params.eps));
  if (params.rstd != nullptr && live && place.lane == 0) static_cast<float*>(params.rstd)[row] = rstd;

  const auto finish = [&](int column, T(&row_values)[granule]) {
    float normed[granule];
#pragma unroll
    for (int i = 0; i < granule; ++i) normed[i] = to_float(row_values[i]) * rstd;
    apply_weight<T, Width>(problem, params.weight, column, normed);
#pragma unroll
    for (int i = 0; i < granule; ++i) row_values[i] = to_scalar<T>(normed[i]);
    store<Width>(y, column, width, row_values);
  };
#pragma unroll
  for (int g = 0; g < cached; ++g) finish(place.column(g), values[g]);
  for (int g = cached; place.column(g) < width; ++g) {
    T wide[granule];
    source.read_again(place.column(g), wide);
    finish(place.column(g), wide);
  }
}

// A granule of a row in backward: n = x * rstd, and g = grad * (weight + offset).
template <class T, int Width>
struct BackwardRow {
  static constexpr int granule = granule_size<T>;
  const Problem& problem;
  const Weight& weight;
  float rstd;

  __device__ void expand(int column, const T (&x)[granule], const T (&grad)[granule], float (&n)[granule],
                         float (&g)[granule]) const {
    float scale[granule];
    if (weight.data != nullptr) load_float<Width>(weight.data, weight.scalar, column, problem.width, scale);
#pragma unroll
    for (int i = 0; i < granule; ++i) {
      n[i] = to_float(x[i]) * rstd;
      g[i] = to_float(grad[i]);
      if (weight.data != nullptr) g[i] *= scale[i] + static_cast<float>(problem.weight_offset);
    }
  }
  // What multiplied the weight in forward: n, rounded where forward rounded it.
  __device__ float multiplied(float n) const {
    return problem.round_before_weight ? to_float(to_scalar<T>(n)) : n;
  }
};

template <class T, int Width>
__global__ void __launch_bounds__(max_block)
    backward_kernel(const __grid_constant__ BackwardParams params, int threads_per_row) {
  constexpr int granule = granule_size<T>;
  constexpr int cached = backward_cached / granule;
  __shared__ float scratch[2][max_warps];

  const Problem& problem = params.problem;
  const Place<T> place(threads_per_row);
  // This thread's own columns of its own partial row: nobody else touches them, so no atomics and one order.
  const int64_t partial_row = static_cast<int64_t>(blockIdx.x) * place.rows_per_block() + place.group;
  float* partial = params.grad_weight == nullptr
                       ? nullptr
                       : static_cast<float*>(params.partials) + partial_row * problem.width;
  if (partial != nullptr) {
    for (int g = cached; place.column(g) < problem.width; ++g) {
      const float zero[granule] = {};
      store<Width>(partial, place.column(g), problem.width, zero);
    }
  }
  float weight_sum[cached][granule] = {};

  int turn = 0;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * place.rows_per_block(); base < problem.rows;
       base += static_cast<int64_t>(gridDim.x) * place.rows_per_block(), turn ^= 1) {
    const bool live = base + place.group < problem.rows;
    const int64_t row = live ? base + place.group : 0;
    const int width = live ? problem.width : 0;
    const T* x = static_cast<const T*>(params.x.data) + params.x.layout.offset(row);
    const T* grad = static_cast<const T*>(params.grad.data) + params.grad.layout.offset(row);
    const T* extra = params.grad_residual.data == nullptr
                         ? nullptr
                         : static_cast<const T*>(params.grad_residual.data) +
                               params.grad_residual.layout.offset(row);
    T* grad_x = static_cast<T*>(params.grad_x) + row * problem.width;
    const BackwardRow<T, Width> math{problem, params.weight, static_cast<const float*>(params.rstd)[row]};

    T xs[cached][granule], grads[cached][granule];
#pragma unroll
    for (int c = 0; c < cached; ++c) {
      load<Width>(x, place.column(c), width, xs[c]);
      load<Width>(grad, place.column(c), width, grads[c]);
    }
    float n[granule], g[granule];
    float dot = 0;
    const auto accumulate = [&](int column, const T(&x_values)[granule], const T(&grad_values)[granule]) {
      math.expand(column, x_values, grad_values, n, g);
#pragma unroll
      for (int i = 0; i < granule; ++i) dot = fmaf(g[i], n[i], dot);
    };
#pragma unroll
    for (int c = 0; c < cached; ++c) accumulate(place.column(c), xs[c], grads[c]);
    for (int c = cached; place.column(c) < width; ++c) {
      T x_wide[granule], grad_wide[granule];
      load<Width>(x, place.column(c), width, x_wide);
      load<Width>(grad, place.column(c), width, grad_wide);
      accumulate(place.column(c), x_wide, grad_wide);
    }
    const float mean = row_sum(dot, threads_per_row, scratch[turn]) / problem.width;

    // Writes grad_x and adds grad * n to `sums`.
    const auto finish = [&](int column, const T(&x_values)[granule], const T(&grad_values)[granule],
                            float(&sums)[granule]) {
      math.expand(column, x_values, grad_values, n, g);
      T result[granule];
      T more[granule] = {};
      if (extra != nullptr) load<Width>(extra, column, width, more);
#pragma unroll
      for (int i = 0; i < granule; ++i) {
        sums[i] = fmaf(to_float(grad_values[i]), math.multiplied(n[i]), sums[i]);
        float value = math.rstd * (g[i] - n[i] * mean);
        if (extra != nullptr) value += to_float(more[i]);
        result[i] = to_scalar<T>(value);
      }
      store<Width>(grad_x, column, width, result);
    };
#pragma unroll
    for (int c = 0; c < cached; ++c) finish(place.column(c), xs[c], grads[c], weight_sum[c]);
    for (int c = cached; place.column(c) < width; ++c) {
      T x_wide[granule], grad_wide[granule];
      load<Width>(x, place.column(c), width, x_wide);
      load<Width>(grad, place.column(c), width, grad_wide);
      float sums[granule] = {};
      if (partial != nullptr) load<Width>(partial, place.column(c), width, sums);
      finish(place.column(c), x_wide, grad_wide, sums);
      if (partial != nullptr) store<Width>(partial, place.column(c), width, sums);
    }
  }
  if (partial == nullptr) return;
#pragma unroll
  for (int c = 0; c < cached; ++c) store<Width>(partial, place.column(c), problem.width, weight_sum[c]);
}

// grad_weight = the sum of the partial rows: 32 columns a block, each column added by reduce_lanes threads in
// turn and then in one fixed order.
constexpr int reduce_columns = 32;
constexpr int reduce_lanes = 16;

template <class T>
__global__ void __launch_bounds__(reduce_columns * reduce_lanes)
    reduce_partials_kernel(const float* partials, int32_t partial_rows, int32_t width, T* grad_weight) {
  __shared__ float sums[reduce_lanes][reduce_columns];
  const int column = blockIdx.x * reduce_columns + threadIdx.x;
  float sum = 0;
  if (column < width) {
    for (int32_t row = threadIdx.y; row < partial_rows; row += reduce_lanes) {
      sum += partials[static_cast<int64_t>(row) * width + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int lane = 1; lane < reduce_lanes; ++lane) sum += sums[lane][threadIdx.x];
  grad_weight[column] = to_scalar<T>(sum);
}

}  // namespace kernelworks::rmsnorm
