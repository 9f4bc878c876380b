// SPDX-License-Identifier: Apache-2.0
// RMSNorm on the GPU: load a row, reduce, transform, store.
#pragma once

#include "rmsnorm.h"
#include "rmsnorm_policy.h"
#include "vendor/numeric.cuh"
#include "vendor/row_reduce.cuh"
#include "vendor/vec.cuh"

namespace kernelworks::rmsnorm {

// The thread's place: which row of the block it works on, and which granules of that row it owns.
template <class T>
struct Place {
  int threads_per_row;  // a power of two
  int rows_per_block;
  int group;  // row of this thread within the block
  int lane;   // thread within the row

  __device__ explicit Place(LaunchPolicy policy)
      : threads_per_row(policy.threads_per_row), rows_per_block(policy.rows_per_block) {
    group = static_cast<int>(threadIdx.x) >> (__ffs(threads_per_row) - 1);
    lane = static_cast<int>(threadIdx.x) & (threads_per_row - 1);
  }

  __device__ int column(int index) const { return (index * threads_per_row + lane) * Granule<T>::size; }
};

template <class T>
__device__ __forceinline__ const T* row_of(const Rows& rows, int64_t row) {
  return rows.data == nullptr ? nullptr : static_cast<const T*>(rows.data) + rows.layout.offset(row);
}

// weight + offset at the columns that a thread keeps; 1 where there is no weight. A weight of the rows' own type,
// the common case, is fetched at once and converted when it is used; another is fetched when it is used.
template <class T, int Width, int Count>
class Scale {
  static constexpr int size = Granule<T>::size;

 public:
  __device__ Scale(const Problem& problem, const Weight& weight, const Place<T>& place)
      : weight_(weight),
        width_(weight.data == nullptr ? 0 : problem.width),
        kept_(weight.data == nullptr || weight.scalar == scalar_of<T>),
        offset_(weight.data == nullptr ? 1.0f : static_cast<float>(problem.weight_offset)) {
#pragma unroll
    for (int g = 0; g < Count; ++g) {
      granule_[g] = load<Width>(static_cast<const T*>(weight.data), place.column(g), kept_ ? width_ : 0);
    }
  }
  // Of the thread's granule g, one of those it keeps.
  __device__ void get(int g, int column, float (&scale)[size]) const {
    if (!kept_) return get_late(column, scale);
    granule_[g].unpack(scale);
#pragma unroll
    for (int i = 0; i < size; ++i) scale[i] += offset_;
  }
  // Of any granule.
  __device__ void get_late(int column, float (&scale)[size]) const {
    load_float<Width>(weight_.data, weight_.scalar, column, width_, scale);
#pragma unroll
    for (int i = 0; i < size; ++i) scale[i] += offset_;
  }

 private:
  const Weight& weight_;
  int width_;
  bool kept_;
  float offset_;
  Granule<T> granule_[Count];
};

// x + residual, rounded to T.
template <class T>
__device__ __forceinline__ Granule<T> add(const Granule<T>& x, const Granule<T>& residual) {
  float sum[Granule<T>::size], other[Granule<T>::size];
  x.unpack(sum);
  residual.unpack(other);
#pragma unroll
  for (int i = 0; i < Granule<T>::size; ++i) sum[i] += other[i];
  Granule<T> result;
  result.pack(sum);
  return result;
}

template <class T>
__device__ __forceinline__ float sum_of_squares(const Granule<T>& granule) {
  float values[Granule<T>::size];
  granule.unpack(values);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Granule<T>::size; ++i) sum = fmaf(values[i], values[i], sum);
  return sum;
}

template <class T>
__device__ __forceinline__ float round_to(float value) {
  return to_float(to_scalar<T>(value));
}

