// SPDX-License-Identifier: Apache-2.0
// What forward and backward share on the GPU: the weight, and the sum with the residual.
#pragma once

#include "rmsnorm.h"
#include "rmsnorm_policy.h"
#include "vendor/row_block.cuh"

namespace kernelworks::rmsnorm {

// weight + offset at the columns of a thread; 1 where there is no weight. The first Count granules are fetched at
// once and converted when used. A weight of another type than the rows' is fetched when used.
template <class T, int Width, int Count, bool AnyType>
class Scale {
  static constexpr int size = Granule<T>::size;

 public:
  __device__ Scale(const Problem& problem, const Weight& weight)
      : weight_(weight),
        width_(weight.data == nullptr ? 0 : problem.width),
        offset_(weight.data == nullptr ? 1.0f : static_cast<float>(problem.weight_offset)) {
    if constexpr (!AnyType) {
#pragma unroll
      for (int g = 0; g < Count; ++g) {
        granule_[g] = load<Width>(static_cast<const T*>(weight.data), column_of<T>(g), width_);
      }
    }
  }
  // Of the thread's granule g, known at compile time.
  __device__ void get(int g, int column, float (&scale)[size]) const {
    if (AnyType || g >= Count) return get_late(column, scale);
    granule_[g].unpack(scale);
    add_offset(scale);
  }
  // Of any granule.
  __device__ void get_late(int column, float (&scale)[size]) const {
    if constexpr (AnyType) {
      load_float<Width>(weight_.data, weight_.scalar, column, width_, scale);
    } else {
      load<Width>(static_cast<const T*>(weight_.data), column, width_).unpack(scale);
    }
    add_offset(scale);
  }

 private:
  __device__ void add_offset(float (&scale)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) scale[i] += offset_;
  }

  const Weight& weight_;
  int width_;
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

}  // namespace kernelworks::rmsnorm
