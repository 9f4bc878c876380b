// SPDX-License-Identifier: Apache-2.0
// Gated GELU without torch: what the ops need to know, and the entry points of each backend.
//
//   y = value * gelu(gate)        gelu(x) = x * cdf(x)
//
//   erf    cdf(x) = erfc(-x / sqrt(2)) / 2
//   tanh   cdf(x) = 1 / (1 + exp(-2 u)),  u = sqrt(2 / pi) * (x + 0.044715 * x**3)
//
// the second being (1 + tanh(u)) / 2 without its cancellation (Hendrycks and Gimpel, 2016).
//
// Rounding points. Everything is computed in fp32 or better (fp64 for fp64), and each result is rounded once, to
// the element type. A result depends on its own value and gate alone.
#pragma once

#include <cstdint>
#include <string>

#include "vendor/dispatch.h"
#include "vendor/row_layout.h"

namespace kernelworks::geglu {

// Every tensor is `rows` rows of `width` elements of this type: the halves of a packed x are two of them.
struct Problem {
  Scalar scalar = Scalar::f32;
  int64_t rows = 0;
  int32_t width = 0;
  bool tanh = false;
};

struct ForwardParams {
  Problem problem;
  Rows value;
  Rows gate;
  void* y = nullptr;  // contiguous
};

// grad_value = grad * gelu(gate)
// grad_gate = grad * value * (cdf(gate) + gate * cdf'(gate))
struct BackwardParams {
  Problem problem;
  Rows grad;
  Rows value;
  Rows gate;
  void* grad_value = nullptr;
  void* grad_gate = nullptr;
  int64_t grad_stride = 0;  // elements between rows of both: width, or twice that where they are halves of one
};

// CUDA: launch on `stream` (a cudaStream_t) of the current device. The result is empty, or says what failed.
std::string forward_cuda(const ForwardParams& params, void* stream);
std::string backward_cuda(const BackwardParams& params, void* stream);

// CPU: rows [begin, end), of each the columns [first, last).
void forward_cpu(const ForwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last);
void backward_cpu(const BackwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last);

}  // namespace kernelworks::geglu
