// SPDX-License-Identifier: Apache-2.0
// Schemas, and the one backend that this build implements.
#include "torch_binding.h"

#include <torch/csrc/stable/library.h>

#include "registration.h"

// An op and its _train twin are one function: the gradient needs nothing but the inputs.
STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("geglu(Tensor x, bool tanh, bool gate_first) -> Tensor");
  ops.def("geglu_train(Tensor x, bool tanh, bool gate_first) -> Tensor");
  ops.def("geglu_backward(Tensor grad, Tensor x, bool tanh, bool gate_first) -> Tensor");
  ops.def("geglu_split(Tensor value, Tensor gate, bool tanh) -> Tensor");
  ops.def("geglu_split_train(Tensor value, Tensor gate, bool tanh) -> Tensor");
  ops.def("geglu_split_backward(Tensor grad, Tensor value, Tensor gate, bool tanh) -> (Tensor, Tensor)");
}

#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) {
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
#endif
  using namespace kernelworks::geglu;
  ops.impl("geglu", TORCH_BOX(&geglu));
  ops.impl("geglu_train", TORCH_BOX(&geglu));
  ops.impl("geglu_backward", TORCH_BOX(&geglu_backward));
  ops.impl("geglu_split", TORCH_BOX(&geglu_split));
  ops.impl("geglu_split_train", TORCH_BOX(&geglu_split));
  ops.impl("geglu_split_backward", TORCH_BOX(&geglu_split_backward));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
