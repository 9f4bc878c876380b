// SPDX-License-Identifier: Apache-2.0
// The ops of this kernel as torch sees them. Their meaning is in torch-ext/rope3d/__init__.py.
//
// q and k are (B, T, H, D), of any strides; without a k, what is returned for it is of size 0. `inverse` turns back:
// the gradient of a rotation.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

namespace kernelworks::rope3d {

using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;
using TwoTensors = std::tuple<Tensor, Tensor>;
using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// coords: (T, A) or (B, T, A); inv_freq and axis: (pairs,), or (H, pairs) where each head has its own.
TwoTensors rope3d(const Tensor& q, const MaybeTensor& k, const Tensor& coords, const Tensor& inv_freq,
                  const MaybeTensor& axis, bool interleaved, bool inverse);
void rope3d_in_place(const Tensor& q, const MaybeTensor& k, const Tensor& coords, const Tensor& inv_freq,
                     const MaybeTensor& axis, bool interleaved, bool inverse);

// cos and sin: (T, pairs) or (B, T, pairs), of any strides.
TwoTensors apply_rotary(const Tensor& q, const MaybeTensor& k, const Tensor& cos, const Tensor& sin,
                        bool interleaved, bool inverse);
void apply_rotary_in_place(const Tensor& q, const MaybeTensor& k, const Tensor& cos, const Tensor& sin,
                           bool interleaved, bool inverse);

// Either coordinates or tables, not both; `full`: over all heads of a token, not each.
TwoTensors rms_norm_rope3d(const Tensor& q, const MaybeTensor& k, const MaybeTensor& q_weight,
                           const MaybeTensor& k_weight, const MaybeTensor& coords, const MaybeTensor& inv_freq,
                           const MaybeTensor& axis, const MaybeTensor& cos, const MaybeTensor& sin, double eps,
                           bool full, bool interleaved);
// (q, k, q_rstd, k_rstd)
FourTensors rms_norm_rope3d_train(const Tensor& q, const MaybeTensor& k, const MaybeTensor& q_weight,
                                  const MaybeTensor& k_weight, const MaybeTensor& coords,
                                  const MaybeTensor& inv_freq, const MaybeTensor& axis, const MaybeTensor& cos,
                                  const MaybeTensor& sin, double eps, bool full, bool interleaved);
// (grad_q, grad_k, grad_q_weight, grad_k_weight); of size 0 what there is not, or is not wanted
FourTensors rms_norm_rope3d_backward(const Tensor& grad_q, const MaybeTensor& grad_k, const Tensor& q,
                                     const MaybeTensor& k, const MaybeTensor& q_weight, const MaybeTensor& k_weight,
                                     const Tensor& q_rstd, const MaybeTensor& k_rstd, const MaybeTensor& coords,
                                     const MaybeTensor& inv_freq, const MaybeTensor& axis, const MaybeTensor& cos,
                                     const MaybeTensor& sin, bool full, bool interleaved, bool q_weight_grad,
                                     bool k_weight_grad);

}  // namespace kernelworks::rope3d
