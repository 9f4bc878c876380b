// SPDX-License-Identifier: Apache-2.0
// CUDA backend of the rotary embedding: from Params to the one kernel that fits, and its launches.
#include <algorithm>
#include <cstdlib>
#include <type_traits>

#include "rope3d_backward.cuh"
#include "rope3d_norm.cuh"
#include "rope3d_rotate.cuh"
#include "vendor/cuda_status.cuh"
#include "vendor/partials.cuh"

namespace kernelworks::rope3d {
namespace {

constexpr int built_archs[] = {__CUDA_ARCH_LIST__};

int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

// Whether every unit of every head starts on 16 bytes, and ends there.
class Alignment {
 public:
  explicit Alignment(const Problem& problem) : problem_(problem), size_(granule_bytes / size_of(problem.scalar)) {
    stride(problem.width);
    stride(problem.interleaved ? 2 * problem.pairs : problem.pairs);
  }
  void tensor(int32_t heads, const void* data, const Strides& strides) {
    pointer(data);
    if (problem_.batch > 1) stride(strides.batch);
    if (problem_.tokens > 1) stride(strides.token);
    if (heads > 1) stride(strides.head);
  }
  void pointer(const void* data) { whole_ = whole_ && reinterpret_cast<uintptr_t>(data) % granule_bytes == 0; }
  bool whole() const { return whole_; }

 private:
  void stride(int64_t elements) { whole_ = whole_ && elements % size_ == 0; }

