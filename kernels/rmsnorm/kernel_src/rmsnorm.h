// SPDX-License-Identifier: Apache-2.0
// RMSNorm without torch: what the two ops need to know, and the entry points of each backend.
//
//   n = x * rsqrt(mean(x * x) + eps)                  y = n * (weight + weight_offset)
//
// Rounding points. Everything is computed in fp32 (fp64 for fp64), and y is rounded to the element type. With
// round_before_weight, n is rounded to the element type first. With a residual, x + residual is rounded to the
// element type before anything else, and that rounded sum is what is normalised and returned.
#pragma once

#include <cstdint>
#include <string>

#include "vendor/dispatch.h"
#include "vendor/row_layout.h"

namespace kernelworks::rmsnorm {

// Element type, row count and width are shared by every tensor; y, residual_out and grad_x are contiguous.
struct Problem {
  Scalar scalar = Scalar::f32;
  int64_t rows = 0;
  int32_t width = 0;
  double weight_offset = 0;
  bool round_before_weight = false;
};

struct Weight {
  const void* data = nullptr;  // null: no weight; else contiguous, `width` long
  Scalar scalar = Scalar::f32;
};

struct ForwardParams {
  Problem problem;
  double eps = 0;
  Rows x;
  Rows residual;  // null: plain RMSNorm
  Weight weight;
  void* y = nullptr;
  void* residual_out = nullptr;  // with a residual only
  void* rstd = nullptr;          // null: no gradient will be wanted; else one fp32 (fp64) per row
};

// grad_x = rstd * (g - n * mean(g * n)) + grad_residual   with g = grad * (weight + weight_offset)
// grad_weight = sum over rows of grad * n, accumulated in fp32 (fp64) in an order that `rows`, `width` and the
// GPU's number of multiprocessors alone decide.
struct BackwardParams {
  Problem problem;
  Rows grad;
  Rows grad_residual;  // null: nothing to add
  Rows x;              // x + residual where there was one
  Weight weight;
  const void* rstd = nullptr;
  void* grad_x = nullptr;
  void* grad_weight = nullptr;  // null: not wanted; else weight.scalar, `width` long
  void* partials = nullptr;     // scratch for grad_weight: fp32 (fp64), partial_rows * width
  int32_t partial_rows = 0;
};

// CUDA: launch on `stream` (a cudaStream_t) of the current device. The result is empty, or says what failed.
std::string forward_cuda(const ForwardParams& params, void* stream);
std::string backward_cuda(const BackwardParams& params, void* stream);
int32_t partial_rows_cuda(const Problem& problem);

// CPU: rows [begin, end). Backward with a weight gradient adds those rows up in the partial row `partial`.
void forward_cpu(const ForwardParams& params, int64_t begin, int64_t end);
void backward_cpu(const BackwardParams& params, int64_t begin, int64_t end, int32_t partial);
// Adds up the partials of columns [begin, end) into grad_weight.
void reduce_partials_cpu(const BackwardParams& params, int64_t begin, int64_t end);
int32_t partial_rows_cpu(const Problem& problem);

}  // namespace kernelworks::rmsnorm