template <class T, int Width, bool HasResidual>
__global__ void __launch_bounds__(max_block)
    forward_kernel(const __grid_constant__ ForwardParams params, LaunchPolicy policy) {
  constexpr int kept = kept_granules;
  __shared__ float scratch[max_warps];

  const Problem& problem = params.problem;
  const Place<T> place(policy);
  // A thread without a row still takes part in the reduction: it reads a row of width 0.
  const int64_t own_row = static_cast<int64_t>(blockIdx.x) * place.rows_per_block + place.group;
  const bool live = own_row < problem.rows;
  const int64_t row = live ? own_row : 0;
  const int width = live ? problem.width : 0;
  const T* x = row_of<T>(params.x, row);
  const T* residual = row_of<T>(params.residual, row);
  T* residual_out = static_cast<T*>(params.residual_out) + (HasResidual ? row * problem.width : 0);
  T* y = static_cast<T*>(params.y) + row * problem.width;

  // All loads are issued before anything waits for one.
  Granule<T> values[kept];
#pragma unroll
  for (int g = 0; g < kept; ++g) values[g] = load<Width>(x, place.column(g), width);
  if constexpr (HasResidual) {
    Granule<T> others[kept];
#pragma unroll
    for (int g = 0; g < kept; ++g) others[g] = load<Width>(residual, place.column(g), width);
#pragma unroll
    for (int g = 0; g < kept; ++g) {
      values[g] = add(values[g], others[g]);
      store<Width>(residual_out, place.column(g), width, values[g]);
    }
  }
  const Scale<T, Width, kept> scale(problem, params.weight, place);
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kept; ++g) sum += sum_of_squares(values[g]);
  for (int g = kept; place.column(g) < width; ++g) {
    Granule<T> value = load<Width>(x, place.column(g), width);
    if constexpr (HasResidual) {
      value = add(value, load<Width>(residual, place.column(g), width));
      store<Width>(residual_out, place.column(g), width, value);
    }
    sum += sum_of_squares(value);
  }
#pragma unroll
  for (int g = 0; g < kept; ++g) values[g].keep_packed();

  const float mean = row_sum(sum, place.threads_per_row, scratch) / problem.width;
  const float rstd = rsqrtf(mean + static_cast<float>(params.eps));
  if (params.rstd != nullptr && live && place.lane == 0) static_cast<float*>(params.rstd)[row] = rstd;

  float factors[Granule<T>::size];
  const auto finish = [&](int column, Granule<T> granule) {
    float normed[Granule<T>::size];
    granule.unpack(normed);
#pragma unroll
    for (int i = 0; i < Granule<T>::size; ++i) {
      normed[i] *= rstd;
      if (problem.round_before_weight) normed[i] = round_to<T>(normed[i]);
      normed[i] *= factors[i];
    }
    granule.pack(normed);
    store<Width>(y, column, width, granule);
  };
#pragma unroll
  for (int g = 0; g < kept; ++g) {
    scale.get(g, place.column(g), factors);
    finish(place.column(g), values[g]);
  }
  for (int g = kept; place.column(g) < width; ++g) {
    scale.get_late(place.column(g), factors);
    // With a residual, what this very thread wrote before the reduction.
    finish(place.column(g), load<Width>(HasResidual ? residual_out : x, place.column(g), width));
  }
}

