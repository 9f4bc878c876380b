// SPDX-License-Identifier: Apache-2.0
// RMSNorm and the rotation in one pass: load a row (a head, or all heads of a token), reduce, scale, turn, store. One
// kernel holds rows in registers and is for aligned ones; the other reads them twice, and takes any row.
#pragma once

#include "rope3d_kernel.cuh"
#include "vendor/launch.cuh"
#include "vendor/row_block.cuh"

namespace kernelworks::rope3d {

// Rows of one token: those of the samples that share its angles, one after the other, q's before k's.
struct RowGrid {
  bool apart;          // a token is that of one sample, which has its own angles or lies too far from the others
  uint32_t tokens;     // of all samples, where those are apart
  int32_t rows;        // of a sample: heads, or tensors where a row is all heads
  int32_t items;       // rows of a token
  int32_t parts;       // blocks that share a token's rows
  int32_t items_each;  // rows of each of them
  Divisor by_rows;
  Divisor by_parts;
  Divisor by_tokens;  // of a sample
};

// The token of this row of threads.
struct Token {
  bool live;
  uint32_t sample;
  uint32_t t;

  __device__ __forceinline__ Token(const Problem& problem, const RowGrid& grid, uint32_t index)
      : live(index < grid.tokens) {
    const uint32_t token = live ? index : 0;
    sample = grid.apart ? grid.by_tokens.quotient(token) : 0;
    t = token - sample * static_cast<uint32_t>(problem.tokens);
  }
};

// Where a thread's unit lies in a row: in which of its heads, and where there. Past the last head there is nothing.
template <class U>
struct RowUnit {
  int head;
  int index;
  Spot spot;

  __device__ __forceinline__ void set(const Problem& problem, const Units& units, int in_row) {
    head = in_row / units.all;
    index = in_row - head * units.all;
    spot = U::spot(problem, index, units);
  }
  template <class T, class Index>
  __device__ __forceinline__ void load(U& unit, const T* row, Index head_stride, bool there) const {
    if (there) {
      unit.load(row + head * head_stride, spot);
    } else {
      unit.clear();
    }
  }
};

// A row of a token: of q or of k, of which sample, from which head on, and how many heads it has.
struct RowOf {
  bool in_q;
  int sample;
  int head;
  int heads;

  // By its number among those of all samples.
  static __device__ __forceinline__ RowOf at(const ForwardParams& params, const RowGrid& grid, int item, bool full) {
    const int sample = static_cast<int>(grid.by_rows.quotient(item)), row = item - sample * grid.rows;
    const int of_q = full ? (params.q.heads > 0 ? 1 : 0) : params.q.heads;
    const bool in_q = row < of_q;
    return {in_q, sample, full ? 0 : in_q ? row : row - of_q, !full ? 1 : in_q ? params.q.heads : params.k.heads};
  }
};

// Where the rows of a token start, in a tensor. Index: of an element among those of a token in all samples.
template <class T, class Index>
struct TokenRows {
  const T* first;
  Index batch;
  Index head;

  __device__ __forceinline__ TokenRows(const void* data, const Strides& strides, const Token& token)
      : first(token_of<T>(data, strides, token.sample, token.t)),
        batch(static_cast<Index>(strides.batch)),
        head(static_cast<Index>(strides.head)) {}
  __device__ __forceinline__ const T* operator[](const RowOf& row) const { return first + row.sample * batch + row.head * head; }
};

// The same for what a forward reads and writes.
template <class T, class Index>
struct TokenData {
  TokenRows<T, Index> q_in, k_in, q_out, k_out;

