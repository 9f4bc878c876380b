// SPDX-License-Identifier: Apache-2.0
// The toy kernel's one op: twice(x).
#include "registration.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "../kernel_src/toy.h"

#ifdef CUDA_KERNEL
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#endif

namespace {

torch::stable::Tensor twice(const torch::stable::Tensor& x) {
  STD_TORCH_CHECK(x.scalar_type() == torch::headeronly::ScalarType::Float, "twice: x must be float32");
  STD_TORCH_CHECK(x.is_contiguous(), "twice: x must be contiguous");
  auto y = torch::stable::empty_like(x);
  void* stream = nullptr;
#ifdef CUDA_KERNEL
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
#endif
  const char* wrong = toy::launch({x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel()}, stream);
  STD_TORCH_CHECK(wrong == nullptr, "twice: ", wrong);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, m) { m.def("twice(Tensor x) -> Tensor"); }

#ifdef CUDA_KERNEL
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, m) { m.impl("twice", TORCH_BOX(&twice)); }
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, m) { m.impl("twice", TORCH_BOX(&twice)); }
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
