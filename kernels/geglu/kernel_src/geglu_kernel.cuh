// SPDX-License-Identifier: Apache-2.0
// Gated GELU on the GPU: load, transform, store. A thread has one granule of the output, wherever in a row it lies.
#pragma once

#include "geglu.h"
#include "geglu_policy.h"
#include "gelu.cuh"
#include "vendor/launch.cuh"
#include "vendor/vec.cuh"

namespace kernelworks::geglu {

// Where this thread's granule lies. Past the last one the width is 0: nothing is loaded, and nothing stored.
struct Place {
  int64_t row;
  int column;
  int width;
};

template <class T>
__device__ __forceinline__ Place own_place(const Grid& grid, int width) {
  const uint32_t granule = blockIdx.x * block_size + threadIdx.x;
  const uint32_t row = grid.by_row.quotient(granule);
  const int column = static_cast<int>((granule - row * grid.each_row) * Granule<T>::size);
  return {grid.first_row + row, column, granule < grid.granules ? width : 0};
}

template <int Width, class T>
__device__ __forceinline__ Granule<T> load_at(const Rows& rows, const Place& place) {
  return load<Width>(row_of<T>(rows, place.row), place.column, place.width);
}

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
  const int width = params.problem.width;
  const Place place = own_place<T>(grid, width);
  T* y = static_cast<T*>(params.y) + place.row * width;

  wait_for_earlier_kernels();
  const Granule<T> gate = load_at<Width, T>(params.gate, place);
  Granule<T> value = load_at<Width, T>(params.value, place);
  let_next_kernel_start();
  float values[size], gates[size];
  value.unpack(values);
  gate.unpack(gates);
#pragma unroll
  for (int i = 0; i < size; ++i) values[i] = product<T, Tanh>(values[i], gates[i]);
  value.pack(values);
  store<Width>(y, place.column, place.width, value);
}

template <class T, int Width, bool Tanh>
__global__ void __launch_bounds__(block_size)
    backward_kernel(const __grid_constant__ BackwardParams params, const __grid_constant__ Grid grid) {
  constexpr int size = Granule<T>::size;
  const Place place = own_place<T>(grid, params.problem.width);
  const int64_t start = place.row * params.grad_stride;

  wait_for_earlier_kernels();
  Granule<T> gate = load_at<Width, T>(params.gate, place);
  Granule<T> value = load_at<Width, T>(params.value, place);
  const Granule<T> grad = load_at<Width, T>(params.grad, place);
  let_next_kernel_start();
  float grads[size], values[size], gates[size];
  grad.unpack(grads);
  value.unpack(values);
  gate.unpack(gates);
#pragma unroll
  for (int i = 0; i < size; ++i) gradients<T, Tanh>(grads[i], values[i], gates[i]);
  value.pack(values);
  gate.pack(gates);
  store<Width>(static_cast<T*>(params.grad_value) + start, place.column, place.width, value);
  store<Width>(static_cast<T*>(params.grad_gate) + start, place.column, place.width, gate);
}

}  // namespace kernelworks::geglu
