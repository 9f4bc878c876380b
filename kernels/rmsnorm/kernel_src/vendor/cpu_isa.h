// SPDX-License-Identifier: Apache-2.0
// Which instruction set this machine runs, asked once. Only baseline code may include this.
#pragma once

#include <cstdlib>
#include <cstring>

namespace kernelworks {

enum class CpuIsa { portable, avx2, avx512 };

// The sealed files use GCC's target pragma, which Clang does not have: there, and on other processors, the
// portable routines are all there is.

inline CpuIsa best_cpu_isa() {
#if defined(__x86_64__) && !defined(__clang__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return CpuIsa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return CpuIsa::avx2;
  }
#endif
  return CpuIsa::portable;
}

// The best there is, or less if KERNELWORKS_CPU_ISA (portable, avx2, avx512) asks for less.
inline CpuIsa cpu_isa() {
  const CpuIsa best = best_cpu_isa();
  const char* wanted = std::getenv("KERNELWORKS_CPU_ISA");
  if (wanted == nullptr) return best;
  if (std::strcmp(wanted, "portable") == 0) return CpuIsa::portable;
  if (std::strcmp(wanted, "avx2") == 0 && best == CpuIsa::avx512) return CpuIsa::avx2;
  return best;
}

}  // namespace kernelworks
