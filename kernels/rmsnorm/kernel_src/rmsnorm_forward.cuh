// SPDX-License-Identifier: Apache-2.0
// RMSNorm forward on the GPU: load a row, reduce, transform, store. One kernel holds the row in registers, and is
// for aligned rows; the other keeps it in shared memory, and takes any row.
#pragma once

#include <type_traits>

#include "rmsnorm_kernel.cuh"
#include "vendor/launch.cuh"
#include "vendor/stage.cuh"

namespace kernelworks::rmsnorm {

// What one thread reads and writes of its row.
template <class T, int Width, bool HasResidual>
struct ForwardRow {
  const T* x;
  const T* residual;
  T* residual_out;
  T* y;
  int width;  // 0 for a thread without a row, which still takes part in the reduction

  __device__ explicit ForwardRow(const ForwardParams& params) {
    const int64_t own_row = index();
    const bool live = own_row < params.problem.rows;
    const int64_t row = live ? own_row : 0;
    const int64_t start = row * params.problem.width;
    x = row_of<T>(params.x, row);
    residual = HasResidual ? row_of<T>(params.residual, row) : nullptr;
    residual_out = HasResidual ? static_cast<T*>(params.residual_out) + start : nullptr;
    y = static_cast<T*>(params.y) + start;
    width = live ? params.problem.width : 0;
  }

  __device__ static int64_t index() { return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; }
  __device__ void write_rstd(const ForwardParams& params, float rstd) const {
    if (params.rstd != nullptr && threadIdx.x == 0 && width > 0) static_cast<float*>(params.rstd)[index()] = rstd;
  }

  // x + residual, which is stored on the way.
  __device__ Granule<T> sum_of(int column, const Granule<T>& from_x, const Granule<T>& from_residual) const {
    const Granule<T> sum = add(from_x, from_residual);
    store<Width>(residual_out, column, width, sum);
    return sum;
  }
  // x, or its sum with the residual.
  __device__ Granule<T> fetch(int column) const {
    const Granule<T> value = load<Width>(x, column, width);
    return HasResidual ? sum_of(column, value, load<Width>(residual, column, width)) : value;
  }
  // What fetch() gave, read again: with a residual, what this very thread wrote.
  __device__ Granule<T> fetch_again(int column) const {
    return load<Width>(HasResidual ? residual_out : x, column, width);
  }
  template <class Rounding>
  __device__ void write(int column, const Granule<T>& value, float rstd, const float (&factors)[Granule<T>::size],
                        Rounding round_before_weight) const {
    float normed[Granule<T>::size];
    value.unpack(normed);
#pragma unroll
    for (int i = 0; i < Granule<T>::size; ++i) normed[i] *= rstd;
    if constexpr (round_before_weight) round_to<T>(normed);
#pragma unroll
    for (int i = 0; i < Granule<T>::size; ++i) normed[i] *= factors[i];
    Granule<T> granule;
    granule.pack(normed);
    store<Width>(y, column, width, granule);
  }
};

// Calls body(std::true_type{}) or body(std::false_type{}): one branch for a row, and none for each element.
template <class Body>
__device__ __forceinline__ void with_rounding(bool round_before_weight, Body&& body) {
  if (round_before_weight) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

// Registers are spent so that some 48 KiB of rows are under way on each multiprocessor: fewer do not fill the
// memory's queues, and more of them, lying further apart, are served less well.
template <class T, int Held, bool HasResidual>
__global__ void __launch_bounds__(max_held_block, Held == 2 ? 4 : 2)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  constexpr int width_of_access = Granule<T>::size;
  __shared__ float scratch[1][max_warps];
  const ForwardRow<T, width_of_access, HasResidual> row(params);

  const float inverse_width = 1.0f / params.problem.width, eps = static_cast<float>(params.eps);
  wait_for_earlier_kernels();
  // All loads are issued before anything waits for one.
  Granule<T> values[Held];
#pragma unroll
  for (int g = 0; g < Held; ++g) values[g] = load<width_of_access>(row.x, column_of<T>(g), row.width);
  if constexpr (HasResidual) {
    Granule<T> others[Held];
#pragma unroll
    for (int g = 0; g < Held; ++g) others[g] = load<width_of_access>(row.residual, column_of<T>(g), row.width);
#pragma unroll
    for (int g = 0; g < Held; ++g) values[g] = row.sum_of(column_of<T>(g), values[g], others[g]);
  }
  const Scale<T, width_of_access, Held, false> scale(params.problem, params.weight);
  let_next_kernel_start();

  float sum = 0;
#pragma unroll
  for (int g = 0; g < Held; ++g) sum += sum_of_squares(values[g]);
#pragma unroll
  for (int g = 0; g < Held; ++g) values[g].keep_packed();
  const float rstd = rsqrtf(fmaf(row_sum(sum, scratch), inverse_width, eps));
  row.write_rstd(params, rstd);

  with_rounding(params.problem.round_before_weight, [&](auto rounding) {
    float factors[Granule<T>::size];
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      scale.get(g, column_of<T>(g), factors);
      row.write(column_of<T>(g), values[g], rstd, factors, rounding);
    }
  });
}

