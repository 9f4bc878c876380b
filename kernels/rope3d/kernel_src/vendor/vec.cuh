// SPDX-License-Identifier: Apache-2.0
// Granules: the 16 bytes of a row that one thread owns, moved with the widest access the addresses allow.
//
// Which thread owns which element never depends on the access width, so that a row's sums come out the same,
// bit for bit, whether its data is aligned or not.
#pragma once

#include <cstdint>
#include <cstring>

#include "numeric.cuh"
#include "row_layout.h"

namespace kernelworks {

// Sixteen bytes of elements as they lie in memory: half the registers that fp32 copies of 16-bit types take.
template <class T>
struct Granule {
  static constexpr int size = 16 / sizeof(T);
  uint32_t word[4];

  __device__ __forceinline__ void unpack(float (&out)[size]) const {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(T) == 4) {
        out[w] = __uint_as_float(word[w]);
      } else {
        unpack_pair(T{}, word[w], out[2 * w], out[2 * w + 1]);
      }
    }
  }
  __device__ __forceinline__ void pack(const float (&in)[size]) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(T) == 4) {
        word[w] = __float_as_uint(in[w]);
      } else {
        word[w] = pack_pair(T{}, in[2 * w], in[2 * w + 1]);
      }
    }
  }
  // Makes the compiler forget what it unpacked, so that between two passes it keeps the words and not the floats.
  __device__ __forceinline__ void keep_packed() {
#pragma unroll
    for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(word[w]));
  }
};

// The values as they come back from T.
template <class T>
__device__ __forceinline__ void round_to(float (&values)[Granule<T>::size]) {
  Granule<T> granule;
  granule.pack(values);
  granule.unpack(values);
}

// What one access moves: Width elements, two accesses' worth where those are more than 16 bytes.
template <class T, int Width>
struct alignas(Width * sizeof(T) < 16 ? Width * sizeof(T) : 16) Pack {
  T element[Width];
};

template <class T>
__device__ __forceinline__ const T* row_of(const Rows& rows, int64_t row) {
  return static_cast<const T*>(rows.data) + rows.layout.offset(row);
}

// The granule of a row that starts at `column`; zero past `width`. No access straddles the width: it is a
// multiple of Width.
template <int Width, class T>
__device__ __forceinline__ Granule<T> load(const T* row, int column, int width) {
  Granule<T> granule = {};
#pragma unroll
  for (int i = 0; i < Granule<T>::size; i += Width) {
    if (column + i >= width) continue;
    const auto pack = *reinterpret_cast<const Pack<T, Width>*>(row + column + i);
    memcpy(reinterpret_cast<T*>(granule.word) + i, &pack, sizeof(pack));
  }
  return granule;
}

template <int Width, class T>
__device__ __forceinline__ void store(T* row, int column, int width, const Granule<T>& granule) {
#pragma unroll
  for (int i = 0; i < Granule<T>::size; i += Width) {
    if (column + i >= width) continue;
    Pack<T, Width> pack;
    memcpy(&pack, reinterpret_cast<const T*>(granule.word) + i, sizeof(pack));
    *reinterpret_cast<Pack<T, Width>*>(row + column + i) = pack;
  }
}

// As load and store, of Count numbers in memory of any element type, as fp32 in registers.
template <int Width, int Count>
__device__ __forceinline__ void load_float(const void* data, Scalar scalar, int column, int width,
                                           float (&out)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) out[i] = 0;
  with_gpu_scalar(scalar, [&](auto tag) {
    using T = typename decltype(tag)::type;
#pragma unroll
    for (int i = 0; i < Count; i += Width) {
      if (column + i >= width) continue;
      const auto pack = *reinterpret_cast<const Pack<T, Width>*>(static_cast<const T*>(data) + column + i);
#pragma unroll
      for (int j = 0; j < Width; ++j) out[i + j] = to_float(pack.element[j]);
    }
  });
}
template <int Width, int Count>
__device__ __forceinline__ void store_float(float* data, int column, int width, const float (&in)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i += Width) {
    if (column + i >= width) continue;
    Pack<float, Width> pack;
#pragma unroll
    for (int j = 0; j < Width; ++j) pack.element[j] = in[i + j];
    *reinterpret_cast<Pack<float, Width>*>(data + column + i) = pack;
  }
}

// Calls body(type, width) with tags: three types, each with accesses of 16 bytes, of 4, or of one element.
template <class Body>
void with_type_and_width(Scalar scalar, int access, Body&& body) {
  with_gpu_scalar(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int widest = Granule<T>::size, word = widest / 4;
    if (access == widest) {
      body(type, WidthTag<widest>{});
    } else if (access >= word) {
      body(type, WidthTag<word>{});
    } else {
      body(type, WidthTag<1>{});
    }
  });
}

// The widest access, in elements and at most a granule, under which every address of some tensors is aligned.
class AccessWidth {
 public:
  AccessWidth(Scalar scalar, int64_t row_width) : width_(16 / size_of(scalar)) { fit(row_width); }

  int value() const { return width_; }
  // Null data: the tensor is not there, and asks for nothing.
  void fit_pointer(const void* first, Scalar scalar) {
    fit(static_cast<int64_t>(reinterpret_cast<uintptr_t>(first)) / size_of(scalar));
  }
  void fit_rows(const Rows& rows, Scalar scalar) {
    if (rows.data == nullptr) return;
    fit_pointer(rows.data, scalar);
    for (int d = 0; d < rows.layout.dims; ++d) fit(rows.layout.stride[d]);
  }

 private:
  void fit(int64_t elements) {
    while (elements % width_ != 0) width_ /= 2;
  }

  int width_;
};

}  // namespace kernelworks
