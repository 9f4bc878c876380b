// SPDX-License-Identifier: Apache-2.0
// Schemas, and the one backend that this build implements.
#include "torch_binding.h"

#include <torch/csrc/stable/library.h>

#include "registration.h"

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def(
      "rope3d(Tensor q, Tensor? k, Tensor coords, Tensor inv_freq, Tensor? axis, bool interleaved, bool inverse)"
      " -> (Tensor, Tensor)");
  ops.def(
      "rope3d_train(Tensor q, Tensor? k, Tensor coords, Tensor inv_freq, Tensor? axis, bool interleaved,"
      " bool inverse) -> (Tensor, Tensor)");
  ops.def(
      "rope3d_(Tensor(a!) q, Tensor(b!)? k, Tensor coords, Tensor inv_freq, Tensor? axis, bool interleaved,"
      " bool inverse) -> ()");
  ops.def(
      "apply_rotary(Tensor q, Tensor? k, Tensor cos, Tensor sin, bool interleaved, bool inverse)"
      " -> (Tensor, Tensor)");
  ops.def(
      "apply_rotary_train(Tensor q, Tensor? k, Tensor cos, Tensor sin, bool interleaved, bool inverse)"
      " -> (Tensor, Tensor)");
  ops.def(
      "apply_rotary_(Tensor(a!) q, Tensor(b!)? k, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> ()");
  ops.def(
      "rms_norm_rope3d(Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor? coords, Tensor? inv_freq,"
      " Tensor? axis, Tensor? cos, Tensor? sin, float eps, bool full, bool interleaved) -> (Tensor, Tensor)");
  ops.def(
      "rms_norm_rope3d_train(Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor? coords,"
      " Tensor? inv_freq, Tensor? axis, Tensor? cos, Tensor? sin, float eps, bool full, bool interleaved)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  ops.def(
      "rms_norm_rope3d_backward(Tensor grad_q, Tensor? grad_k, Tensor q, Tensor? k, Tensor? q_weight,"
      " Tensor? k_weight, Tensor q_rstd, Tensor? k_rstd, Tensor? coords, Tensor? inv_freq, Tensor? axis,"
      " Tensor? cos, Tensor? sin, bool full, bool interleaved, bool q_weight_grad, bool k_weight_grad)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
}

#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#endif
  using namespace kernelworks::rope3d;
  ops.impl("rope3d", TORCH_BOX(&rope3d));
  ops.impl("rope3d_train", TORCH_BOX(&rope3d));
  ops.impl("rope3d_", TORCH_BOX(&rope3d_in_place));
  ops.impl("apply_rotary", TORCH_BOX(&apply_rotary));
  ops.impl("apply_rotary_train", TORCH_BOX(&apply_rotary));
  ops.impl("apply_rotary_", TORCH_BOX(&apply_rotary_in_place));
  ops.impl("rms_norm_rope3d", TORCH_BOX(&rms_norm_rope3d));
  ops.impl("rms_norm_rope3d_train", TORCH_BOX(&rms_norm_rope3d_train));
  ops.impl("rms_norm_rope3d_backward", TORCH_BOX(&rms_norm_rope3d_backward));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
