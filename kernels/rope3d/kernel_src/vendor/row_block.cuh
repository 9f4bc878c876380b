// SPDX-License-Identifier: Apache-2.0
// Rows in a block of threads: blockDim.x threads share a row, and blockDim.y rows lie in a block (see RowPolicy).
#pragma once

#include "vec.cuh"

namespace kernelworks {

constexpr int warp_size = 32;
constexpr int max_warps = 32;

// Where this thread's granule `index` of a row starts.
template <class T>
__device__ __forceinline__ int column_of(int index) {
  return static_cast<int>(index * blockDim.x + threadIdx.x) * Granule<T>::size;
}

template <int Count>
__device__ __forceinline__ void add_from_lane(float (&values)[Count], int offset) {
#pragma unroll
  for (int i = 0; i < Count; ++i) values[i] += __shfl_xor_sync(0xffffffffu, values[i], offset);
}

// The sums over the threads of a row. All threads of the block must call it. Every thread of a row gets the same
// bits, added in an order that the number of threads alone decides. A caller that reduces again must pass another
// `scratch` in turn, since only one barrier separates a write from the reads.
template <int Count>
__device__ __forceinline__ void row_sums(float (&values)[Count], float (&scratch)[Count][max_warps]) {
  const int threads = blockDim.x;
  if (threads >= warp_size) {
#pragma unroll
    for (int offset = warp_size / 2; offset > 0; offset /= 2) add_from_lane(values, offset);
  } else {
#pragma unroll 1
    for (int offset = threads / 2; offset > 0; offset /= 2) add_from_lane(values, offset);
  }
  if (threads <= warp_size) return;

  const int warps = threads / warp_size;
  const int enough = 1 << (32 - __clz(warps - 1));  // the power of two that `warps` fit in
  const int first = threadIdx.y * warps;
  const int lane = threadIdx.x % warp_size;
  const int other = lane & (enough - 1);
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    if (lane == 0) scratch[i][first + threadIdx.x / warp_size] = values[i];
  }
  __syncthreads();  // of the block: a barrier for each row of it, by number, takes several times as long
#pragma unroll
  for (int i = 0; i < Count; ++i) values[i] = other < warps ? scratch[i][first + other] : 0.0f;
#pragma unroll 1
  for (int offset = enough / 2; offset > 0; offset /= 2) add_from_lane(values, offset);
}

__device__ __forceinline__ float row_sum(float value, float (&scratch)[1][max_warps]) {
  float values[1] = {value};
  row_sums(values, scratch);
  return values[0];
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
