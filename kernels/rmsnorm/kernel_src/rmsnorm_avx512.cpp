// SPDX-License-Identifier: Apache-2.0
// Sealed: the AVX-512 routines.
#include "rmsnorm_cpu.h"

#if defined(__x86_64__) && !defined(__clang__)
#include "vendor/cpu_avx512.h"
//
#include "rmsnorm_rows.h"

namespace kernelworks::rmsnorm {

CpuRoutines avx512_routines() {
  using R = Routines<Avx512>;
  return {R::forward, R::backward, R::reduce_partials};
}

}  // namespace kernelworks::rmsnorm
#endif
