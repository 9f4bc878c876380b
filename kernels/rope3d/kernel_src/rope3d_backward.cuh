// SPDX-License-Identifier: Apache-2.0
// Backward of RMSNorm and the rotation: turn the gradient back, reduce, and pass on; sums for the gradient of each weight
// are kept for all rows that a block works on, and left as one row of partial sums.
#pragma once

#include "rope3d_norm.cuh"

namespace kernelworks::rope3d {

// A unit's gradient turned back, and its normalised numbers.
template <class U>
struct Pulled {
  float grad[U::granules][U::size];
  float normed[U::granules][U::size];

  __device__ __forceinline__ void set(const U& grads, const U& values, const Turn<U>& turn, float rstd) {
    grads.unpack(grad);
    turn.apply(grad);
    values.unpack(normed);
    multiply<U>(normed, rstd);
  }
  // Their products, which add up to the gradient of the weight.
  __device__ __forceinline__ void add_products(float (&sums)[U::granules][U::size]) const {
#pragma unroll
    for (int g = 0; g < U::granules; ++g) {
#pragma unroll
      for (int i = 0; i < U::size; ++i) sums[g][i] = fmaf(grad[g][i], normed[g][i], sums[g][i]);
    }
  }
  __device__ __forceinline__ float dot() const {
    float sum = 0;
#pragma unroll
    for (int g = 0; g < U::granules; ++g) {
#pragma unroll
      for (int i = 0; i < U::size; ++i) sum = fmaf(grad[g][i], normed[g][i], sum);
    }
    return sum;
  }
  // grad_x, where the gradient has been multiplied by the weight.
  __device__ __forceinline__ U result(float rstd, float mean) const {
    float values[U::granules][U::size];
#pragma unroll
    for (int g = 0; g < U::granules; ++g) {
#pragma unroll
      for (int i = 0; i < U::size; ++i) values[g][i] = rstd * (grad[g][i] - normed[g][i] * mean);
    }
    U unit;
    unit.pack(values);
    return unit;
  }
};

// The rows of one tensor that belong to a token.
template <class T>
struct BackwardRows {
  TokenRows<T, int64_t> grad, x, grad_x;
  const float* rstd;
  int64_t rstd_stride;  // between samples
  int rows;             // of a sample
  int items;            // of all samples that share the angles
  int heads;            // of a row

