// SPDX-License-Identifier: Apache-2.0
// Rows of several tensors on their way into shared memory, some rows ahead of the one that is worked on. Each thread
// copies, reads and overwrites its own granules, so that nothing here needs a barrier.
#pragma once

#include "row_block.cuh"
#include "stage.cuh"

namespace kernelworks {

struct Ring {
  int stages;   // rows under way, for each row of threads
  int streams;  // tensors that are copied

  constexpr int bytes(int held, int block) const { return stages * streams * held * granule_bytes * block; }
};

template <class T, int Width, int Held>
struct RowRing : Ring {
  __device__ explicit RowRing(const Ring& ring) : Ring(ring) {}

  __device__ Granule<T>* at(int stage, int stream, int g) const {
    return slot<T>((stage * streams + stream) * Held + g);
  }
  __device__ void start(int stage, int stream, const T* row, int width) const {
#pragma unroll
    for (int g = 0; g < Held; ++g) start_copy<Width>(at(stage, stream, g), row, column_of<T>(g), width);
  }
  __device__ void clear(int stage, int stream) const {
#pragma unroll
    for (int g = 0; g < Held; ++g) *at(stage, stream, g) = Granule<T>{};
  }
  __device__ int after(int stage) const { return stage + 1 == stages ? 0 : stage + 1; }
};

}  // namespace kernelworks
