// SPDX-License-Identifier: Apache-2.0
// Schemas, and the one backend that this build implements.
#include "torch_binding.h"

#include <torch/csrc/stable/library.h>

#include "registration.h"

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def(
      "rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight) -> Tensor");
  ops.def(
      "rms_norm_train(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight)"
      " -> (Tensor, Tensor)");
  ops.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset,"
      " bool round_before_weight) -> (Tensor, Tensor)");
  ops.def(
      "add_rms_norm_train(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset,"
      " bool round_before_weight) -> (Tensor, Tensor, Tensor)");
  ops.def(
      "rms_norm_backward(Tensor grad, Tensor? grad_residual, Tensor x, Tensor? weight, Tensor rstd,"
      " float weight_offset, bool round_before_weight, bool weight_grad) -> (Tensor, Tensor)");
}

#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#endif
  using namespace kernelworks::rmsnorm;
  ops.impl("rms_norm", TORCH_BOX(&rms_norm));
  ops.impl("rms_norm_train", TORCH_BOX(&rms_norm_train));
  ops.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  ops.impl("add_rms_norm_train", TORCH_BOX(&add_rms_norm_train));
  ops.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