  __device__ __forceinline__ BackwardRows(const Problem& problem, const BackwardTensor& of, const RowGrid& grid,
                                          const Token& token)
      : grad(of.grad, of.grad_strides, token),
        x(of.x, of.x_strides, token),
        grad_x(of.grad_x, of.grad_x_strides, token) {
    const bool full = problem.norm == Norm::full;
    rows = full ? 1 : of.heads;
    heads = full ? of.heads : 1;
    items = of.heads == 0 ? 0 : grid.apart ? rows : rows * static_cast<int>(problem.batch);
    rstd_stride = problem.tokens * rows;
    rstd = static_cast<const float*>(of.rstd) + token.sample * rstd_stride + static_cast<int64_t>(token.t) * rows;
  }
  __device__ __forceinline__ RowOf row(int item) const {
    const int sample = item / rows;
    return {true, sample, item - sample * rows, heads};
  }
  __device__ __forceinline__ float rstd_of(const RowOf& row) const { return rstd[row.sample * rstd_stride + row.head]; }
};

// Calls body(index in the weight, its number) for the numbers that a unit has.
template <class U, class Body>
__device__ __forceinline__ void for_weights(int width, const RowUnit<U>& place, float (&numbers)[U::granules][U::size],
                                            const Body& body) {
  const int first[2] = {place.head * width + place.spot.first, place.head * width + place.spot.second};
#pragma unroll
  for (int g = 0; g < U::granules; ++g) {
    if (g == 1 && !place.spot.has_second) continue;
#pragma unroll
    for (int i = 0; i < U::access; ++i) body(first[g] + i, numbers[g][i]);
  }
}

__device__ __forceinline__ int weight_length(const Problem& problem, const BackwardTensor& tensor) {
  return problem.norm == Norm::full ? tensor.heads * problem.width : problem.width;
}

// This block's partial row; null where no gradient of the weight is wanted.
__device__ __forceinline__ float* partial_row(const Problem& problem, const BackwardTensor& tensor) {
  if (tensor.heads == 0 || tensor.grad_weight == nullptr) return nullptr;
  return static_cast<float*>(tensor.partials) + static_cast<int64_t>(blockIdx.x) * weight_length(problem, tensor);
}

template <class T, class U, int Held>
__device__ __forceinline__ void backward_rows(const Problem& problem, const BackwardTensor& tensor,
                                              const RowGrid& grid, const Token& token, const RowUnit<U> (&place)[Held], const Turn<U> (&turn)[Held],
                                              float (&sums)[Held][U::granules][U::size],
                                              float (&scratch)[2][1][max_warps], int& round) {
  const BackwardRows<T> data(problem, tensor, grid, token);
  const float scale = inverse_length(problem, data.heads);
#pragma unroll 1
  for (int item = 0; item < data.items; ++item) {
    const RowOf row = data.row(item);
    U grads[Held], values[Held];
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      const bool there = token.live && place[g].head < data.heads;
      place[g].load(grads[g], data.grad[row], data.grad.head, there);
      place[g].load(values[g], data.x[row], data.x.head, there);
    }
    const float rstd = data.rstd_of(row);
    Pulled<U> pulled[Held];
    float dots[1] = {0};
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      pulled[g].set(grads[g], values[g], turn[g], rstd);
      pulled[g].add_products(sums[g]);
      if (place[g].head < data.heads) {
        multiply_weight<U>(tensor.weight, place[g].head * problem.width, place[g].spot, pulled[g].grad);
      }
      dots[0] += pulled[g].dot();
    }
    row_sums(dots, scratch[round]);
    round ^= 1;
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      if (!token.live || place[g].head >= data.heads) continue;
      T* to = const_cast<T*>(data.grad_x[row]) + place[g].head * data.grad_x.head;
      pulled[g].result(rstd, dots[0] * scale).store(to, place[g].spot);
    }
  }
}

// Adds up a block's rows of threads, one after the other, and leaves its partial row.
template <class U, int Held>
__device__ __forceinline__ void leave_partials(const Problem& problem, const BackwardTensor& tensor,
                                               const RowUnit<U> (&place)[Held],
                                               float (&sums)[Held][U::granules][U::size], float* shared) {
  float* partials = partial_row(problem, tensor);
  if (partials == nullptr) return;
  const int heads = problem.norm == Norm::full ? tensor.heads : 1, last = blockDim.y - 1;
  for (int row = 0; row <= last; ++row) {
    if (threadIdx.y == row) {
#pragma unroll
      for (int g = 0; g < Held; ++g) {
        if (place[g].head >= heads) continue;
        for_weights<U>(problem.width, place[g], sums[g], [&](int index, float& sum) {
          if (row > 0) sum += shared[index];
          (row < last ? shared : partials)[index] = sum;
        });
      }
    }
    if (last > 0) __syncthreads();
  }
}

