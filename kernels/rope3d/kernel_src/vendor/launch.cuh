// SPDX-License-Identifier: Apache-2.0
// Kernels that may start while the kernel before them in the stream still runs (programmatic dependent launch,
// compute capability 9.0 and later), so that one's launch is hidden behind the other's last blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "row_policy.h"

namespace kernelworks {

// Nothing that an earlier kernel may have written is read before this, weights included, and nothing is written.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The next kernel in the stream may take the places of blocks that end; it waits for this whole grid all the same.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Whether the machine code that this device runs has the wait above. A build for older architectures alone can
// still run on a newer device, through PTX, and has none; so the code is asked, once for each device.
template <class... Params>
bool may_start_early(void (*kernel)(Params...)) {
  constexpr int most_devices = 64;
  static std::atomic<signed char> known[most_devices];  // 0: not asked yet
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= most_devices) return false;
  signed char answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    cudaFuncAttributes attributes = {};
    const bool asked = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
    answer = asked && attributes.ptxVersion >= 90 ? 1 : -1;
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer > 0;
}

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// Dynamic shared memory that a block can have beside the few hundred bytes that kernels declare.
inline int shared_memory_limit() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024; }

struct Launch {
  int64_t blocks;
  dim3 threads;
  int shared_bytes;  // dynamic shared memory
  void* stream;      // a cudaStream_t
};

// Blocks for `rows` rows, each with as many as the policy says.
inline Launch row_launch(int64_t rows, RowPolicy policy, int shared_bytes, void* stream) {
  const int64_t blocks = (rows + policy.rows_per_block - 1) / policy.rows_per_block;
  return {blocks, dim3(policy.threads_per_row, policy.rows_per_block), shared_bytes, stream};
}

// Every kernel launched so calls wait_for_earlier_kernels in every thread.
template <class... Params>
cudaError_t launch(void (*kernel)(Params...), const Launch& where, const Params&... params) {
  if (where.blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  constexpr int without_asking = 40 * 1024;  // a kernel has 48 KiB, what it declares itself included
  if (where.shared_bytes > without_asking) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, where.shared_bytes);
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(where.blocks));
  config.blockDim = where.threads;
  config.dynamicSmemBytes = where.shared_bytes;
  config.stream = static_cast<cudaStream_t>(where.stream);
  config.attrs = &early;
  config.numAttrs = may_start_early(kernel) ? 1 : 0;
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&params))...};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}

}  // namespace kernelworks
