// SPDX-License-Identifier: Apache-2.0
// Run-time values to compile-time tags: the dtype of a tensor and the width of a vector access.
#pragma once

#include <cstdint>

namespace kernelworks {

// The element types that kernels know. The torch boundary maps torch's dtypes to these and refuses the rest.
enum class Scalar : int8_t { f32, f16, bf16, f64 };

constexpr int size_of(Scalar scalar) {
  return scalar == Scalar::f64 ? 8 : scalar == Scalar::f32 ? 4 : 2;
}

template <class T>
struct TypeTag {
  using type = T;
};

template <int N>
struct WidthTag {
  static constexpr int value = N;
};

}  // namespace kernelworks
