// SPDX-License-Identifier: Apache-2.0
// Shared memory as more registers: each thread keeps granules in slots that no other thread touches, so nothing
// here needs a barrier. Slots are filled by asynchronous copies where the GPU has them (8.0 and later).
#pragma once

#include <cuda_pipeline_primitives.h>

#include "vec.cuh"

namespace kernelworks {

// This thread's slot `index` in dynamic shared memory; neighbours in a warp are neighbours in memory.
template <class T>
__device__ __forceinline__ Granule<T>* slot(int index) {
  extern __shared__ uint4 slots[];
  const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
  return reinterpret_cast<Granule<T>*>(slots + index * threads + thread);
}

// All of dynamic shared memory, when its slots are done with.
__device__ __forceinline__ float* shared_floats() {
  extern __shared__ uint4 slots[];
  return reinterpret_cast<float*>(slots);
}

// Starts to copy the granule of a row that starts at `column`; zero past `width`, as load() has it.
template <int Width, class T>
__device__ __forceinline__ void start_copy(Granule<T>* to, const T* row, int column, int width) {
  constexpr int bytes = Width * static_cast<int>(sizeof(T)) < 16 ? Width * static_cast<int>(sizeof(T)) : 16;
  if constexpr (bytes < 4) {  // below the smallest asynchronous copy
    *to = load<Width>(row, column, width);
  } else {
#pragma unroll
    for (int i = 0; i < Granule<T>::size; i += Width) {
      T* part = reinterpret_cast<T*>(to->word) + i;
      if (column + i < width) {
        __pipeline_memcpy_async(part, row + column + i, bytes);
      } else {
        memset(part, 0, bytes);
      }
    }
  }
}

// Closes a group of copies.
__device__ __forceinline__ void end_group() { __pipeline_commit(); }

// Until at most `open` groups, at most two, are still under way.
__device__ __forceinline__ void wait_for_groups(int open) {
  if (open == 0) {
    __pipeline_wait_prior(0);
  } else if (open == 1) {
    __pipeline_wait_prior(1);
  } else {
    __pipeline_wait_prior(2);
  }
}

}  // namespace kernelworks
