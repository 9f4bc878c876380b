// SPDX-License-Identifier: Apache-2.0
// Rows in a block of threads: blockDim.x threads share a row, and blockDim.y rows lie in a block (see RowPolicy).
#pragma once

#include "row_layout.h"
#include "vec.cuh"

namespace kernelworks {

constexpr int warp_size = 32;
constexpr int max_warps = 32;

// Where this thread's granule `index` of a row starts.
template <class T>
__device__ __forceinline__ int column_of(int index) {
  return static_cast<int>(index * blockDim.x + threadIdx.x) * Granule<T>::size;
}

template <class T>
__device__ __forceinline__ const T* row_of(const Rows& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + rows.layout.offset(row);
}

// The sum over the threads of a row. All threads of the block must call it. Every thread of a row gets the same
// bits, added in an order that the number of threads alone decides. `scratch` holds max_warps floats; a caller
// that reduces again must pass another one in turn, since only one barrier separates a write from the reads.
__device__ __forceinline__ float row_sum(float value, float* scratch) {
  const int threads = blockDim.x;
  for (int offset = min(threads, warp_size) / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threads <= warp_size) return value;

  const int warps = threads / warp_size;
  const int first = threadIdx.y * warps;
  const int lane = threadIdx.x % warp_size;
  if (lane == 0) scratch[first + threadIdx.x / warp_size] = value;
  __syncthreads();
  const int enough = 1 << (32 - __clz(warps - 1));  // the power of two that `warps` fit in
  const int other = lane & (enough - 1);
  value = other < warps ? scratch[first + other] : 0.0f;
  for (int offset = enough / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
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

// Adds up the rows of a block, one after the other, in memory that holds a row; the last one then has the sums.
template <class T, int Held>
__device__ __forceinline__ void sum_over_rows_of_block(float* row_sums, float (&sums)[Held][Granule<T>::size]) {
  __syncthreads();
  for (int row = 0; row < blockDim.y; ++row) {
    if (threadIdx.y == row) {
#pragma unroll
      for (int g = 0; g < Held; ++g) {
#pragma unroll
        for (int i = 0; i < Granule<T>::size; ++i) {
          float& sum = row_sums[column_of<T>(g) + i];
          if (row > 0) sums[g][i] += sum;
          sum = sums[g][i];
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace kernelworks
