// SPDX-License-Identifier: Apache-2.0
// Schemas, and the one backend that this build implements.
#include "torch_binding.h"

#include <torch/csrc/stable/library.h>

#include "registration.h"

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def(
      "ada_norm(Tensor x, Tensor? scale, Tensor? scale_temb, Tensor? shift, Tensor? shift_temb, Tensor? weight,"
      " Tensor? bias, float eps, bool layer) -> Tensor");
  ops.def(
      "ada_norm_train(Tensor x, Tensor? scale, Tensor? scale_temb, Tensor? shift, Tensor? shift_temb, Tensor? weight,"
      " Tensor? bias, float eps, bool layer) -> (Tensor, Tensor, Tensor)");
  ops.def("gate_residual(Tensor residual, Tensor x, Tensor? gate, Tensor? gate_temb) -> Tensor");
  ops.def("gate_residual_train(Tensor residual, Tensor x, Tensor? gate, Tensor? gate_temb) -> Tensor");
  ops.def(
      "gate_residual_ada_norm(Tensor residual, Tensor x, Tensor? gate, Tensor? gate_temb, Tensor? scale,"
      " Tensor? scale_temb, Tensor? shift, Tensor? shift_temb, Tensor? weight, Tensor? bias, float eps, bool layer)"
      " -> (Tensor, Tensor)");
  ops.def(
      "gate_residual_ada_norm_train(Tensor residual, Tensor x, Tensor? gate, Tensor? gate_temb, Tensor? scale,"
      " Tensor? scale_temb, Tensor? shift, Tensor? shift_temb, Tensor? weight, Tensor? bias, float eps, bool layer)"
      " -> (Tensor, Tensor, Tensor, Tensor)");
  ops.def(
      "ada_norm_backward(Tensor? grad, Tensor? grad_residual, Tensor? v, Tensor? x, Tensor? gate, Tensor? gate_temb,"
      " Tensor? scale, Tensor? scale_temb, Tensor? shift, Tensor? shift_temb, Tensor? weight, Tensor? bias,"
      " Tensor? mean, Tensor? rstd, bool layer, bool modulator_grads, bool affine_grads)"
      " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#endif
  using namespace kernelworks::adaln;
  ops.impl("ada_norm", TORCH_BOX(&ada_norm));
  ops.impl("ada_norm_train", TORCH_BOX(&ada_norm_train));
  ops.impl("gate_residual", TORCH_BOX(&gate_residual));
  ops.impl("gate_residual_train", TORCH_BOX(&gate_residual));
  ops.impl("gate_residual_ada_norm", TORCH_BOX(&gate_residual_ada_norm));
  ops.impl("gate_residual_ada_norm_train", TORCH_BOX(&gate_residual_ada_norm_train));
  ops.impl("ada_norm_backward", TORCH_BOX(&ada_norm_backward));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
