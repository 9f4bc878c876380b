// SPDX-License-Identifier: Apache-2.0
// What forward and backward share on the GPU: modulators, folded into one factor and one term for each column.
#pragma once

#include "adaln.h"
#include "adaln_policy.h"
#include "vendor/row_block.cuh"

namespace kernelworks::adaln {

// Columns of any element type as they lie in memory: loads are issued one after the other, and what they bring is
// converted when it is used.
template <int Width, int Count>
class RawColumns {
 public:
  // From the column on; zero past `width`, and where there is no data.
  __device__ void load(const void* data, Scalar scalar, int column, int width) {
    const char* from = static_cast<const char*>(data) + static_cast<int64_t>(column) * size_of(scalar);
#pragma unroll
    for (int w = 0; w < Count; ++w) word_[w] = 0;
    if (data == nullptr) return;
    if (size_of(scalar) == 4) {
      fetch<4>(from, column, width);
    } else {
      fetch<2>(from, column, width);
    }
  }
  __device__ void add_to(Scalar scalar, float (&out)[Count]) const {
    with_gpu_scalar(scalar, [&](auto tag) {
      using T = typename decltype(tag)::type;
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        if constexpr (sizeof(T) == 4) {
          out[i] += __uint_as_float(word_[i]);
        } else {
          float pair[2];
          unpack_pair(T{}, word_[i / 2], pair[0], pair[1]);
          out[i] += pair[i % 2];
        }
      }
    });
  }

 private:
  template <int Bytes>
  __device__ void fetch(const char* from, int column, int width) {
    using Access = Pack<uint8_t, Width * Bytes>;
#pragma unroll
    for (int i = 0; i < Count; i += Width) {
      if (column + i >= width) continue;
      const Access access = *reinterpret_cast<const Access*>(from + i * Bytes);
      memcpy(reinterpret_cast<char*>(word_) + i * Bytes, &access, sizeof(access));
    }
  }

  uint32_t word_[Count];
};

// The row of a modulator's part that a group of rows uses.
__device__ __forceinline__ const void* row_of_group(const Modulator& modulator, int part, int64_t group) {
  const Rows& rows = modulator.part[part];
  if (rows.data == nullptr) return nullptr;
  return static_cast<const char*>(rows.data) + rows.layout.offset(group) * size_of(modulator.scalar[part]);
}

// A modulator's values at some columns, its parts added up.
template <int Width, int Count>
struct ModulatorColumns {
  RawColumns<Width, Count> part[Modulator::max_parts];

  __device__ void load(const Modulator& modulator, int64_t group, int column, int width) {
#pragma unroll
    for (int p = 0; p < Modulator::max_parts; ++p) {
      part[p].load(row_of_group(modulator, p, group), modulator.scalar[p], column, width);
    }
  }
  __device__ void add_to(const Modulator& modulator, float (&out)[Count]) const {
#pragma unroll
    for (int p = 0; p < Modulator::max_parts; ++p) {
      if (modulator.part[p].data != nullptr) part[p].add_to(modulator.scalar[p], out);
    }
  }
};

template <int Count>
__device__ __forceinline__ void fill(float (&values)[Count], float value) {
#pragma unroll
  for (int i = 0; i < Count; ++i) values[i] = value;
}

// The gate at some columns; 1 where there is none.
template <int Width, int Count>
__device__ __forceinline__ void load_gate(const Modulator& gate, int64_t group, int column, int width,
                                          float (&out)[Count]) {
  ModulatorColumns<Width, Count> columns;
  columns.load(gate, group, column, width);
  fill(out, gate.part[0].data == nullptr ? 1.0f : 0.0f);
  columns.add_to(gate, out);
}

// y = n * a + b, with a = weight * (1 + scale) and b = bias * (1 + scale) + shift.
template <int Width, int Count>
__device__ __forceinline__ void load_affine(const ForwardParams& params, int64_t group, int column, int width,
                                            float (&a)[Count], float (&b)[Count]) {
  ModulatorColumns<Width, Count> scale, shift;
  RawColumns<Width, Count> weight, bias;
  scale.load(params.scale, group, column, width);
  shift.load(params.shift, group, column, width);
  weight.load(params.weight.data, params.weight.scalar, column, width);
  bias.load(params.bias.data, params.bias.scalar, column, width);
  float factor[Count];
  fill(factor, 0);
  scale.add_to(params.scale, factor);
#pragma unroll
  for (int i = 0; i < Count; ++i) factor[i] += 1;
  fill(b, 0);
  shift.add_to(params.shift, b);
  if (params.bias.data != nullptr) {
    float values[Count];
    fill(values, 0);
    bias.add_to(params.bias.scalar, values);
#pragma unroll
    for (int i = 0; i < Count; ++i) b[i] = fmaf(values[i], factor[i], b[i]);
  }
  fill(a, params.weight.data == nullptr ? 1.0f : 0.0f);
  if (params.weight.data != nullptr) weight.add_to(params.weight.scalar, a);
#pragma unroll
  for (int i = 0; i < Count; ++i) a[i] *= factor[i];
}

// residual + gate * x, rounded to T.
template <class T>
__device__ __forceinline__ Granule<T> gated_sum(const Granule<T>& x, const Granule<T>& residual,
                                                const float (&gate)[Granule<T>::size]) {
  float sum[Granule<T>::size], other[Granule<T>::size];
  residual.unpack(sum);
  x.unpack(other);
#pragma unroll
  for (int i = 0; i < Granule<T>::size; ++i) sum[i] = fmaf(gate[i], other[i], sum[i]);
  Granule<T> result;
  result.pack(sum);
  return result;
}

// The mean and 1 / sqrt(variance + eps) of a row; for rms the mean counts as 0.
struct Statistics {
  float mean, rstd;
};

// The sum of squares about the mean, of the first `valid` values: what lies past the width is no part of the row.
template <int Count>
__device__ __forceinline__ float centred_squares(const float (&values)[Count], float mean, int valid = Count) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const float centred = i < valid ? values[i] - mean : 0.0f;
    sum = fmaf(centred, centred, sum);
  }
  return sum;
}

// From what is normalised to y.
template <int Count>
__device__ __forceinline__ void modulate(float (&values)[Count], const Statistics& found, const float (&a)[Count],
                                         const float (&b)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) values[i] = fmaf((values[i] - found.mean) * found.rstd, a[i], b[i]);
}

template <int Count>
__device__ __forceinline__ float sum_of(const float (&values)[Count]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Count; ++i) sum += values[i];
  return sum;
}

}  // namespace kernelworks::adaln