  __device__ __forceinline__ TokenData(const ForwardParams& params, const Token& token)
      : q_in(params.q.in, params.q.in_strides, token),
        k_in(params.k.in, params.k.in_strides, token),
        q_out(params.q.out, params.q.out_strides, token),
        k_out(params.k.out, params.k.out_strides, token) {}
  __device__ __forceinline__ const T* in(const RowOf& row) const { return row.in_q ? q_in[row] : k_in[row]; }
  __device__ __forceinline__ T* out(const RowOf& row) const { return const_cast<T*>(row.in_q ? q_out[row] : k_out[row]); }
  __device__ __forceinline__ Index in_head(const RowOf& row) const { return row.in_q ? q_in.head : k_in.head; }
  __device__ __forceinline__ Index out_head(const RowOf& row) const { return row.in_q ? q_out.head : k_out.head; }
};

template <class U>
__device__ __forceinline__ float squares_of(const U& unit) {
  float sum = 0;
#pragma unroll
  for (int g = 0; g < U::granules; ++g) sum += sum_of_squares(unit.granule[g]);
  return sum;
}

// Multiplies a unit's numbers by their weights, of any type; `start` is where its head begins in the weight.
template <class U>
__device__ __forceinline__ void multiply_weight(const Weight& weight, int start, const Spot& spot,
                                                float (&values)[U::granules][U::size]) {
  if (weight.data == nullptr) return;
  const int first[2] = {start + spot.first, start + spot.second};
#pragma unroll
  for (int g = 0; g < U::granules; ++g) {
    if (g == 1 && !spot.has_second) continue;
    float factors[U::size];
    load_float<U::access>(weight.data, weight.scalar, first[g], first[g] + U::access, factors);
#pragma unroll
    for (int i = 0; i < U::access; ++i) values[g][i] *= factors[i];
  }
}

template <class U>
__device__ __forceinline__ void multiply(float (&values)[U::granules][U::size], float factor) {
#pragma unroll
  for (int g = 0; g < U::granules; ++g) {
#pragma unroll
    for (int i = 0; i < U::size; ++i) values[g][i] *= factor;
  }
}

template <class U>
__device__ __forceinline__ void multiply(float (&values)[U::granules][U::size], const U& unit) {
  float factors[U::granules][U::size];
  unit.unpack(factors);
#pragma unroll
  for (int g = 0; g < U::granules; ++g) {
#pragma unroll
    for (int i = 0; i < U::size; ++i) values[g][i] *= factors[g][i];
  }
}

// Where the statistic of a row lies: one for each head, or one for all of a token's.
__device__ __forceinline__ int64_t statistic_of(const Problem& problem, const Token& token, const RowOf& row,
                                                int32_t heads) {
  const int64_t index = static_cast<int64_t>(token.sample + row.sample) * problem.tokens + token.t;
  return problem.norm == Norm::full ? index : index * heads + row.head;
}

__device__ __forceinline__ float inverse_length(const Problem& problem, int heads) {
  return 1.0f / (static_cast<float>(heads) * static_cast<float>(problem.width));
}

__device__ __forceinline__ float rstd_of(const ForwardParams& params, const Token& token, const RowOf& row, float mean) {
  const Problem& problem = params.problem;
  const float rstd = rsqrtf(mean + static_cast<float>(problem.eps));
  void* statistics = row.in_q ? params.q.rstd : params.k.rstd;
  if (statistics != nullptr && threadIdx.x == 0 && token.live) {
    static_cast<float*>(statistics)[statistic_of(problem, token, row, row.in_q ? params.q.heads : params.k.heads)] = rstd;
  }
  return rstd;
}

// Full: a row is all heads of a token, of which a thread has two units; else one head, of which it has one.
template <class T, bool Interleaved, bool Full>
__global__ void __launch_bounds__(max_norm_block(Interleaved, Full), Full && !Interleaved ? 1 : 2)
    norm_kernel(const __grid_constant__ ForwardParams params, const __grid_constant__ RowGrid grid) {
  using U = Unit<T, true, Interleaved>;
  constexpr int held = held_units(Full), at_once = rows_at_once(held * U::granules);
  __shared__ float scratch[2][at_once][max_warps];
  const Problem& problem = params.problem;
  const Units units = U::units(problem);
  const uint32_t block = grid.by_parts.quotient(blockIdx.x), part = blockIdx.x - block * grid.parts;
  const Token token(problem, grid, block * blockDim.y + threadIdx.y);
  const TokenData<T, int32_t> data(params, token);
  const int q_heads = Full ? params.q.heads : 1, k_heads = Full ? params.k.heads : 1;
  const float q_scale = inverse_length(problem, q_heads), k_scale = inverse_length(problem, k_heads);
  RowUnit<U> place[held];
#pragma unroll
  for (int g = 0; g < held; ++g) place[g].set(problem, units, g * blockDim.x + threadIdx.x);
  const int begin = part * grid.items_each, end = min(begin + grid.items_each, grid.items);

  wait_for_earlier_kernels();
  let_next_kernel_start();
  Turn<U> turn[held];
  int turn_of_scratch = 0;
#pragma unroll 1
  for (int start = begin; start < end; start += at_once) {
    U unit[at_once][held];
    float sums[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (start + i >= end) continue;
      const RowOf row = RowOf::at(params, grid, start + i, Full);
      const T* from = data.in(row);
#pragma unroll
      for (int g = 0; g < held; ++g) {
        place[g].load(unit[i][g], from, data.in_head(row), token.live && place[g].head < (row.in_q ? q_heads : k_heads));
      }
    }
    if (start == begin) {  // while the first rows are on their way
#pragma unroll
      for (int g = 0; g < held; ++g) {
        turn[g].set(params.angles, token.sample, token.t, place[g].index * U::pairs, 1.0f, place[g].spot.turns);
      }
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      sums[i] = 0;
      if (start + i >= end) continue;
#pragma unroll
      for (int g = 0; g < held; ++g) sums[i] += squares_of(unit[i][g]);
    }
    row_sums(sums, scratch[turn_of_scratch]);
    turn_of_scratch ^= 1;
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (start + i >= end) continue;
      const RowOf row = RowOf::at(params, grid, start + i, Full);
      const float rstd = rstd_of(params, token, row, sums[i] * (row.in_q ? q_scale : k_scale));
      T* to = data.out(row);
      const Weight& weight = row.in_q ? params.q.weight : params.k.weight;
#pragma unroll
      for (int g = 0; g < held; ++g) {
        const bool there = token.live && place[g].head < (row.in_q ? q_heads : k_heads);
        float values[U::granules][U::size];
        unit[i][g].unpack(values);
        multiply<U>(values, rstd);
        if (weight.data != nullptr && weight.scalar == problem.scalar) {
          U factors;
          place[g].load(factors, static_cast<const T*>(weight.data), problem.width, there);
          multiply<U>(values, factors);
        } else if (there) {
          multiply_weight<U>(weight, place[g].head * problem.width, place[g].spot, values);
        }
        turn[g].apply(values);
        unit[i][g].pack(values);
        if (there) unit[i][g].store(to + place[g].head * data.out_head(row), place[g].spot);
      }
    }
  }
}

