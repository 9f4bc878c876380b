// SPDX-License-Identifier: Apache-2.0
// The toy kernel on the GPU.
#include <cuda_runtime.h>

#include "factor.h"
#include "toy.h"

namespace toy {
namespace {

__global__ void multiply(Params params) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < params.count) params.y[i] = params.x[i] * factor;
}

}  // namespace

const char* launch(const Params& params, void* stream) {
  if (params.count == 0) return nullptr;
  const unsigned blocks = static_cast<unsigned>((params.count + 255) / 256);
  multiply<<<blocks, 256, 0, static_cast<cudaStream_t>(stream)>>>(params);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace toy
