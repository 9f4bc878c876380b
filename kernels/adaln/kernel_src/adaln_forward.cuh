// SPDX-License-Identifier: Apache-2.0
// Forward on the GPU: load a row, add, reduce, modulate, store. One kernel holds the row in registers, and is for
// aligned rows; the other keeps it in shared memory, and takes any row.
#pragma once

#include "adaln_kernel.cuh"
#include "vendor/launch.cuh"
#include "vendor/stage.cuh"

namespace kernelworks::adaln {

__device__ __forceinline__ void write_statistics(const ForwardParams& params, int64_t row, const Statistics& found) {
  if (threadIdx.x != 0 || params.rstd == nullptr) return;
  static_cast<float*>(params.rstd)[row] = found.rstd;
  if (params.mean != nullptr) static_cast<float*>(params.mean)[row] = found.mean;
}

// A modulator's row for a group, of the rows' own type and of one part; zeros where it is not there.
template <class T>
struct PlainRow {
  const T* data;
  int width;

  __device__ PlainRow(const Modulator& modulator, int64_t group, int row_width)
      : data(static_cast<const T*>(row_of_group(modulator, 0, group))), width(data == nullptr ? 0 : row_width) {}
  __device__ Granule<T> operator[](int g) const { return load<Granule<T>::size>(data, column_of<T>(g), width); }
};

// How modulators come to forward.
enum class Form : int8_t {
  plain,   // each of the rows' own type and of one part, and neither weight nor bias: as they lie in memory
  folded,  // by fold_kernel
  raw,     // anything else: put together for each row
};

// What the rows of a group have in common: three rows of fp32, a, b and gate, with y = n * a + b.
__device__ __forceinline__ float* folded_row(const ForwardParams& params, int64_t group, int which) {
  return static_cast<float*>(params.folded) + (group * 3 + which) * params.problem.width;
}

constexpr int fold_block = 256;

__global__ void __launch_bounds__(fold_block)
    fold_kernel(const __grid_constant__ ForwardParams params, int column_blocks) {
  const int64_t group = blockIdx.x / column_blocks;
  const int width = params.problem.width;
  const int column = static_cast<int>(blockIdx.x % column_blocks) * fold_block + threadIdx.x;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  if (column >= width) return;
  float a[1], b[1], gate[1];
  load_affine<1>(params, group, column, width, a, b);
  load_gate<1>(params.gate, group, column, width, gate);
  folded_row(params, group, 0)[column] = a[0];
  folded_row(params, group, 1)[column] = b[0];
  folded_row(params, group, 2)[column] = gate[0];
}

// The row lies in registers. All loads are issued before anything waits for one; those of plain modulators too, but
// for LayerNorm alone, where more rows under way are worth more.
template <class T, int Held, bool Layer, bool HasResidual, Form Modulators>
__global__ void __launch_bounds__(max_forward_block, Modulators == Form::raw ? 3 : 4)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  constexpr int size = Granule<T>::size;
  constexpr bool early = Modulators == Form::plain && (HasResidual || !Layer);
  __shared__ float scratch[2][1][max_warps];
  const Problem& problem = params.problem;
  const int64_t own_row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool live = own_row < problem.rows;
  const int64_t row = live ? own_row : 0, start = row * problem.width;
  const int width = live ? problem.width : 0;  // without a row a thread still takes part in the reductions
  const float inverse_width = 1.0f / problem.width, eps = static_cast<float>(params.eps);
  const int64_t group = problem.group_of(row);
  const PlainRow<T> gate_row(params.gate, group, width), scale_row(params.scale, group, width),
      shift_row(params.shift, group, width);
  const T* x = row_of<T>(params.x, row);

  wait_for_earlier_kernels();
  Granule<T> values[Held], others[Held];
#pragma unroll
  for (int g = 0; g < Held; ++g) values[g] = load<size>(x, column_of<T>(g), width);
  if constexpr (HasResidual) {
    const T* residual = row_of<T>(params.residual, row);
#pragma unroll
    for (int g = 0; g < Held; ++g) others[g] = load<size>(residual, column_of<T>(g), width);
    T* residual_out = static_cast<T*>(params.residual_out) + start;
    Granule<T> gates[Held];
    if constexpr (Modulators == Form::plain) {
#pragma unroll
      for (int g = 0; g < Held; ++g) gates[g] = gate_row[g];
    }
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      const int column = column_of<T>(g);
      float gate[size];
      if constexpr (Modulators == Form::folded) {
        load_float<size>(folded_row(params, group, 2), Scalar::f32, column, width, gate);
      } else if constexpr (Modulators == Form::raw) {
        load_gate<size>(params.gate, group, column, width, gate);
      } else if (params.gate.part[0].data == nullptr) {
        fill(gate, 1);
      } else {
        gates[g].unpack(gate);
      }
      values[g] = gated_sum(values[g], others[g], gate);
      store<size>(residual_out, column, width, values[g]);
    }
  }
  Granule<T> scales[Held], shifts[Held];
  const auto fetch = [&](int g) {
    scales[g] = scale_row[g];
    shifts[g] = shift_row[g];
  };
  if constexpr (early) {
#pragma unroll
    for (int g = 0; g < Held; ++g) fetch(g);
  }
  let_next_kernel_start();
  if (params.y == nullptr) return;

  Statistics found{0, 0};
  float sum = 0, unpacked[size];
  if constexpr (Layer) {
#pragma unroll
    for (int g = 0; g < Held; ++g) {
      values[g].unpack(unpacked);
      sum += sum_of(unpacked);
    }
    found.mean = row_sum(sum, scratch[0]) * inverse_width;
    sum = 0;
  }
