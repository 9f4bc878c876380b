// SPDX-License-Identifier: Apache-2.0
// CUDA backend of RMSNorm: from Params to the one kernel that fits, and its launch.
#include <algorithm>

#include "rmsnorm_backward.cuh"
#include "rmsnorm_forward.cuh"
#include "vendor/cuda_status.cuh"
#include "vendor/partials.cuh"

namespace kernelworks::rmsnorm {
namespace {

constexpr int built_archs[] = {__CUDA_ARCH_LIST__};

// The widest access that every row of every tensor allows.
int access_width(const Problem& problem, const Weight& weight, std::initializer_list<const Rows*> tensors) {
  AccessWidth access(problem.scalar, problem.width);
  for (const Rows* rows : tensors) access.fit_rows(*rows, problem.scalar);
  access.fit_pointer(weight.data, weight.scalar);
  return access.value();
}

// Whether the weight is one that kernels for aligned rows read: of the rows' type, or none.
bool plain_weight(const Weight& weight, const Problem& problem) {
  return weight.data == nullptr || weight.scalar == problem.scalar;
}

template <class T, int Held, bool HasResidual>
cudaError_t launch_held_forward(const ForwardParams& params, RowPolicy policy, void* stream) {
  return launch(forward_kernel<T, Held, HasResidual>, row_launch(params.problem.rows, policy, 0, stream), params);
}

template <class T, int Held>
cudaError_t launch_forward(const ForwardParams& params, RowPolicy policy, void* stream) {
  return params.residual.data == nullptr ? launch_held_forward<T, Held, false>(params, policy, stream)
                                         : launch_held_forward<T, Held, true>(params, policy, stream);
}

template <class T, int Width, bool AnyType>
cudaError_t launch_slotted_forward(const ForwardParams& params, RowPolicy policy, void* stream) {
  const int block = policy.block_size();
  const int threads = policy.threads_per_row;
  const int64_t each = (granules_of(params.problem.width, sizeof(T)) + threads - 1) / threads;
  const int slots = static_cast<int>(std::min<int64_t>(each, shared_memory_limit() / (granule_bytes * block)));
  const Launch where = row_launch(params.problem.rows, policy, slots * granule_bytes * block, stream);
  const auto kernel = params.residual.data == nullptr ? slotted_forward_kernel<T, Width, false, AnyType>
                                                      : slotted_forward_kernel<T, Width, true, AnyType>;
  return launch(kernel, where, params, slots);
}

template <class T, int Width, int Held, bool AnyType>
cudaError_t launch_backward(const BackwardParams& params, RowPolicy policy, void* stream) {
  const int block = policy.block_size();
  const int room = shared_memory_limit();
  Ring ring{most_stages, params.grad_residual.data == nullptr ? 2 : 3};
  if (Ring{1, ring.streams}.bytes(Held, block) > room) ring.streams = 2;
  while (ring.stages > 1 && ring.bytes(Held, block) > room) --ring.stages;
  Launch where = row_launch(params.problem.rows, policy, ring.bytes(Held, block), stream);
  where.blocks = params.partial_rows;
  return launch(backward_kernel<T, Width, Held, AnyType>, where, params, ring);
}

}  // namespace

std::string forward_cuda(const ForwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  const RowPolicy policy = forward_policy(problem.width, size_of(problem.scalar));
  const int access = access_width(problem, params.weight, {&params.x, &params.residual});
  cudaError_t status = cudaSuccess;
  with_type_and_width(problem.scalar, access, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int Width = decltype(width)::value;
    if constexpr (Width == Granule<T>::size) {
      if (plain_weight(params.weight, problem)) {
        if (!policy.wide) {
          status = launch_forward<T, held_granules>(params, policy, stream);
        } else if (params.residual.data != nullptr &&
                   granules_of(problem.width, sizeof(T)) <= 4 * policy.block_size()) {
          // Adding to what lies in shared memory takes longer than to what lies in registers.
          status = launch_held_forward<T, 4, true>(params, policy, stream);
        } else {
          status = launch_slotted_forward<T, Width, false>(params, policy, stream);
        }
        return;
      }
    }
    status = launch_slotted_forward<T, Width, true>(params, policy, stream);
  });
  return status_sentence(status, built_archs);
}

int32_t partial_rows_cuda(const Problem& problem) {
  return static_cast<int32_t>(backward_blocks(problem.rows, backward_policy(problem.width, size_of(problem.scalar)),
                                              device_attribute(cudaDevAttrMultiProcessorCount)));
}

std::string backward_cuda(const BackwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  const RowPolicy policy = backward_policy(problem.width, size_of(problem.scalar));
  const int access = access_width(problem, params.weight, {&params.grad, &params.grad_residual, &params.x});
  cudaError_t status = cudaSuccess;
  with_type_and_width(problem.scalar, access, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int Width = decltype(width)::value;
    if constexpr (Width == Granule<T>::size) {
      if (plain_weight(params.weight, problem)) {
        status = policy.wide ? launch_backward<T, Width, 3, false>(params, policy, stream)
                             : launch_backward<T, Width, 2, false>(params, policy, stream);
        return;
      }
    }
    status = launch_backward<T, Width, 3, true>(params, policy, stream);
  });
  if (status != cudaSuccess || params.grad_weight == nullptr) return status_sentence(status, built_archs);
  status = launch_reduce_partials(static_cast<const float*>(params.partials), params.partial_rows, problem.width,
                                  params.grad_weight, params.weight.scalar, stream);
  return status_sentence(status, built_archs);
}

}  // namespace kernelworks::rmsnorm
