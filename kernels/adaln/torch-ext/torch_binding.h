// SPDX-License-Identifier: Apache-2.0
// The ops of this kernel as torch sees them. Their meaning is in torch-ext/adaln/__init__.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

namespace kernelworks::adaln {

using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

// A modulator is two arguments: itself, or the table of a pair; and the pair's embedding of the timestep.
Tensor ada_norm(const Tensor& x, const MaybeTensor& scale, const MaybeTensor& scale_temb, const MaybeTensor& shift,
                const MaybeTensor& shift_temb, const MaybeTensor& weight, const MaybeTensor& bias, double eps,
                bool layer);
// (y, mean, rstd); mean is of size 0 for rms
std::tuple<Tensor, Tensor, Tensor> ada_norm_train(const Tensor& x, const MaybeTensor& scale,
                                                  const MaybeTensor& scale_temb, const MaybeTensor& shift,
                                                  const MaybeTensor& shift_temb, const MaybeTensor& weight,
                                                  const MaybeTensor& bias, double eps, bool layer);
// residual_out; registered twice, once with a gradient
Tensor gate_residual(const Tensor& residual, const Tensor& x, const MaybeTensor& gate, const MaybeTensor& gate_temb);
// (y, residual_out)
std::tuple<Tensor, Tensor> gate_residual_ada_norm(const Tensor& residual, const Tensor& x, const MaybeTensor& gate,
                                                  const MaybeTensor& gate_temb, const MaybeTensor& scale,
                                                  const MaybeTensor& scale_temb, const MaybeTensor& shift,
                                                  const MaybeTensor& shift_temb, const MaybeTensor& weight,
                                                  const MaybeTensor& bias, double eps, bool layer);
// (y, residual_out, mean, rstd)
std::tuple<Tensor, Tensor, Tensor, Tensor> gate_residual_ada_norm_train(
    const Tensor& residual, const Tensor& x, const MaybeTensor& gate, const MaybeTensor& gate_temb,
    const MaybeTensor& scale, const MaybeTensor& scale_temb, const MaybeTensor& shift, const MaybeTensor& shift_temb,
    const MaybeTensor& weight, const MaybeTensor& bias, double eps, bool layer);
// (grad_v, grad_x, grad_shift, grad_scale, grad_gate, grad_weight, grad_bias) of all three; of size 0: not wanted.
// grad is y's, grad_residual residual_out's; at least one of them is there. v, mean and rstd come with grad, and x,
// what the gate multiplied, where the gate's gradient is wanted. modulator_grads asks for those of the modulators
// that are there, affine_grads for those of weight and bias; shift is of use for its shape and dtype only.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> ada_norm_backward(
    const MaybeTensor& grad, const MaybeTensor& grad_residual, const MaybeTensor& v, const MaybeTensor& x,
    const MaybeTensor& gate, const MaybeTensor& gate_temb, const MaybeTensor& scale, const MaybeTensor& scale_temb,
    const MaybeTensor& shift, const MaybeTensor& shift_temb, const MaybeTensor& weight, const MaybeTensor& bias,
    const MaybeTensor& mean, const MaybeTensor& rstd, bool layer, bool modulator_grads, bool affine_grads);

}  // namespace kernelworks::adaln
