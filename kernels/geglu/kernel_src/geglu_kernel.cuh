// SPDX-License-Identifier: Apache-2.0
// Gated GELU on the GPU: load, transform, store. A thread has 16 bytes of the output, wherever in a row they lie.
#pragma once

#include "geglu.h"
#include "geglu_policy.h"
#include "gelu.cuh"
#include "vendor/launch.cuh"
#include "vendor/vec.cuh"

namespace kernelworks::geglu {

// As many numbers as fill 16 bytes: one access of that, or two of half of it, each beside those of the neighbouring
// threads. Past the last one nothing is loaded, and nothing stored.
template <class T, int Width>
struct Share {
  static constexpr int accesses = Granule<T>::size / Width;
  int64_t row[accesses];
  int column[accesses];
  bool live[accesses];

  __device__ __forceinline__ Share(const Problem&, const Grid& grid) {
#pragma unroll
    for (int a = 0; a < accesses; ++a) {
      const uint32_t index = (blockIdx.x * accesses + a) * block_size + threadIdx.x;
      const uint32_t place = grid.by_row.quotient(index);
      row[a] = grid.first_row + place;
      column[a] = static_cast<int>((index - place * grid.each_row) * Width);
      live[a] = index < grid.count;
    }
  }
  __device__ __forceinline__ Granule<T> load(const Rows& rows) const {
    Granule<T> granule = {};
#pragma unroll
    for (int a = 0; a < accesses; ++a) {
      if (!live[a]) continue;
      const auto pack = *reinterpret_cast<const Pack<T, Width>*>(row_of<T>(rows, row[a]) + column[a]);
      memcpy(reinterpret_cast<T*>(granule.word) + a * Width, &pack, sizeof(pack));
    }
    return granule;
  }
  // To rows that lie `stride` elements apart.
  __device__ __forceinline__ void store(void* data, int64_t stride, const Granule<T>& granule) const {
#pragma unroll
    for (int a = 0; a < accesses; ++a) {
      if (!live[a]) continue;
      Pack<T, Width> pack;
      memcpy(&pack, reinterpret_cast<const T*>(granule.word) + a * Width, sizeof(pack));
      *reinterpret_cast<Pack<T, Width>*>(static_cast<T*>(data) + row[a] * stride + column[a]) = pack;
    }
  }
};

// The same by single elements, those of a warp beside each other. All are of one row, so that it is looked up once.
template <class T>
struct Share<T, 1> {
  static constexpr int accesses = Granule<T>::size;
  int64_t row;
  int column;
  int left;  // elements of the row from `column` on

  __device__ __forceinline__ Share(const Problem& problem, const Grid& grid) {
    const uint32_t index = (blockIdx.x * block_size + threadIdx.x) / warp_size;
    const uint32_t place = grid.by_row.quotient(index);
    row = grid.first_row + place;
    column = static_cast<int>((index - place * grid.each_row) * accesses * warp_size + threadIdx.x % warp_size);
    left = index < grid.count ? problem.width - column : 0;
  }
  __device__ __forceinline__ Granule<T> load(const Rows& rows) const {
    Granule<T> granule = {};
    const T* from = row_of<T>(rows, row) + column;
#pragma unroll
    for (int a = 0; a < accesses; ++a) {
      if (a * warp_size < left) reinterpret_cast<T*>(granule.word)[a] = from[a * warp_size];
    }
    return granule;
  }
  __device__ __forceinline__ void store(void* data, int64_t stride, const Granule<T>& granule) const {
    T* to = static_cast<T*>(data) + row * stride + column;
#pragma unroll
    for (int a = 0; a < accesses; ++a) {
      if (a * warp_size < left) to[a * warp_size] = reinterpret_cast<const T*>(granule.word)[a];
    }
  }
};

template <class T, bool Tanh>
__device__ __forceinline__ float product(float value, float gate) {
  if constexpr (sizeof(T) == 4) {
    return exact_geglu<Tanh>(value, gate, exact_tail<Tanh>(gate).tail);
  } else {
    return value * (gate * coarse_gelu<Tanh>(gate).cdf);
  }
}

// The gradients of value and gate, in the places of both.
template <class T, bool Tanh>
__device__ __forceinline__ void gradients(float grad, float& value, float& gate) {
  float of_value;
  CdfAndSlope at_gate;
  if constexpr (sizeof(T) == 4) {
    const ExactTail exact = exact_tail<Tanh>(gate);
    of_value = exact_geglu<Tanh>(grad, gate, exact.tail);
    at_gate = to_single(gate, exact);
  } else {
    at_gate = coarse_gelu<Tanh>(gate);
    of_value = grad * (gate * at_gate.cdf);
  }
  gate = grad * value * at_gate.slope;
  value = of_value;
}

template <class T, int Width, bool Tanh>
__global__ void __launch_bounds__(block_size)
    forward_kernel(const __grid_constant__ ForwardParams params, const __grid_constant__ Grid grid) {
  constexpr int size = Granule<T>::size;
  const Share<T, Width> share(params.problem, grid);
  wait_for_earlier_kernels();
  const Granule<T> gate = share.load(params.gate);
  Granule<T> value = share.load(params.value);
  let_next_kernel_start();
  float values[size], gates[size];
  value.unpack(values);
  gate.unpack(gates);
#pragma unroll
  for (int i = 0; i < size; ++i) values[i] = product<T, Tanh>(values[i], gates[i]);
  value.pack(values);
  share.store(params.y, params.problem.width, value);
}

template <class T, int Width, bool Tanh>
__global__ void __launch_bounds__(block_size)
    backward_kernel(const __grid_constant__ BackwardParams params, const __grid_constant__ Grid grid) {
  constexpr int size = Granule<T>::size;
  const Share<T, Width> share(params.problem, grid);
  wait_for_earlier_kernels();
  Granule<T> gate = share.load(params.gate);
  Granule<T> value = share.load(params.value);
  const Granule<T> grad = share.load(params.grad);
  let_next_kernel_start();
  float grads[size], values[size], gates[size];
  grad.unpack(grads);
  value.unpack(values);
  gate.unpack(gates);
#pragma unroll
  for (int i = 0; i < size; ++i) gradients<T, Tanh>(grads[i], values[i], gates[i]);
  value.pack(values);
  gate.pack(gates);
  share.store(params.grad_value, params.grad_stride, value);
  share.store(params.grad_gate, params.grad_stride, gate);
}

}  // namespace kernelworks::geglu
