// SPDX-License-Identifier: Apache-2.0
// The ops of this kernel as torch sees them. Their meaning is in torch-ext/rmsnorm/__init__.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

namespace kernelworks::rmsnorm {

using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor rms_norm(const Tensor& x, const MaybeTensor& weight, double eps, double weight_offset,
                bool round_before_weight);
// (y, rstd)
std::tuple<Tensor, Tensor> rms_norm_train(const Tensor& x, const MaybeTensor& weight, double eps,
                                          double weight_offset, bool round_before_weight);
// (y, residual_out)
std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const MaybeTensor& weight,
                                        double eps, double weight_offset, bool round_before_weight);
// (y, residual_out, rstd)
std::tuple<Tensor, Tensor, Tensor> add_rms_norm_train(const Tensor& x, const Tensor& residual,
                                                      const MaybeTensor& weight, double eps,
                                                      double weight_offset, bool round_before_weight);
// (grad_x, grad_weight); grad_weight is of size 0 unless wanted
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const MaybeTensor& grad_residual,
                                             const Tensor& x, const MaybeTensor& weight, const Tensor& rstd,
                                             double weight_offset, bool round_before_weight, bool weight_grad);

}  // namespace kernelworks::rmsnorm
