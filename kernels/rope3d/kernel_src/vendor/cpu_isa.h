// SPDX-License-Identifier: Apache-2.0
// Which instruction set this machine runs, asked once. Only baseline code may include this.
#pragma once

#include <cstdint>
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

// What the chosen function returns. The other two need not exist where the compiler or the processor has no use
// for them.
template <auto portable, auto avx2, auto avx512>
auto best_routines() {
#if defined(__x86_64__) && !defined(__clang__)
  switch (cpu_isa()) {
    case CpuIsa::avx512: return avx512();
    case CpuIsa::avx2: return avx2();
    case CpuIsa::portable: break;
  }
#endif
  return portable();
}

// Into how many partial sums the rows are split: enough to feed any number of threads, and few beside the rows.
// The number of threads must not decide: the sum would change with it.
inline int32_t cpu_partial_rows(int64_t rows) {
  constexpr int64_t rows_per_partial = 16;
  constexpr int64_t most = 64;
  const int64_t wanted = (rows + rows_per_partial - 1) / rows_per_partial;
  return static_cast<int32_t>(wanted < most ? wanted : most);
}

}  // namespace kernelworks
