// SPDX-License-Identifier: Apache-2.0
// Sealed: the AVX-512 routines.
#include "geglu_cpu.h"

#if defined(__x86_64__) && !defined(__clang__)
#include "vendor/cpu_avx512.h"
//
#include "geglu_rows.h"

namespace kernelworks::geglu {

CpuRoutines avx512_routines() {
  using R = Routines<Avx512>;
  return {R::forward, R::backward};
}

}  // namespace kernelworks::geglu
#endif
