// SPDX-License-Identifier: Apache-2.0
// Backward on the GPU: blocks that go through a part of a group, copy rows ahead, and keep the sums over rows.
#pragma once

#include "adaln_kernel.cuh"
#include "vendor/launch.cuh"
#include "vendor/partials.cuh"
#include "vendor/row_ring.cuh"

namespace kernelworks::adaln {

// The rows of a block: one part of one group. The parts of a group take turns, as rows that are far apart are served
// less well.
struct Part {
  int64_t group;
  int64_t first;   // of this row of threads
  int64_t end;     // of the group
  int64_t stride;  // from one turn to the next
  int turns;       // the same for all threads of the block

  __device__ Part(const Problem& problem, int32_t parts) {
    group = blockIdx.x / parts;
    const int64_t begin = group * problem.group_rows + (blockIdx.x - group * parts) * static_cast<int64_t>(blockDim.y);
    first = begin + threadIdx.y;
    end = (group + 1) * problem.group_rows;
    stride = static_cast<int64_t>(parts) * blockDim.y;
    turns = static_cast<int>((end - begin + stride - 1) / stride);
  }
};

template <int Width, int Count>
__device__ __forceinline__ void store_sum(const Sum& sum, int64_t start, int column, int width,
                                          const float (&values)[Count]) {
  if (sum.data == nullptr) return;
  with_gpu_scalar(sum.scalar, [&](auto tag) {
    using T = typename decltype(tag)::type;
#pragma unroll
    for (int i = 0; i < Count; i += Width) {
      if (column + i >= width) continue;
      Pack<T, Width> pack;
#pragma unroll
      for (int j = 0; j < Width; ++j) pack.element[j] = to_scalar<T>(values[i + j]);
      *reinterpret_cast<Pack<T, Width>*>(static_cast<T*>(sum.data) + start + column + i) = pack;
    }
  });
}

// From the sums of a group to its gradients, and to its terms of those of weight and bias.
template <int Width, int Count>
__device__ __forceinline__ void finish_group(const BackwardParams& params, int64_t group, int column,
                                             const float (&s0)[Count], const float (&s1)[Count],
                                             const float (&s_gate)[Count]) {
  const int width = params.problem.width;
  const int64_t start = group * width;
  store_sum<Width>(params.grad_shift, start, column, width, s0);
  store_sum<Width>(params.grad_gate, start, column, width, s_gate);
  if (params.grad_scale.data != nullptr) {
    float result[Count];
    RawColumns<Width, Count> weight, bias;
    weight.load(params.weight.data, params.weight.scalar, column, width);
    bias.load(params.bias.data, params.bias.scalar, column, width);
    fill(result, params.weight.data == nullptr ? 1.0f : 0.0f);
    if (params.weight.data != nullptr) weight.add_to(params.weight.scalar, result);
    float biases[Count];
    fill(biases, 0);
    if (params.bias.data != nullptr) bias.add_to(params.bias.scalar, biases);
#pragma unroll
    for (int i = 0; i < Count; ++i) result[i] = fmaf(result[i], s1[i], biases[i] * s0[i]);
    store_sum<Width>(params.grad_scale, start, column, width, result);
  }
  if (params.affine == nullptr) return;
  ModulatorColumns<Width, Count> scale;
  scale.load(params.scale, group, column, width);
  float factor[Count], terms[Count];
  fill(factor, 0);
  scale.add_to(params.scale, factor);
#pragma unroll
  for (int i = 0; i < Count; ++i) terms[i] = (factor[i] + 1) * s1[i];
  store_float<Width>(static_cast<float*>(params.affine) + start, column, width, terms);
#pragma unroll
  for (int i = 0; i < Count; ++i) terms[i] = (factor[i] + 1) * s0[i];
  store_float<Width>(static_cast<float*>(params.affine) + params.problem.groups() * width + start, column, width,
                     terms);
}

__device__ __forceinline__ float* partial_of(const BackwardParams& params, int64_t item, int which) {
  return static_cast<float*>(params.partials) + (item * params.sums_each() + which) * params.problem.width;
}

// a = weight * (1 + scale), at some columns.
template <int Width, int Count>
__device__ __forceinline__ void load_factor(const BackwardParams& params, int64_t group, int column, int width,
                                            float (&a)[Count]) {
  ModulatorColumns<Width, Count> scale;
  RawColumns<Width, Count> weight;
  scale.load(params.scale, group, column, width);
  weight.load(params.weight.data, params.weight.scalar, column, width);
  fill(a, 0);
  scale.add_to(params.scale, a);
  float weights[Count];
  fill(weights, params.weight.data == nullptr ? 1.0f : 0.0f);
  if (params.weight.data != nullptr) weight.add_to(params.weight.scalar, weights);
#pragma unroll
  for (int i = 0; i < Count; ++i) a[i] = weights[i] * (a[i] + 1);
}

__device__ __forceinline__ Statistics statistics_of(const BackwardParams& params, int64_t row, int64_t end) {
  Statistics found{0, 0};
  if (row >= end || params.rstd == nullptr) return found;
  found.rstd = static_cast<const float*>(params.rstd)[row];
  if (params.mean != nullptr) found.mean = static_cast<const float*>(params.mean)[row];
  return found;
}

// What the elements of a row have in common. With c = v - mean, so that n = c * rstd:
//   grad_v = grad * rstd * a - pull * c - push
struct RowGradient {
  Statistics found;
  float pull;  // rstd^2 * mean(grad * a * n)
  float push;  // rstd * mean(grad * a); 0 for rms

