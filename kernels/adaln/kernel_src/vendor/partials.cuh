// SPDX-License-Identifier: Apache-2.0
// The second stage of a sum over rows: blocks have left partial sums, a row of fp32 each.
#pragma once

#include "launch.cuh"
#include "vec.cuh"

namespace kernelworks {

// 32 columns a block, each added up by so many threads in turn and then in one fixed order.
constexpr int reduce_columns = 32;
constexpr int reduce_lanes = 16;

// The sum of rows [0, count) of `partials` in one column, the same for every thread of the column. All threads call it.
__device__ __forceinline__ float sum_of_partials(const float* partials, int64_t count, int64_t stride, bool live) {
  __shared__ float sums[reduce_lanes][reduce_columns];
  float sum = 0;
  if (live) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < count; row += reduce_lanes) sum += partials[row * stride];
  }
  __syncthreads();  // of an earlier call
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int lane = 0; lane < reduce_lanes; ++lane) sum += sums[lane][threadIdx.x];
  return sum;
}

template <class T>
__global__ void __launch_bounds__(reduce_columns * reduce_lanes)
    reduce_partials_kernel(const float* partials, int32_t partial_rows, int32_t width, T* result) {
  const int column = blockIdx.x * reduce_columns + threadIdx.x;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const float sum = sum_of_partials(partials + column, partial_rows, width, column < width);
  if (threadIdx.y == 0 && column < width) result[column] = to_scalar<T>(sum);
}

inline cudaError_t launch_reduce_partials(const float* partials, int32_t partial_rows, int32_t width, void* result,
                                          Scalar scalar, void* stream) {
  cudaError_t status = cudaSuccess;
  with_gpu_scalar(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    const Launch where{(width + reduce_columns - 1) / reduce_columns, dim3(reduce_columns, reduce_lanes), 0, stream};
    status = launch(reduce_partials_kernel<T>, where, partials, partial_rows, width, static_cast<T*>(result));
  });
  return status;
}

}  // namespace kernelworks
