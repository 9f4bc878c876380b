// SPDX-License-Identifier: Apache-2.0
// CUDA backend of RMSNorm: from Params to the one kernel that fits, and its launch.
#include "rmsnorm_kernel.cuh"
#include "vendor/cuda_status.cuh"

namespace kernelworks::rmsnorm {
namespace {

constexpr int built_archs[] = {__CUDA_ARCH_LIST__};

// The widest access that every row of every tensor allows.
int access_width(const Problem& problem, const Weight& weight, std::initializer_list<const Rows*> tensors) {
  const int element = size_of(problem.scalar);
  AccessWidth access(16 / element, problem.width);
  for (const Rows* rows : tensors) {
    if (rows->data == nullptr) continue;
    access.fit_pointer(rows->data, element);
    for (int d = 0; d < rows->layout.dims; ++d) access.fit(rows->layout.stride[d]);
  }
  if (weight.data != nullptr) access.fit_pointer(weight.data, size_of(weight.scalar));
  return access.value();
}

// Calls body(type, width) with tags: three types by the widths, four at most, that divide a granule.
template <class Body>
void with_type_and_width(Scalar scalar, int access, Body&& body) {
  with_gpu_scalar(scalar, [&](auto type) {
    with_width<Granule<typename decltype(type)::type>::size>(access, [&](auto width) { body(type, width); });
  });
}

}  // namespace

std::string forward_cuda(const ForwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  const LaunchPolicy policy = launch_policy(problem.width, size_of(problem.scalar));
  const int64_t blocks = (problem.rows + policy.rows_per_block - 1) / policy.rows_per_block;
  const int access = access_width(problem, params.weight, {&params.x, &params.residual});
  with_type_and_width(problem.scalar, access, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int Width = decltype(width)::value;
    const auto kernel = params.residual.data == nullptr ? forward_kernel<T, Width, false>
                                                        : forward_kernel<T, Width, true>;
    kernel<<<static_cast<unsigned>(blocks), policy.block_size(), 0, static_cast<cudaStream_t>(stream)>>>(
        params, policy);
  });
  return status_sentence(cudaGetLastError(), built_archs);
}

int32_t partial_rows_cuda(const Problem& problem) {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const LaunchPolicy policy = launch_policy(problem.width, size_of(problem.scalar));
  return static_cast<int32_t>(backward_blocks(problem.rows, policy, multiprocessors));
}

std::string backward_cuda(const BackwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  const LaunchPolicy policy = launch_policy(problem.width, size_of(problem.scalar));
  const int access = access_width(problem, params.weight, {&params.grad, &params.grad_residual, &params.x});
  with_type_and_width(problem.scalar, access, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    backward_kernel<T, decltype(width)::value>
        <<<params.partial_rows, policy.block_size(), 0,
           static_cast<cudaStream_t>(stream)>>>(params, policy);
  });
  const std::string status = status_sentence(cudaGetLastError(), built_archs);
  if (!status.empty() || params.grad_weight == nullptr) return status;
  with_gpu_scalar(params.weight.scalar, [&](auto type) {
    using T = typename decltype(type)::type;
    reduce_partials_kernel<T><<<(problem.width + reduce_columns - 1) / reduce_columns,
                                dim3(reduce_columns, reduce_lanes), 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const float*>(params.partials), params.partial_rows, problem.width,
        static_cast<T*>(params.grad_weight));
  });
  return status_sentence(cudaGetLastError(), built_archs);
}

}  // namespace kernelworks::rmsnorm
