// SPDX-License-Identifier: Apache-2.0
// CUDA backend of gated GELU: from Params to the one kernel that fits, and its launches.
#include <type_traits>

#include "geglu_kernel.cuh"
#include "vendor/cuda_status.cuh"

namespace kernelworks::geglu {
namespace {

constexpr int built_archs[] = {__CUDA_ARCH_LIST__};

// Launches the kernel, whose accesses are of `width` elements, for all rows: at once unless they are more than a
// launch can count.
template <class Params>
cudaError_t launch_all(void (*kernel)(Params, Grid), const Params& params, int width, void* stream) {
  const Problem& problem = params.problem;
  const int size = granule_bytes / size_of(problem.scalar);
  const int64_t each_row = parts_of_row(problem.width, size, width), each_block = parts_of_block(size, width);
  cudaError_t status = cudaSuccess;
  for (int64_t row = 0; row < problem.rows && status == cudaSuccess;) {
    const int64_t rows = rows_of_launch(problem.rows, row, each_row), count = rows * each_row;
    const Grid grid{row, static_cast<uint32_t>(count), static_cast<uint32_t>(each_row),
                    Divisor(static_cast<uint32_t>(each_row))};
    status = launch(kernel, {(count + each_block - 1) / each_block, dim3(block_size), 0, stream}, params, grid);
    row += rows;
  }
  return status;
}

// Calls body(type, width, tanh) with tags: accesses of 16 bytes, of 8, or of one element.
template <class Body>
void with_tags(const Problem& problem, int access, const Body& body) {
  with_gpu_scalar(problem.scalar, [&](auto type) {
    constexpr int whole = Granule<typename decltype(type)::type>::size;
    const auto with_width = [&](auto width) {
      if (problem.tanh) {
        body(type, width, std::true_type{});
      } else {
        body(type, width, std::false_type{});
      }
    };
    if (access == whole) {
      with_width(WidthTag<whole>{});
    } else if (access == whole / 2) {
      with_width(WidthTag<whole / 2>{});
    } else {
      with_width(WidthTag<1>{});
    }
  });
}

}  // namespace

std::string forward_cuda(const ForwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  AccessWidth access(problem.scalar, problem.width);
  access.fit_rows(params.value, problem.scalar);
  access.fit_rows(params.gate, problem.scalar);
  cudaError_t status = cudaSuccess;
  with_tags(problem, access.value(), [&](auto type, auto width, auto tanh) {
    using T = typename decltype(type)::type;
    constexpr int Width = decltype(width)::value;
    status = launch_all(forward_kernel<T, Width, decltype(tanh)::value>, params, Width, stream);
  });
  return status_sentence(status, built_archs);
}

std::string backward_cuda(const BackwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  AccessWidth access(problem.scalar, problem.width);
  for (const Rows* rows : {&params.grad, &params.value, &params.gate}) access.fit_rows(*rows, problem.scalar);
  // Rows of the results lie `width` apart, or twice that, so the width that fits the rows fits these as well.
  access.fit_pointer(params.grad_value, problem.scalar);
  access.fit_pointer(params.grad_gate, problem.scalar);
  cudaError_t status = cudaSuccess;
  with_tags(problem, access.value(), [&](auto type, auto width, auto tanh) {
    using T = typename decltype(type)::type;
    constexpr int Width = decltype(width)::value;
    status = launch_all(backward_kernel<T, Width, decltype(tanh)::value>, params, Width, stream);
  });
  return status_sentence(status, built_archs);
}

}  // namespace kernelworks::geglu
