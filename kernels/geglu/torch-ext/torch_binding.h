// SPDX-License-Identifier: Apache-2.0
// The ops of this kernel as torch sees them. Their meaning is in torch-ext/geglu/__init__.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <tuple>

namespace kernelworks::geglu {

using torch::stable::Tensor;

// Both halves in one tensor of (..., 2D); y is (..., D).
Tensor geglu(const Tensor& x, bool tanh, bool gate_first);
// The gradient of x, packed as x is.
Tensor geglu_backward(const Tensor& grad, const Tensor& x, bool tanh, bool gate_first);

Tensor geglu_split(const Tensor& value, const Tensor& gate, bool tanh);
// (grad_value, grad_gate)
std::tuple<Tensor, Tensor> geglu_split_backward(const Tensor& grad, const Tensor& value, const Tensor& gate,
                                                bool tanh);

}  // namespace kernelworks::geglu
