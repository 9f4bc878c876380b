// SPDX-License-Identifier: Apache-2.0
// What a launch returned, as a sentence for the person who called the op; empty when all is well.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace kernelworks {

// `built` lists the architectures in this file's machine code as nvcc names them: {750, 900}.
template <int N>
std::string status_sentence(cudaError_t status, const int (&built)[N]) {
  if (status == cudaSuccess) return {};
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction &&
      status != cudaErrorUnsupportedPtxVersion) {
    return std::string("the launch failed: ") + cudaGetErrorString(status);
  }
  const auto dotted = [](int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); };
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  std::string archs;
  for (const int arch : built) {
    archs += (archs.empty() ? "" : ", ") + dotted(arch / 100, arch / 10 % 10);
  }
  return "cuda:" + std::to_string(device) + " has compute capability " + dotted(major, minor) +
         ", and this build holds code for " + archs + " only; build it with --arch " + dotted(major, minor);
}

}  // namespace kernelworks
