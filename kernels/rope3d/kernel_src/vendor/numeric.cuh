// SPDX-License-Identifier: Apache-2.0
// Element types on the GPU and their conversions. Arithmetic is fp32; to_scalar rounds to nearest, ties to even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "dispatch.h"

namespace kernelworks {

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ __forceinline__ T to_scalar(float value);
template <>
__device__ __forceinline__ float to_scalar<float>(float value) { return value; }
template <>
__device__ __forceinline__ __half to_scalar<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ __forceinline__ __nv_bfloat16 to_scalar<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Two 16-bit elements in a word, the first in the low half.
__device__ __forceinline__ void unpack_pair(__half, uint32_t word, float& low, float& high) {
  const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
  low = pair.x;
  high = pair.y;
}
__device__ __forceinline__ void unpack_pair(__nv_bfloat16, uint32_t word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ uint32_t pack_pair(__half, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pack_pair(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Calls body(TypeTag<T>{}) with the GPU's type for `scalar`; the torch boundary has refused f64 before.
template <class Body>
__host__ __device__ __forceinline__ void with_gpu_scalar(Scalar scalar, Body&& body) {
  switch (scalar) {
    case Scalar::f32: body(TypeTag<float>{}); break;
    case Scalar::f16: body(TypeTag<__half>{}); break;
    case Scalar::bf16: body(TypeTag<__nv_bfloat16>{}); break;
    case Scalar::f64: break;
  }
}

}  // namespace kernelworks