  const Problem& problem_;
  int size_;
  bool whole_ = true;
};

// Calls body(true or false, as a tag).
template <class Body>
void with_flag(bool flag, const Body& body) {
  if (flag) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

// Calls body(type, whether units are whole granules, whether pairs are interleaved) with tags.
template <class Body>
void with_tags(const Problem& problem, bool vector, const Body& body) {
  with_gpu_scalar(problem.scalar, [&](auto type) {
    with_flag(vector, [&](auto whole) { with_flag(problem.interleaved, [&](auto interleaved) { body(type, whole, interleaved); }); });
  });
}

bool aligned(const ForwardParams& params) {
  Alignment alignment(params.problem);
  for (const ForwardTensor* tensor : {&params.q, &params.k}) {
    if (tensor->heads == 0) continue;
    alignment.tensor(tensor->heads, tensor->in, tensor->in_strides);
    alignment.tensor(tensor->heads, tensor->out, tensor->out_strides);
    alignment.pointer(tensor->weight.data);
  }
  return alignment.whole();
}

bool aligned(const BackwardParams& params) {
  Alignment alignment(params.problem);
  for (const BackwardTensor* tensor : {&params.q, &params.k}) {
    if (tensor->heads == 0) continue;
    alignment.tensor(tensor->heads, tensor->grad, tensor->grad_strides);
    alignment.tensor(tensor->heads, tensor->x, tensor->x_strides);
    alignment.tensor(tensor->heads, tensor->grad_x, tensor->grad_x_strides);
    alignment.pointer(tensor->weight.data);
  }
  return alignment.whole();
}

// Whether 32 bits count from any element of a token to any other, in all samples.
bool short_offsets(const Problem& problem, int32_t heads, const Strides& strides) {
  constexpr int64_t most = INT32_MAX;
  return heads == 0 || std::abs(problem.batch * strides.batch) + std::abs(heads * strides.head) + problem.width < most;
}
bool short_offsets(const ForwardParams& params) {
  for (const ForwardTensor* tensor : {&params.q, &params.k}) {
    if (!short_offsets(params.problem, tensor->heads, tensor->in_strides)) return false;
    if (!short_offsets(params.problem, tensor->heads, tensor->out_strides)) return false;
  }
  return true;
}
bool short_offsets(const BackwardParams&) { return true; }  // its offsets have 64 bits

template <class T, bool Vector, bool Interleaved, int Held, class Index>
cudaError_t launch_rotate(const ForwardParams& params, int32_t units, void* stream) {
  const int32_t heads = params.q.heads + params.k.heads;
  const int64_t samples = per_sample(params.angles) ? 1 : params.problem.batch;  // that share a token's angles
  const int64_t tokens = params.problem.batch * params.problem.tokens / samples;
  Grid grid;
  grid.each_token = static_cast<uint32_t>(units / Held);
  grid.items = static_cast<int32_t>(heads * samples);
  grid.parts = parts_of_items(tokens * grid.each_token, grid.items, multiprocessors());
  grid.items_each = (grid.items + grid.parts - 1) / grid.parts;
  grid.by_token = Divisor(grid.each_token);
  grid.by_heads = Divisor(static_cast<uint32_t>(heads));
  grid.by_parts = Divisor(static_cast<uint32_t>(grid.parts));
  grid.by_tokens = Divisor(static_cast<uint32_t>(params.problem.tokens));
  const int64_t at_once = std::max<int64_t>(1, most_threads / grid.parts / grid.each_token);
  cudaError_t status = cudaSuccess;
  for (int64_t first = 0; first < tokens && status == cudaSuccess; first += at_once) {
    const int64_t count = std::min(tokens - first, at_once) * grid.each_token;
    grid.first_token = static_cast<uint32_t>(first);
    grid.count = static_cast<uint32_t>(count);
    const int64_t blocks = (count + rotate_block - 1) / rotate_block * grid.parts;
    status = launch(rotate_kernel<T, Vector, Interleaved, Held, Index>, {blocks, dim3(rotate_block), 0, stream}, params,
                    grid);
  }
  return status;
}

template <class T, bool Vector, bool Interleaved>
cudaError_t launch_rotate(const ForwardParams& params, void* stream) {
  const Units all = Unit<T, Vector, Interleaved>::units(params.problem);
  const bool in_place = params.q.in == params.q.out && (params.k.heads == 0 || params.k.in == params.k.out);
  const int32_t units = in_place ? all.turning : all.all;
  if (units == 0) return cudaSuccess;
  if constexpr (Vector) {
    if (short_offsets(params)) {
      const int64_t samples = per_sample(params.angles) ? 1 : params.problem.batch;
      const int64_t items = (params.q.heads + params.k.heads) * samples;
      if constexpr (Interleaved) {
        if (units % 2 == 0 && items <= few_items) return launch_rotate<T, true, true, 2, int32_t>(params, units, stream);
      }
      return launch_rotate<T, true, Interleaved, 1, int32_t>(params, units, stream);
    }
  }
  return launch_rotate<T, Vector, Interleaved, 1, int64_t>(params, units, stream);
}

template <class Params>
RowGrid row_grid(const Params& params, int64_t threads_each) {
  const bool full = params.problem.norm == Norm::full;
  RowGrid grid;
  grid.apart = per_sample(params.angles) || !short_offsets(params);
  const int64_t samples = grid.apart ? 1 : params.problem.batch;
  grid.tokens = static_cast<uint32_t>(params.problem.batch * params.problem.tokens / samples);
  grid.rows = full ? (params.q.heads > 0) + (params.k.heads > 0) : params.q.heads + params.k.heads;
  grid.items = static_cast<int32_t>(grid.rows * samples);
  grid.parts = parts_of_items(grid.tokens * threads_each, grid.items, multiprocessors());
  grid.items_each = (grid.items + grid.parts - 1) / grid.parts;
  grid.by_rows = Divisor(static_cast<uint32_t>(grid.rows));
  grid.by_parts = Divisor(static_cast<uint32_t>(grid.parts));
  grid.by_tokens = Divisor(static_cast<uint32_t>(params.problem.tokens));
  return grid;
}

template <class Params>
int32_t heads_of_row(const Params& params) {
  return params.problem.norm != Norm::full ? 1 : params.q.heads > 0 ? params.q.heads : params.k.heads;
}

// Units of a row: of q's, or of k's where there is no q. Both are equally long (see in_launches).
template <class Params>
int64_t row_units(const Params& params, const Units& units) {
  return int64_t{heads_of_row(params)} * units.all;
}

// Calls body(params) for what is launched at once. The order in which a row is added up depends on its length, and must
// not depend on other rows: so with all heads in a row, q and k of different lengths go one after the other.
template <class Params, class Body>
cudaError_t in_launches(const Params& params, const Body& body) {
  const bool apart = params.problem.norm == Norm::full && params.q.heads > 0 && params.k.heads > 0 &&
                     params.q.heads != params.k.heads;
  if (!apart) return body(params);
  Params one = params;
  one.k = {};
  const cudaError_t status = body(one);
  if (status != cudaSuccess) return status;
  one.q = params.k;
  return body(one);
}

template <class T, bool Interleaved, bool Full>
cudaError_t launch_norm(const ForwardParams& params, int64_t row, void* stream) {
  const RowPolicy policy = norm_policy(row, Interleaved, Full);
  const RowGrid grid = row_grid(params, policy.threads_per_row);
  Launch where = row_launch(grid.tokens, policy, 0, stream);
  where.blocks *= grid.parts;
  return launch(norm_kernel<T, Interleaved, Full>, where, params, grid);
}

template <class T, bool Vector, bool Interleaved>
cudaError_t launch_norm(const ForwardParams& params, void* stream) {
  const bool full = params.problem.norm == Norm::full;
  if constexpr (Vector) {
    const int64_t row = row_units(params, Unit<T, true, Interleaved>::units(params.problem));
    if (fits_block(row, Interleaved, full)) {
      return full ? launch_norm<T, Interleaved, true>(params, row, stream)
                  : launch_norm<T, Interleaved, false>(params, row, stream);
    }
  }
  const RowGrid grid = row_grid(params, wide_block);
  const Launch where{int64_t{grid.tokens} * grid.parts, dim3(wide_block), 0, stream};
  return launch(wide_norm_kernel<T, Vector, Interleaved>, where, params, grid);
}

template <class T, bool Interleaved, bool Full>
cudaError_t launch_backward(const BackwardParams& params, int64_t row, int64_t length, void* stream) {
  const RowPolicy policy = norm_policy(row, Interleaved, Full);
  const int shared = policy.rows_per_block > 1 ? static_cast<int>(length * sizeof(float)) : 0;
  const Launch where{params.partial_rows, dim3(policy.threads_per_row, policy.rows_per_block), shared, stream};
  return launch(backward_kernel<T, Interleaved, Full>, where, params, row_grid(params, policy.threads_per_row));
}

template <class T, bool Vector, bool Interleaved>
cudaError_t launch_backward(const BackwardParams& params, void* stream) {
  if constexpr (Vector) {
    const bool full = params.problem.norm == Norm::full;
    const int64_t row = row_units(params, Unit<T, true, Interleaved>::units(params.problem));
    const int64_t length = int64_t{heads_of_row(params)} * params.problem.width;
    if (fits_block(row, Interleaved, full)) {
      return full ? launch_backward<T, Interleaved, true>(params, row, length, stream)
                  : launch_backward<T, Interleaved, false>(params, row, length, stream);
    }
  }
  const Launch where{params.partial_rows, dim3(wide_block), 0, stream};
  return launch(wide_backward_kernel<T, Vector, Interleaved>, where, params, row_grid(params, wide_block));
}

cudaError_t reduce_weight(const BackwardParams& params, const BackwardTensor& tensor, void* stream) {
  if (tensor.heads == 0 || tensor.grad_weight == nullptr) return cudaSuccess;
  const int32_t length = params.problem.norm == Norm::full ? tensor.heads * params.problem.width : params.problem.width;
  return launch_reduce_partials(static_cast<const float*>(tensor.partials), params.partial_rows, length,
                                tensor.grad_weight, tensor.weight.scalar, stream);
}

}  // namespace

std::string forward_cuda(const ForwardParams& params, void* stream) {
  cudaError_t status = cudaSuccess;
  with_tags(params.problem, aligned(params), [&](auto type, auto vector, auto interleaved) {
    using T = typename decltype(type)::type;
    constexpr bool Vector = decltype(vector)::value, Interleaved = decltype(interleaved)::value;
    status = params.problem.norm == Norm::none
                 ? launch_rotate<T, Vector, Interleaved>(params, stream)
                 : in_launches(params, [&](const ForwardParams& one) { return launch_norm<T, Vector, Interleaved>(one, stream); });
  });
  return status_sentence(status, built_archs);
}

int32_t partial_rows_cuda(const Problem& problem, int32_t heads) {
  // Of aligned rows of so many heads; others make do with as many.
  const int pairs = pairs_of_unit(size_of(problem.scalar), true, problem.interleaved);
  const bool full = problem.norm == Norm::full;
  const int64_t row = int64_t{full ? heads : 1} * units_of(problem.width, problem.pairs, pairs, problem.interleaved).all;
  const int block_rows = fits_block(row, problem.interleaved, full)
                             ? norm_policy(row, problem.interleaved, full).rows_per_block
                             : 1;
  const int64_t wanted = (problem.batch * problem.tokens + block_rows - 1) / block_rows;
  return static_cast<int32_t>(std::min<int64_t>(wanted, int64_t{backward_blocks} * multiprocessors()));
}

std::string backward_cuda(const BackwardParams& params, void* stream) {
  cudaError_t status = cudaSuccess;
  with_tags(params.problem, aligned(params), [&](auto type, auto vector, auto interleaved) {
    using T = typename decltype(type)::type;
    constexpr bool Vector = decltype(vector)::value, Interleaved = decltype(interleaved)::value;
    status = in_launches(params, [&](const BackwardParams& one) { return launch_backward<T, Vector, Interleaved>(one, stream); });
  });
  for (const BackwardTensor* tensor : {&params.q, &params.k}) {
    if (status == cudaSuccess) status = reduce_weight(params, *tensor, stream);
  }
  return status_sentence(status, built_archs);
}

}  // namespace kernelworks::rope3d
