// SPDX-License-Identifier: Apache-2.0
// CUDA backend of RMSNorm: from Params to the one kernel that fits, and its launch.
#include <algorithm>

#include "rmsnorm_backward.cuh"
#include "rmsnorm_forward.cuh"
#include "vendor/cuda_status.cuh"

namespace kernelworks::rmsnorm {
namespace {

constexpr int built_archs[] = {__CUDA_ARCH_LIST__};

// The widest access that every row of every tensor allows.
int access_width(const Problem& problem, const Weight& weight, std::initializer_list<const Rows*> tensors) {
  const int element = size_of(problem.scalar);
  AccessWidth access(granule_bytes / element, problem.width);
  for (const Rows* rows : tensors) {
    if (rows->data == nullptr) continue;
    access.fit_pointer(rows->data, element);
    for (int d = 0; d < rows->layout.dims; ++d) access.fit(rows->layout.stride[d]);
  }
  if (weight.data != nullptr) access.fit_pointer(weight.data, size_of(weight.scalar));
  return access.value();
}

// Calls body(type, width) with tags: three types, each with accesses of 16 bytes, of 4, or of one element.
template <class Body>
void with_type_and_width(Scalar scalar, int access, Body&& body) {
  with_gpu_scalar(scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int widest = Granule<T>::size, word = widest / 4;
    if (access == widest) {
      body(type, WidthTag<widest>{});
    } else if (access >= word) {
      body(type, WidthTag<word>{});
    } else {
      body(type, WidthTag<1>{});
    }
  });
}

// Whether the weight is one that kernels for aligned rows read: of the rows' type, or none.
bool plain_weight(const Weight& weight, const Problem& problem) {
  return weight.data == nullptr || weight.scalar == problem.scalar;
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

int64_t blocks_of(const Problem& problem, RowPolicy policy) {
  return (problem.rows + policy.rows_per_block - 1) / policy.rows_per_block;
}

// Dynamic shared memory that a block can have beside the few hundred bytes that the kernels declare.
int shared_memory_limit() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024; }

template <class T, int Held, bool HasResidual>
cudaError_t launch_held_forward(const ForwardParams& params, RowPolicy policy, void* stream) {
  const Launch where{blocks_of(params.problem, policy), policy.block_size(), 0, stream};
  return launch(forward_kernel<T, Held, HasResidual>, where, params, policy);
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
  const Launch where{blocks_of(params.problem, policy), block, slots * granule_bytes * block, stream};
  const auto kernel = params.residual.data == nullptr ? slotted_forward_kernel<T, Width, false, AnyType>
                                                      : slotted_forward_kernel<T, Width, true, AnyType>;
  return launch(kernel, where, params, policy, slots);
}

template <class T, int Width, int Held, bool AnyType>
cudaError_t launch_backward(const BackwardParams& params, RowPolicy policy, void* stream) {
  const int block = policy.block_size();
  const int room = shared_memory_limit();
  Ring ring{most_stages, params.grad_residual.data == nullptr ? 2 : 3};
  if (ring_bytes({1, ring.streams}, Held, block) > room) ring.streams = 2;
  while (ring.stages > 1 && ring_bytes(ring, Held, block) > room) --ring.stages;
  const Launch where{params.partial_rows, block, ring_bytes(ring, Held, block), stream};
  return launch(backward_kernel<T, Width, Held, AnyType>, where, params, policy, ring);
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
        switch (policy.shape) {
          case Shape::two: status = launch_forward<T, 2>(params, policy, stream); break;
          case Shape::three: status = launch_forward<T, 3>(params, policy, stream); break;
          case Shape::wide:
            // Adding to what lies in shared memory takes longer than to what lies in registers.
            status = params.residual.data != nullptr && granules_of(problem.width, sizeof(T)) <= 4 * policy.block_size()
                         ? launch_held_forward<T, 4, true>(params, policy, stream)
                         : launch_slotted_forward<T, Width, false>(params, policy, stream);
            break;
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
        status = policy.shape == Shape::two ? launch_backward<T, Width, 2, false>(params, policy, stream)
                                            : launch_backward<T, Width, 3, false>(params, policy, stream);
        return;
      }
    }
    status = launch_backward<T, Width, 3, true>(params, policy, stream);
  });
  if (status != cudaSuccess || params.grad_weight == nullptr) return status_sentence(status, built_archs);
  with_gpu_scalar(params.weight.scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    const Launch where{(problem.width + reduce_columns - 1) / reduce_columns, dim3(reduce_columns, reduce_lanes), 0,
                       stream};
    status = launch(reduce_partials_kernel<T>, where, static_cast<const float*>(params.partials), params.partial_rows,
                    problem.width, static_cast<T*>(params.grad_weight));
  });
  return status_sentence(status, built_archs);
}

}  // namespace kernelworks::rmsnorm
