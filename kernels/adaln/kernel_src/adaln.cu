// SPDX-License-Identifier: Apache-2.0
// CUDA backend of modulated normalisation: from Params to the one kernel that fits, and its launch.
#include <algorithm>
#include <type_traits>

#include "adaln_backward.cuh"
#include "adaln_forward.cuh"
#include "vendor/cuda_status.cuh"

namespace kernelworks::adaln {
namespace {

constexpr int built_archs[] = {__CUDA_ARCH_LIST__};

void fit_modulator(AccessWidth& access, const Modulator& modulator) {
  for (int part = 0; part < Modulator::max_parts; ++part) {
    access.fit_rows(modulator.part[part], modulator.scalar[part]);
  }
}

int access_width(const ForwardParams& params) {
  AccessWidth access(params.problem.scalar, params.problem.width);
  for (const Rows* rows : {&params.x, &params.residual}) access.fit_rows(*rows, params.problem.scalar);
  for (const Modulator* modulator : {&params.gate, &params.scale, &params.shift}) fit_modulator(access, *modulator);
  for (const Columns* columns : {&params.weight, &params.bias}) access.fit_pointer(columns->data, columns->scalar);
  return access.value();
}

int access_width(const BackwardParams& params) {
  AccessWidth access(params.problem.scalar, params.problem.width);
  for (const Rows* rows : {&params.grad, &params.grad_residual, &params.v, &params.x}) {
    access.fit_rows(*rows, params.problem.scalar);
  }
  for (const Modulator* modulator : {&params.gate, &params.scale}) fit_modulator(access, *modulator);
  for (const Columns* columns : {&params.weight, &params.bias}) access.fit_pointer(columns->data, columns->scalar);
  return access.value();
}

// Calls body(type, width) with tags: accesses of 16 bytes, or of one element where addresses ask for less.
template <class Body>
void with_type_and_access(Scalar scalar, int access, Body&& body) {
  with_gpu_scalar(scalar, [&](auto type) {
    constexpr int widest = Granule<typename decltype(type)::type>::size;
    if (access == widest) {
      body(type, WidthTag<widest>{});
    } else {
      body(type, WidthTag<1>{});
    }
  });
}

int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

template <class Body>
void with_flag(bool flag, Body&& body) {
  if (flag) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

// Whether a modulator is one that kernels fetch early: of the rows' type and one part, or not there.
bool plain(const Modulator& modulator, Scalar scalar) {
  return modulator.part[1].data == nullptr && (modulator.part[0].data == nullptr || modulator.scalar[0] == scalar);
}

bool all_plain(const ForwardParams& params) {
  const Scalar scalar = params.problem.scalar;
  return plain(params.gate, scalar) && plain(params.scale, scalar) && plain(params.shift, scalar) &&
         params.weight.data == nullptr && params.bias.data == nullptr;
}

RowPolicy policy_of(const ForwardParams& params) {
  return forward_policy(params.problem.width, size_of(params.problem.scalar), params.residual.data != nullptr);
}

RowPolicy policy_of(const BackwardParams& params) {
  return backward_policy(params.problem.width, size_of(params.problem.scalar));
}

// Whether the kernel that keeps rows, or its sums over them, in registers can take these.
template <class Params>
bool in_registers(const Params& params, int access) {
  return !policy_of(params).wide && access * size_of(params.problem.scalar) == granule_bytes;
}

template <class T, bool HasResidual>
cudaError_t launch_forward(const ForwardParams& params, void* stream) {
  constexpr int held = HasResidual ? held_with_residual : held_alone;
  const Launch where = row_launch(params.problem.rows, policy_of(params), 0, stream);
  cudaError_t status = cudaSuccess;
  with_flag(params.problem.norm == Norm::layer, [&](auto layer) {
    constexpr bool Layer = decltype(layer)::value;
    const auto kernel = params.folded != nullptr ? forward_kernel<T, held, Layer, HasResidual, Form::folded>
                        : all_plain(params)      ? forward_kernel<T, held, Layer, HasResidual, Form::plain>
                                                 : forward_kernel<T, held, Layer, HasResidual, Form::raw>;
    status = launch(kernel, where, params);
  });
  return status;
}

cudaError_t launch_fold(const ForwardParams& params, void* stream) {
  const int column_blocks = (params.problem.width + fold_block - 1) / fold_block;
  return launch(fold_kernel, Launch{params.problem.groups() * column_blocks, fold_block, 0, stream}, params,
                column_blocks);
}

template <class T, int Width, bool HasResidual>
cudaError_t launch_wide_forward(const ForwardParams& params, void* stream) {
  const RowPolicy policy = policy_of(params);
  const int block = policy.block_size(), threads = policy.threads_per_row;
  const int64_t each = (granules_of(params.problem.width, sizeof(T)) + threads - 1) / threads;
  const int slots = static_cast<int>(std::min<int64_t>(each, shared_memory_limit() / (granule_bytes * block)));
  const Launch where = row_launch(params.problem.rows, policy, slots * granule_bytes * block, stream);
  return launch(wide_forward_kernel<T, Width, HasResidual>, where, params, slots);
}

template <class T>
cudaError_t launch_backward(const BackwardParams& params, RowPolicy policy, int64_t blocks, void* stream) {
  const bool is_gated = params.gate.part[0].data != nullptr;
  const int block = policy.block_size();
  // Behind the ring, where a block has several rows: room for one row of sums.
  const int row_of_sums = policy.rows_per_block == 1 ? 0 : policy.threads_per_row * held_in_backward *
                                                               Granule<T>::size * static_cast<int>(sizeof(float));
  const int room = shared_memory_limit() - row_of_sums;
  Ring ring{most_stages, streams_of(is_gated, params.grad_residual.data != nullptr)};
  while (ring.stages > 1 && ring.bytes(held_in_backward, block) > room) --ring.stages;
  const Launch where{blocks, dim3(policy.threads_per_row, policy.rows_per_block),
                     ring.bytes(held_in_backward, block) + row_of_sums, stream};
  cudaError_t status = cudaSuccess;
  with_flag(params.problem.norm == Norm::layer, [&](auto layer) {
    with_flag(is_gated, [&](auto gated) {
      status = launch(backward_kernel<T, decltype(layer)::value, decltype(gated)::value>, where, params, ring);
    });
  });
  return status;
}

cudaError_t reduce_sums(const BackwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  if (params.parts > 1) {
    const int column_blocks = (problem.width + reduce_columns - 1) / reduce_columns;
    const Launch where{problem.groups() * column_blocks, dim3(reduce_columns, reduce_lanes), 0, stream};
    const cudaError_t status = launch(params.sums_each() == 2 ? finish_kernel<2> : finish_kernel<3>, where, params,
                                      column_blocks);
    if (status != cudaSuccess) return status;
  }
  const float* terms = static_cast<const float*>(params.affine);
  for (const Sum* sum : {&params.grad_weight, &params.grad_bias}) {
    if (sum->data != nullptr) {
      const cudaError_t status = launch_reduce_partials(terms, static_cast<int32_t>(problem.groups()), problem.width,
                                                        sum->data, sum->scalar, stream);
      if (status != cudaSuccess) return status;
    }
    terms += problem.groups() * problem.width;
  }
  return cudaSuccess;
}

}  // namespace

int64_t folded_rows_cuda(const ForwardParams& params) {
  if (params.problem.group_rows < least_rows_to_fold) return 0;
  const bool as_they_are = all_plain(params) && in_registers(params, access_width(params));
  return as_they_are ? 0 : 3 * params.problem.groups();
}

std::string forward_cuda(const ForwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  const int access = access_width(params);
  const bool held = in_registers(params, access);
  cudaError_t status = params.folded != nullptr ? launch_fold(params, stream) : cudaSuccess;
  if (status != cudaSuccess) return status_sentence(status, built_archs);
  with_type_and_access(problem.scalar, access, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int Width = decltype(width)::value;
    with_flag(params.residual.data != nullptr, [&](auto residual) {
      constexpr bool HasResidual = decltype(residual)::value;
      if constexpr (Width == Granule<T>::size) {
        if (held) {
          status = launch_forward<T, HasResidual>(params, stream);
          return;
        }
      }
      status = launch_wide_forward<T, Width, HasResidual>(params, stream);
    });
  });
  return status_sentence(status, built_archs);
}

int32_t parts_cuda(const BackwardParams& params) {
  const Problem& problem = params.problem;
  const RowPolicy policy = policy_of(params);
  const bool gated = params.gate.part[0].data != nullptr;
  return static_cast<int32_t>(parts_of_group(problem.groups(), problem.group_rows, policy, gated, multiprocessors()));
}

bool needs_partials_cuda(const BackwardParams& params) {
  return params.parts > 1 || !in_registers(params, access_width(params));
}

std::string backward_cuda(const BackwardParams& params, void* stream) {
  const Problem& problem = params.problem;
  const RowPolicy policy = policy_of(params);
  const int64_t blocks = problem.groups() * params.parts;
  const int access = access_width(params);
  const bool held = in_registers(params, access);
  cudaError_t status = cudaSuccess;
  with_type_and_access(problem.scalar, access, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int Width = decltype(width)::value;
    if constexpr (Width == Granule<T>::size) {
      if (held) {
        status = launch_backward<T>(params, policy, blocks, stream);
        return;
      }
    }
    status = launch(wide_backward_kernel<T, Width>, Launch{blocks, dim3(policy.threads_per_row), 0, stream}, params);
  });
  if (status == cudaSuccess && params.wants_sums()) status = reduce_sums(params, stream);
  return status_sentence(status, built_archs);
}

}  // namespace kernelworks::adaln
