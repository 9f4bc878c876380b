// SPDX-License-Identifier: Apache-2.0
// Sealed: the AVX2 routines.
#include "geglu_cpu.h"

#if defined(__x86_64__) && !defined(__clang__)
#include "vendor/cpu_avx2.h"
//
#include "geglu_rows.h"

namespace kernelworks::geglu {

CpuRoutines avx2_routines() {
  using R = Routines<Avx2>;
  return {R::forward, R::backward};
}

}  // namespace kernelworks::geglu
#endif