  // From the sums of grad * a * c and, for layer, of grad * a over the row.
  __device__ void take(const float (&sums)[2], float inverse_width) {
    pull = found.rstd * sums[0] * inverse_width * found.rstd * found.rstd;
    push = found.rstd * sums[1] * inverse_width;
  }
  // Adds grad_v to `result`, grad to `s0` and grad * n to `s1`, which are sums over rows.
  template <bool Layer>
  __device__ void add(float v, float grad, float a, float& result, float& s0, float& s1) const {
    const float centred = Layer ? v - found.mean : v;
    const float scaled = grad * found.rstd;
    if constexpr (Layer) result -= push;
    result = fmaf(scaled, a, fmaf(-pull, centred, result));
    s0 += grad;
    s1 = fmaf(scaled, centred, s1);
  }
};

// The sums of grad * a * c and of grad * a, that of the latter for layer alone.
template <bool Layer, int Count>
__device__ __forceinline__ void add_products(const float (&v)[Count], const float (&grad)[Count],
                                             const float (&a)[Count], float mean, float (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const float product = grad[i] * a[i];
    sums[0] = fmaf(product, Layer ? v[i] - mean : v[i], sums[0]);
    if constexpr (Layer) sums[1] += product;
  }
}

// What the ring brings of each row, one tensor after the other: v, grad, where there is a gate x, and where there is
// one the gradient of residual_out.
constexpr int v_stream = 0, grad_stream = 1, x_stream = 2;
constexpr int extra_stream(bool gated) { return gated ? 3 : 2; }
constexpr int streams_of(bool gated, bool has_extra) { return extra_stream(gated) + (has_extra ? 1 : 0); }

template <class T, bool Layer, bool Gated>
__global__ void __launch_bounds__(most_backward_threads(Gated))
    backward_kernel(const __grid_constant__ BackwardParams params, Ring shape) {
  constexpr int size = Granule<T>::size, held = held_in_backward, kinds = Layer ? 2 : 1;
  __shared__ float scratch[2][kinds][max_warps];
  const Problem& problem = params.problem;
  const RowRing<T, size, held> ring(shape);
  // Behind the ring, where a block has several rows: room for one row of sums.
  float* row_of_sums = shared_floats() + ring.bytes(held, blockDim.x * blockDim.y) / sizeof(float);
  const float inverse_width = 1.0f / problem.width;
  const bool normed = params.grad.data != nullptr;  // there is a gradient of y
  const bool has_extra = params.grad_residual.data != nullptr;
  const bool sums_x = Gated && params.x.data != nullptr;
  const Part part(problem, params.parts);
  const auto start = [&](int64_t row, int stage) {
    if (row < part.end) {
      if (normed) {
        ring.start(stage, v_stream, row_of<T>(params.v, row), problem.width);
        ring.start(stage, grad_stream, row_of<T>(params.grad, row), problem.width);
      }
      if (sums_x) ring.start(stage, x_stream, row_of<T>(params.x, row), problem.width);
      if (has_extra) ring.start(stage, extra_stream(Gated), row_of<T>(params.grad_residual, row), problem.width);
    } else {  // a row of threads without a row works on zeros, as all of a block meet in the reduction
      for (int stream = 0; stream < ring.streams; ++stream) ring.clear(stage, stream);
    }
    end_group();
  };

  wait_for_earlier_kernels();
  for (int stage = 0; stage < ring.stages; ++stage) start(part.first + stage * part.stride, stage);
  Statistics next = statistics_of(params, part.first, part.end);
  float a[held][size], gate[held][size];
  float s0[held][size] = {}, s1[held][size] = {}, s_gate[held][size] = {};
#pragma unroll
  for (int g = 0; g < held; ++g) {
    load_factor<size>(params, part.group, column_of<T>(g), problem.width, a[g]);
    if constexpr (Gated) load_gate<size>(params.gate, part.group, column_of<T>(g), problem.width, gate[g]);
  }
  let_next_kernel_start();

  int64_t row = part.first;
  for (int turn = 0, stage = 0; turn < part.turns; ++turn, row += part.stride, stage = ring.after(stage)) {
    const int width = row < part.end ? problem.width : 0;
    RowGradient gradient{next, 0, 0};
    next = statistics_of(params, row + part.stride, part.end);

    wait_for_groups(ring.stages - 1);
    float v[size], grad[size];
    if (normed) {
      float of_row[2] = {};
#pragma unroll
      for (int g = 0; g < held; ++g) {
        ring.at(stage, v_stream, g)->unpack(v);
        ring.at(stage, grad_stream, g)->unpack(grad);
        add_products<Layer>(v, grad, a[g], gradient.found.mean, of_row);
      }
      float sums[kinds];
#pragma unroll
      for (int k = 0; k < kinds; ++k) sums[k] = of_row[k];
      row_sums(sums, scratch[turn & 1]);
#pragma unroll
      for (int k = 0; k < kinds; ++k) of_row[k] = sums[k];
      gradient.take(of_row, inverse_width);
    }
#pragma unroll
    for (int g = 0; g < held; ++g) {
      const int column = column_of<T>(g);
      float result[size] = {};
      if (has_extra) ring.at(stage, extra_stream(Gated), g)->unpack(result);
      if (normed) {  // read again: what is held through the reduction would cost registers
        ring.at(stage, v_stream, g)->unpack(v);
        ring.at(stage, grad_stream, g)->unpack(grad);
#pragma unroll
        for (int i = 0; i < size; ++i) {
          gradient.template add<Layer>(v[i], grad[i], a[g][i], result[i], s0[g][i], s1[g][i]);
        }
      }
      Granule<T> granule;
      if (params.grad_v != nullptr) {
        granule.pack(result);
        store<size>(static_cast<T*>(params.grad_v) + row * problem.width, column, width, granule);
      }
      if constexpr (Gated) {
        if (sums_x) {
          ring.at(stage, x_stream, g)->unpack(v);
#pragma unroll
          for (int i = 0; i < size; ++i) s_gate[g][i] = fmaf(result[i], v[i], s_gate[g][i]);
        }
#pragma unroll
        for (int i = 0; i < size; ++i) result[i] *= gate[g][i];
        granule.pack(result);
        store<size>(static_cast<T*>(params.grad_x) + row * problem.width, column, width, granule);
      }
    }
    start(row + ring.stages * part.stride, stage);
  }
  if (!params.wants_sums()) return;
  if (blockDim.y > 1) {
    sum_over_rows_of_block<T>(row_of_sums, s0);
    sum_over_rows_of_block<T>(row_of_sums, s1);
    if constexpr (Gated) sum_over_rows_of_block<T>(row_of_sums, s_gate);
    if (threadIdx.y != blockDim.y - 1) return;
  }
#pragma unroll
  for (int g = 0; g < held; ++g) {
    const int column = column_of<T>(g);
    if (params.parts == 1) {
      finish_group<size>(params, part.group, column, s0[g], s1[g], s_gate[g]);
    } else {
      store_float<size>(partial_of(params, blockIdx.x, 0), column, problem.width, s0[g]);
      store_float<size>(partial_of(params, blockIdx.x, 1), column, problem.width, s1[g]);
      if constexpr (Gated) store_float<size>(partial_of(params, blockIdx.x, 2), column, problem.width, s_gate[g]);
    }
  }
}

// Rows that are wide or not aligned, one at a time in a block: read twice, and their sums kept in memory.
template <class T, int Width>
__global__ void __launch_bounds__(max_backward_block)
    wide_backward_kernel(const __grid_constant__ BackwardParams params) {
  constexpr int size = Granule<T>::size;
  __shared__ float scratch[2][2][max_warps];
  const Problem& problem = params.problem;
  const int width = problem.width;
  const bool normed = params.grad.data != nullptr, gated = params.gate.part[0].data != nullptr;
  const bool wanted = params.wants_sums();
  const float inverse_width = 1.0f / width;

  wait_for_earlier_kernels();
  const Part part(problem, params.parts);
  const int64_t group = part.group, item = blockIdx.x;
  int64_t row = part.first;
  for (int turn = 0; turn < part.turns; ++turn, row += part.stride) {
    const bool first = turn == 0, last = turn == part.turns - 1;
    RowGradient gradient{statistics_of(params, row, part.end), 0, 0};
    const T* v_row = normed ? row_of<T>(params.v, row) : nullptr;
    const T* grad_row = normed ? row_of<T>(params.grad, row) : nullptr;
    float sums[2] = {};
    for (int g = 0; normed && column_of<T>(g) < width; ++g) {
      float v[size], grad[size], a[size];
      load<Width>(v_row, column_of<T>(g), width).unpack(v);
      load<Width>(grad_row, column_of<T>(g), width).unpack(grad);
      load_factor<Width>(params, group, column_of<T>(g), width, a);
      add_products<true>(v, grad, a, gradient.found.mean, sums);
    }
    row_sums(sums, scratch[turn & 1]);
    if (problem.norm == Norm::rms) sums[1] = 0;  // and the mean is 0
    gradient.take(sums, inverse_width);

    for (int g = 0; column_of<T>(g) < width; ++g) {
      const int column = column_of<T>(g);
      float v[size] = {}, grad[size] = {}, a[size] = {}, result[size] = {};
      float s0[size] = {}, s1[size] = {}, s_gate[size] = {};
      if (wanted && !first) {
        load_float<Width>(partial_of(params, item, 0), Scalar::f32, column, width, s0);
        load_float<Width>(partial_of(params, item, 1), Scalar::f32, column, width, s1);
        if (gated) load_float<Width>(partial_of(params, item, 2), Scalar::f32, column, width, s_gate);
      }
      if (params.grad_residual.data != nullptr) {
        load<Width>(row_of<T>(params.grad_residual, row), column, width).unpack(result);
      }
      if (normed) {
        load<Width>(v_row, column, width).unpack(v);
        load<Width>(grad_row, column, width).unpack(grad);
        load_factor<Width>(params, group, column, width, a);
#pragma unroll
        for (int i = 0; i < size; ++i) {
          gradient.template add<true>(v[i], grad[i], a[i], result[i], s0[i], s1[i]);
        }
      }
      Granule<T> granule;
      granule.pack(result);
      if (params.grad_v != nullptr) store<Width>(static_cast<T*>(params.grad_v) + row * width, column, width, granule);
      if (gated) {
        if (params.x.data != nullptr) {
          load<Width>(row_of<T>(params.x, row), column, width).unpack(v);
#pragma unroll
          for (int i = 0; i < size; ++i) s_gate[i] = fmaf(result[i], v[i], s_gate[i]);
        }
        load_gate<Width>(params.gate, group, column, width, a);
#pragma unroll
        for (int i = 0; i < size; ++i) result[i] *= a[i];
        granule.pack(result);
        store<Width>(static_cast<T*>(params.grad_x) + row * width, column, width, granule);
      }
      if (!wanted) continue;
      if (last && params.parts == 1) {
        finish_group<Width>(params, group, column, s0, s1, s_gate);
      } else {
        store_float<Width>(partial_of(params, item, 0), column, width, s0);
        store_float<Width>(partial_of(params, item, 1), column, width, s1);
        if (gated) store_float<Width>(partial_of(params, item, 2), column, width, s_gate);
      }
    }
  }
}

// The second stage, where groups are split into parts: a block for each group and some columns.
template <int Each>
__global__ void __launch_bounds__(reduce_columns * reduce_lanes)
    finish_kernel(const __grid_constant__ BackwardParams params, int column_blocks) {
  const int64_t group = blockIdx.x / column_blocks;
  const int column = static_cast<int>(blockIdx.x % column_blocks) * reduce_columns + threadIdx.x;
  const int width = params.problem.width;
  const bool live = column < width;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  float sums[Each];
  sum_partials(partial_of(params, group * params.parts, 0) + column, params.parts, width, live, sums);
  if (threadIdx.y != 0 || !live) return;
  const float s0[1] = {sums[0]}, s1[1] = {sums[1]}, s_gate[1] = {sums[Each - 1]};
  finish_group<1>(params, group, column, s0, s1, s_gate);
}

}  // namespace kernelworks::adaln