template <class T, bool Interleaved, bool Full>
__global__ void __launch_bounds__(max_norm_block(Interleaved, Full))
    backward_kernel(const __grid_constant__ BackwardParams params, const __grid_constant__ RowGrid grid) {
  using U = Unit<T, true, Interleaved>;
  constexpr int held = held_units(Full);
  extern __shared__ float row_sums_of_block[];
  __shared__ float scratch[2][1][max_warps];
  const Problem& problem = params.problem;
  const Units units = U::units(problem);
  RowUnit<U> place[held];
  float q_sums[held][U::granules][U::size] = {}, k_sums[held][U::granules][U::size] = {};
#pragma unroll
  for (int g = 0; g < held; ++g) place[g].set(problem, units, g * blockDim.x + threadIdx.x);

  wait_for_earlier_kernels();
  let_next_kernel_start();
  int round = 0;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * blockDim.y; first < grid.tokens; first += gridDim.x * blockDim.y) {
    const Token token(problem, grid, first + threadIdx.y);
    Turn<U> turn[held];
#pragma unroll
    for (int g = 0; g < held; ++g) {
      turn[g].set(params.angles, token.sample, token.t, place[g].index * U::pairs, -1.0f, place[g].spot.turns);
    }
    backward_rows<T, U, held>(problem, params.q, grid, token, place, turn, q_sums, scratch, round);
    backward_rows<T, U, held>(problem, params.k, grid, token, place, turn, k_sums, scratch, round);
  }
  leave_partials<U, held>(problem, params.q, place, q_sums, row_sums_of_block);
  leave_partials<U, held>(problem, params.k, place, k_sums, row_sums_of_block);
}

// The sums lie in the partial row itself, each number of which is one thread's alone.
template <class T, bool Vector, bool Interleaved>
__global__ void __launch_bounds__(wide_block)
    wide_backward_kernel(const __grid_constant__ BackwardParams params, const __grid_constant__ RowGrid grid) {
  using U = Unit<T, Vector, Interleaved>;
  __shared__ float scratch[2][1][max_warps];
  const Problem& problem = params.problem;
  const Units units = U::units(problem);
  wait_for_earlier_kernels();
  let_next_kernel_start();
  int round = 0;
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    const BackwardTensor& tensor = which == 0 ? params.q : params.k;
    const int row_units = (problem.norm == Norm::full ? tensor.heads : 1) * units.all;
    float* partials = partial_row(problem, tensor);
    const auto each_unit = [&](const auto& body) {
      for (int u = threadIdx.x; u < row_units; u += wide_block) {
        RowUnit<U> place;
        place.set(problem, units, u);
        body(place);
      }
    };
    if (partials != nullptr) {
      each_unit([&](const RowUnit<U>& place) {
        float zeros[U::granules][U::size] = {};
        for_weights<U>(problem.width, place, zeros, [&](int index, float& zero) { partials[index] = zero; });
      });
    }
    for (uint32_t index = blockIdx.x; index < grid.tokens; index += gridDim.x) {
      const Token token(problem, grid, index);
      const BackwardRows<T> data(problem, tensor, grid, token);
      for (int item = 0; item < data.items; ++item) {
        const RowOf row = data.row(item);
        const float rstd = data.rstd_of(row);
        const auto pull = [&](const RowUnit<U>& place) {
          U grad, x;
          place.load(grad, data.grad[row], data.grad.head, true);
          place.load(x, data.x[row], data.x.head, true);
          Turn<U> turn;
          turn.set(params.angles, token.sample, token.t, place.index * U::pairs, -1.0f, place.spot.turns);
          Pulled<U> pulled;
          pulled.set(grad, x, turn, rstd);
          return pulled;
        };
        const auto weigh = [&](const RowUnit<U>& place, Pulled<U>& pulled) {
          multiply_weight<U>(tensor.weight, place.head * problem.width, place.spot, pulled.grad);
        };
        float dots[1] = {0};
        each_unit([&](const RowUnit<U>& place) {
          Pulled<U> pulled = pull(place);
          if (partials != nullptr) {
            float products[U::granules][U::size] = {};
            pulled.add_products(products);
            for_weights<U>(problem.width, place, products, [&](int at, float& product) { partials[at] += product; });
          }
          weigh(place, pulled);
          dots[0] += pulled.dot();
        });
        row_sums(dots, scratch[round]);
        round ^= 1;
        const float mean = dots[0] * inverse_length(problem, data.heads);
        each_unit([&](const RowUnit<U>& place) {
          Pulled<U> pulled = pull(place);
          weigh(place, pulled);
          pulled.result(rstd, mean).store(const_cast<T*>(data.grad_x[row]) + place.head * data.grad_x.head, place.spot);
        });
      }
    }
  }
}

}  // namespace kernelworks::rope3d
