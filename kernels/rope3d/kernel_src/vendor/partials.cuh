// SPDX-License-Identifier: Apache-2.0
// The second stage of a sum over rows: blocks have left partial sums, a row of fp32 each.
#pragma once

#include "launch.cuh"
#include "vec.cuh"

namespace kernelworks {

// 32 columns a block, each added up by so many threads in turn and then in one fixed order. A thread fetches a batch of
// rows before it waits for one: the kernel is little more than one access to memory.
constexpr int reduce_columns = 32;
constexpr int reduce_lanes = 32;
constexpr int reduce_batch = 16;

// The sums of rows [0, count) of `partials`, each `Count` rows of `width` columns, in one column; the same for every
// thread of the column. All threads of the block call it, once.
template <int Count>
__device__ __forceinline__ void sum_partials(const float* partials, int64_t count, int64_t width, bool live,
                                             float (&sums)[Count]) {
  __shared__ float scratch[Count][reduce_lanes][reduce_columns];
#pragma unroll
  for (int i = 0; i < Count; ++i) sums[i] = 0;
  for (int64_t first = threadIdx.y; live && first < count; first += reduce_lanes * reduce_batch) {
#pragma unroll
    for (int b = 0; b < reduce_batch; ++b) {
      const int64_t row = first + b * reduce_lanes;
      if (row >= count) continue;
#pragma unroll
      for (int i = 0; i < Count; ++i) sums[i] += partials[(row * Count + i) * width];
    }
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) scratch[i][threadIdx.y][threadIdx.x] = sums[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    sums[i] = 0;
#pragma unroll
    for (int lane = 0; lane < reduce_lanes; ++lane) sums[i] += scratch[i][lane][threadIdx.x];
  }
}

template <class T>
__global__ void __launch_bounds__(reduce_columns * reduce_lanes)
    reduce_partials_kernel(const float* partials, int32_t partial_rows, int32_t width, T* result) {
  const int column = blockIdx.x * reduce_columns + threadIdx.x;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  float sums[1];
  sum_partials(partials + column, partial_rows, width, column < width, sums);
  if (threadIdx.y == 0 && column < width) result[column] = to_scalar<T>(sums[0]);
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