template <class T, int Width>
__global__ void __launch_bounds__(max_block)
    backward_kernel(const __grid_constant__ BackwardParams params, LaunchPolicy policy) {
  constexpr int kept = kept_granules;
  constexpr int size = Granule<T>::size;
  __shared__ float scratch[2][max_warps];

  const Problem& problem = params.problem;
  const Place<T> place(policy);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * place.rows_per_block;
  // The block's partial of grad_weight. Each thread adds to its own columns only: no atomics, and one order.
  float* partial = params.grad_weight == nullptr
                       ? nullptr
                       : static_cast<float*>(params.partials) + static_cast<int64_t>(blockIdx.x) * problem.width;
  const Scale<T, Width, kept> scale(problem, params.weight, place);
  float weight_sums[kept][size] = {};

  int turn = 0;
  for (int64_t base = first_row; base < problem.rows;
       base += static_cast<int64_t>(gridDim.x) * place.rows_per_block, turn ^= 1) {
    const bool live = base + place.group < problem.rows;
    const int64_t row = live ? base + place.group : 0;
    const int width = live ? problem.width : 0;
    const T* x = row_of<T>(params.x, row);
    const T* grad = row_of<T>(params.grad, row);
    const T* grad_residual = row_of<T>(params.grad_residual, row);
    T* grad_x = static_cast<T*>(params.grad_x) + row * problem.width;
    const float rstd = static_cast<const float*>(params.rstd)[row];

    Granule<T> xs[kept], grads[kept];
#pragma unroll
    for (int g = 0; g < kept; ++g) {
      xs[g] = load<Width>(x, place.column(g), width);
      grads[g] = load<Width>(grad, place.column(g), width);
    }
    float factors[size];
    float dot = 0;
    const auto accumulate = [&](const Granule<T>& x_granule, const Granule<T>& grad_granule) {
      float xs_wide[size], grads_wide[size];
      x_granule.unpack(xs_wide);
      grad_granule.unpack(grads_wide);
#pragma unroll
      for (int i = 0; i < size; ++i) dot = fmaf(grads_wide[i] * factors[i], xs_wide[i] * rstd, dot);
    };
#pragma unroll
    for (int g = 0; g < kept; ++g) {
      scale.get(g, place.column(g), factors);
      accumulate(xs[g], grads[g]);
    }
    for (int g = kept; place.column(g) < width; ++g) {
      scale.get_late(place.column(g), factors);
      accumulate(load<Width>(x, place.column(g), width), load<Width>(grad, place.column(g), width));
    }
#pragma unroll
    for (int g = 0; g < kept; ++g) {
      xs[g].keep_packed();
      grads[g].keep_packed();
    }
    const float mean = row_sum(dot, place.threads_per_row, scratch[turn]) / problem.width;

    // Writes grad_x and adds grad * n to `sums`, n rounded where forward rounded it.
    const auto finish = [&](int column, const Granule<T>& x_granule, const Granule<T>& grad_granule,
                            float(&sums)[size]) {
      float n[size], grads_wide[size], result[size] = {};
      x_granule.unpack(n);
      grad_granule.unpack(grads_wide);
      if (grad_residual != nullptr) load<Width>(grad_residual, column, width).unpack(result);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        n[i] *= rstd;
        result[i] += rstd * (grads_wide[i] * factors[i] - n[i] * mean);
        sums[i] = fmaf(grads_wide[i], problem.round_before_weight ? round_to<T>(n[i]) : n[i], sums[i]);
      }
      Granule<T> granule;
      granule.pack(result);
      store<Width>(grad_x, column, width, granule);
    };
#pragma unroll
    for (int g = 0; g < kept; ++g) {
      scale.get(g, place.column(g), factors);
      finish(place.column(g), xs[g], grads[g], weight_sums[g]);
    }
    for (int g = kept; place.column(g) < width; ++g) {
      const int column = place.column(g);
      scale.get_late(column, factors);
      float sums[size] = {};
      // Only blocks of a single row have such columns. The first row of a partial finds nothing to add to.
      if (partial != nullptr && base != first_row) load_float<Width>(partial, Scalar::f32, column, width, sums);
      finish(column, load<Width>(x, column, width), load<Width>(grad, column, width), sums);
      if (partial != nullptr) store_float<Width>(partial, column, problem.width, sums);
    }
  }
  if (partial == nullptr) return;
  if (place.rows_per_block > 1) {
    // One group after the other adds its sums to those before it; the last then holds the block's.
    __shared__ float block_sums[max_shared_columns];
    for (int group = 0; group < place.rows_per_block; ++group) {
      if (place.group == group) {
#pragma unroll
        for (int g = 0; g < kept; ++g) {
#pragma unroll
          for (int i = 0; i < size; ++i) {
            float& sum = block_sums[place.column(g) + i];
            if (group > 0) weight_sums[g][i] += sum;
            sum = weight_sums[g][i];
          }
        }
      }
      __syncthreads();
    }
    if (place.group != place.rows_per_block - 1) return;
  }
#pragma unroll
  for (int g = 0; g < kept; ++g) store_float<Width>(partial, place.column(g), problem.width, weight_sums[g]);
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