// `slots` granules of each thread lie in shared memory; those beyond are read again after the reduction.
template <class T, int Width, bool HasResidual, bool AnyType>
__global__ void __launch_bounds__(max_block)
    slotted_forward_kernel(const __grid_constant__ ForwardParams params, int slots) {
  // Granules of the weight that are fetched ahead; with a residual, its granules take their registers.
  constexpr int early = AnyType || HasResidual ? 1 : most_per_thread;
  __shared__ float scratch[1][max_warps];
  const ForwardRow<T, Width, HasResidual> row(params);

  const float inverse_width = 1.0f / params.problem.width, eps = static_cast<float>(params.eps);
  wait_for_earlier_kernels();
  for (int g = 0; g < slots; ++g) start_copy<Width>(slot<T>(g), row.x, column_of<T>(g), row.width);
  end_group();
  if constexpr (HasResidual) {
    for (int done = 0; done < slots; done += most_per_thread) {
      Granule<T> others[most_per_thread];
#pragma unroll
      for (int g = 0; g < most_per_thread; ++g) {
        others[g] = load<Width>(row.residual, column_of<T>(done + g), done + g < slots ? row.width : 0);
      }
      wait_for_groups(0);
#pragma unroll
      for (int g = 0; g < most_per_thread; ++g) {
        if (done + g >= slots) break;
        *slot<T>(done + g) = row.sum_of(column_of<T>(done + g), *slot<T>(done + g), others[g]);
      }
    }
  }
  const Scale<T, Width, early, AnyType> scale(params.problem, params.weight);
  let_next_kernel_start();

  float sum = 0;
  wait_for_groups(0);
  for (int g = 0; g < slots; ++g) sum += sum_of_squares(*slot<T>(g));
  for (int g = slots; column_of<T>(g) < row.width; ++g) sum += sum_of_squares(row.fetch(column_of<T>(g)));
  const float rstd = rsqrtf(fmaf(row_sum(sum, scratch), inverse_width, eps));
  row.write_rstd(params, rstd);

  with_rounding(params.problem.round_before_weight, [&](auto rounding) {
    float factors[Granule<T>::size];
#pragma unroll
    for (int g = 0; g < early; ++g) {
      if (g >= slots) break;
      scale.get(g, column_of<T>(g), factors);
      row.write(column_of<T>(g), *slot<T>(g), rstd, factors, rounding);
    }
    for (int g = early; g < slots; ++g) {
      scale.get_late(column_of<T>(g), factors);
      row.write(column_of<T>(g), *slot<T>(g), rstd, factors, rounding);
    }
    for (int g = slots; column_of<T>(g) < row.width; ++g) {
      scale.get_late(column_of<T>(g), factors);
      row.write(column_of<T>(g), row.fetch_again(column_of<T>(g)), rstd, factors, rounding);
    }
  });
}

}  // namespace kernelworks::rmsnorm
