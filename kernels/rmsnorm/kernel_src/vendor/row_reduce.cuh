// SPDX-License-Identifier: Apache-2.0
// The sum over the threads that share a row: part of a warp, or several whole warps of a block.
#pragma once

namespace kernelworks {

constexpr int warp_size = 32;
constexpr int max_warps = 32;

// All threads of the block must call it. threads_per_row is a power of two; the threads of a row are
// consecutive. Every thread of a row gets the same bits, added in an order that depends on threads_per_row
// alone. `scratch` holds max_warps floats; a caller that reduces again must pass another one in turn, since
// only one barrier separates a write from the reads.
__device__ __forceinline__ float row_sum(float value, int threads_per_row, float* scratch) {
  for (int offset = min(threads_per_row, warp_size) / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threads_per_row <= warp_size) return value;

  const int warps_per_row = threads_per_row / warp_size;
  const int warp = threadIdx.x / warp_size;
  const int lane = threadIdx.x % warp_size;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = scratch[(warp & ~(warps_per_row - 1)) + (lane & (warps_per_row - 1))];
  for (int offset = warps_per_row / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

}  // namespace kernelworks
