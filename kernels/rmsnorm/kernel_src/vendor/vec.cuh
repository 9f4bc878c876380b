// SPDX-License-Identifier: Apache-2.0
// Granules: the 16 bytes of a row that one thread owns, moved with the widest access the addresses allow.
//
// Which thread owns which element never depends on the access width, so that a row's sums come out the same,
// bit for bit, whether its data is aligned or not.
#pragma once

#include <cstdint>

#include "numeric.cuh"

namespace kernelworks {

template <class T>
constexpr int granule_size = 16 / sizeof(T);

template <class T, int Width>
struct alignas(Width * sizeof(T) < 16 ? Width * sizeof(T) : 16) Pack {
  T element[Width];
};

// Reads elements [column, column + Count) of a row, zero past `width`. Needs column % Width == 0 and
// width % Width == 0, and addresses aligned to a Pack.
template <int Width, int Count, class T>
__device__ __forceinline__ void load(const T* row, int column, int width, T (&out)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i += Width) {
    Pack<T, Width> pack = {};
    if (column + i < width) pack = *reinterpret_cast<const Pack<T, Width>*>(row + column + i);
#pragma unroll
    for (int j = 0; j < Width; ++j) out[i + j] = pack.element[j];
  }
}

template <int Width, int Count, class T>
__device__ __forceinline__ void store(T* row, int column, int width, const T (&in)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i += Width) {
    Pack<T, Width> pack;
#pragma unroll
    for (int j = 0; j < Width; ++j) pack.element[j] = in[i + j];
    if (column + i < width) *reinterpret_cast<Pack<T, Width>*>(row + column + i) = pack;
  }
}

// As load, from a vector of any element type, widened to fp32.
template <int Width, int Count>
__device__ __forceinline__ void load_float(const void* data, Scalar scalar, int column, int width,
                                           float (&out)[Count]) {
  with_gpu_scalar(scalar, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T raw[Count];
    load<Width>(static_cast<const T*>(data), column, width, raw);
#pragma unroll
    for (int i = 0; i < Count; ++i) out[i] = to_float(raw[i]);
  });
}

// The widest access, in elements and at most a granule, under which every address is aligned.
class AccessWidth {
 public:
  constexpr AccessWidth(int limit, int64_t row_width) : width_(limit) { fit(row_width); }

  constexpr int value() const { return width_; }

  // Addresses are first + k * (each of the strides) elements of element_size bytes.
  constexpr void fit_pointer(const void* first, int element_size) {
    fit(static_cast<int64_t>(reinterpret_cast<uintptr_t>(first)) / element_size);
  }
  constexpr void fit(int64_t elements) {
    while (elements % width_ != 0) width_ /= 2;
  }

 private:
  int width_;
};

}  // namespace kernelworks