#pragma unroll
  for (int g = 0; g < Held; ++g) {
    values[g].unpack(unpacked);
    if (column_of<T>(g) < width) sum += centred_squares(unpacked, found.mean);
  }
#pragma unroll
  for (int g = 0; g < Held; ++g) values[g].keep_packed();
  found.rstd = rsqrtf(fmaf(row_sum(sum, scratch[1]), inverse_width, eps));
  if (live) write_statistics(params, row, found);

#pragma unroll
  for (int g = 0; g < Held; ++g) {
    const int column = column_of<T>(g);
    float a[size], b[size];
    if constexpr (Modulators == Form::plain) {
      if (!early) fetch(g);
      scales[g].unpack(a);
      shifts[g].unpack(b);
#pragma unroll
      for (int i = 0; i < size; ++i) a[i] += 1;
    } else if constexpr (Modulators == Form::folded) {
      load_float<size>(folded_row(params, group, 0), Scalar::f32, column, width, a);
      load_float<size>(folded_row(params, group, 1), Scalar::f32, column, width, b);
    } else {
      load_affine<size>(params, group, column, width, a, b);
    }
    values[g].unpack(unpacked);
    modulate(unpacked, found, a, b);
    Granule<T> granule;
    granule.pack(unpacked);
    store<size>(static_cast<T*>(params.y) + start, column, width, granule);
  }
}

// Rows that are wide or not aligned. What is normalised lies in `slots` granules of shared memory for each thread;
// what does not fit is read again. Modulators are folded, or fetched when used.
template <class T, int Width, bool HasResidual>
__global__ void __launch_bounds__(max_forward_block)
    wide_forward_kernel(const __grid_constant__ ForwardParams params, int slots) {
  constexpr int size = Granule<T>::size;
  __shared__ float scratch[2][1][max_warps];
  const Problem& problem = params.problem;
  const bool layer = problem.norm == Norm::layer;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool live = row < problem.rows;
  const int width = live ? problem.width : 0;
  const int64_t safe = live ? row : 0, start = safe * problem.width;
  const float inverse_width = 1.0f / problem.width, eps = static_cast<float>(params.eps);
  const int64_t group = problem.group_of(safe);
  const T* x = row_of<T>(params.x, safe);
  T* residual_out = static_cast<T*>(params.residual_out) + start;
  const auto fetch = [&](int g) {
    if (g < slots) return *slot<T>(g);
    return load<Width>(HasResidual ? residual_out : x, column_of<T>(g), width);
  };

  wait_for_earlier_kernels();
  float sum = 0;
  for (int g = 0; column_of<T>(g) < width; ++g) {
    Granule<T> granule = load<Width>(x, column_of<T>(g), width);
    if constexpr (HasResidual) {
      float gate[size];
      if (params.folded != nullptr) {
        load_float<Width>(folded_row(params, group, 2), Scalar::f32, column_of<T>(g), width, gate);
      } else {
        load_gate<Width>(params.gate, group, column_of<T>(g), width, gate);
      }
      granule = gated_sum(granule, load<Width>(row_of<T>(params.residual, safe), column_of<T>(g), width), gate);
      store<Width>(residual_out, column_of<T>(g), width, granule);
    }
    if (g < slots) *slot<T>(g) = granule;
    float values[size];
    granule.unpack(values);
    sum += layer ? sum_of(values) : centred_squares(values, 0);
  }
  let_next_kernel_start();
  if (params.y == nullptr) return;

  Statistics found{0, 0};
  if (layer) {
    found.mean = row_sum(sum, scratch[0]) * inverse_width;
    sum = 0;
    for (int g = 0; column_of<T>(g) < width; ++g) {
      float values[size];
      fetch(g).unpack(values);
      sum += centred_squares(values, found.mean, width - column_of<T>(g));
    }
  }
  found.rstd = rsqrtf(fmaf(row_sum(sum, scratch[1]), inverse_width, eps));
  if (live) write_statistics(params, row, found);
  for (int g = 0; column_of<T>(g) < width; ++g) {
    float values[size], a[size], b[size];
    fetch(g).unpack(values);
    if (params.folded != nullptr) {
      load_float<Width>(folded_row(params, group, 0), Scalar::f32, column_of<T>(g), width, a);
      load_float<Width>(folded_row(params, group, 1), Scalar::f32, column_of<T>(g), width, b);
    } else {
      load_affine<Width>(params, group, column_of<T>(g), width, a, b);
    }
    modulate(values, found, a, b);
    Granule<T> granule;
    granule.pack(values);
    store<Width>(static_cast<T*>(params.y) + start, column_of<T>(g), width, granule);
  }
}

}  // namespace kernelworks::adaln