template <class T, bool Vector, bool Interleaved>
__global__ void __launch_bounds__(wide_block)
    wide_norm_kernel(const __grid_constant__ ForwardParams params, const __grid_constant__ RowGrid grid) {
  using U = Unit<T, Vector, Interleaved>;
  __shared__ float scratch[2][1][max_warps];
  const Problem& problem = params.problem;
  const Units units = U::units(problem);
  const uint32_t block = grid.by_parts.quotient(blockIdx.x), part = blockIdx.x - block * grid.parts;
  const Token token(problem, grid, block);
  const TokenData<T, int64_t> data(params, token);
  const int begin = part * grid.items_each, end = min(begin + grid.items_each, grid.items);

  wait_for_earlier_kernels();
  let_next_kernel_start();
  for (int item = begin; item < end; ++item) {
    const RowOf row = RowOf::at(params, grid, item, problem.norm == Norm::full);
    const int row_units = row.heads * units.all;
    const T* from = data.in(row);
    T* to = data.out(row);
    RowUnit<U> place;
    U unit;
    float sums[1] = {0};
    for (int u = threadIdx.x; u < row_units; u += wide_block) {
      place.set(problem, units, u);
      place.load(unit, from, data.in_head(row), true);
      sums[0] += squares_of(unit);
    }
    row_sums(sums, scratch[item & 1]);
    const float rstd = rstd_of(params, token, row, sums[0] * inverse_length(problem, row.heads));
    for (int u = threadIdx.x; u < row_units; u += wide_block) {
      place.set(problem, units, u);
      place.load(unit, from, data.in_head(row), true);
      float values[U::granules][U::size];
      unit.unpack(values);
      multiply<U>(values, rstd);
      multiply_weight<U>(row.in_q ? params.q.weight : params.k.weight, place.head * problem.width, place.spot, values);
      Turn<U> turn;
      turn.set(params.angles, token.sample, token.t, place.index * U::pairs, 1.0f, place.spot.turns);
      turn.apply(values);
      unit.pack(values);
      unit.store(to + place.head * data.out_head(row), place.spot);
    }
  }
}

}  // namespace kernelworks::rope3d
