// SPDX-License-Identifier: Apache-2.0
// The one backend that a build is for, seen from an op: the GPU's current stream, or the CPU's threads.
#pragma once

#include "tensor_contract.h"

#if defined(CUDA_KERNEL)
#include <torch/csrc/stable/accelerator.h>

extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

namespace kernelworks {

#if defined(CUDA_KERNEL)
constexpr bool cuda_build = true;

// Calls launch(stream) with the device of `lead` current; what it returns is empty, or says what failed.
template <class Body>
void on_stream_of(const char* op, const Tensor& lead, Body&& launch) {
  const torch::stable::accelerator::DeviceGuard guard(lead.get_device_index());
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(lead.get_device_index(), &stream));
  const std::string failure = launch(stream);
  if (!failure.empty()) throw std::runtime_error(std::string(op) + ": " + failure);
}
#else
constexpr bool cuda_build = false;

// Calls body(begin, end) on several threads for parts of [0, count), each some 32,768 elements at least.
template <class Body>
void in_parallel(int64_t count, int64_t elements_each, const Body& body) {
  const int64_t grain = elements_each > 32768 ? 1 : 32768 / (elements_each + 1) + 1;
  torch::stable::parallel_for(0, count, grain, body);
}

// Splits `rows` rows into `parts`, whatever the number of threads is: body(begin, end, part).
template <class Body>
void in_parts(int64_t rows, int64_t parts, int64_t width, const Body& body) {
  in_parallel(parts, rows / parts * width, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      body(rows * part / parts, rows * (part + 1) / parts, static_cast<int32_t>(part));
    }
  });
}
#endif

}  // namespace kernelworks
