// SPDX-License-Identifier: Apache-2.0
// Sealed: the AVX2 routines.
#include "adaln_cpu.h"

#if defined(__x86_64__) && !defined(__clang__)
#include "vendor/cpu_avx2.h"
//
#include "adaln_rows.h"

namespace kernelworks::adaln {

CpuRoutines avx2_routines() {
  using R = Routines<Avx2>;
  return {R::forward, R::backward, R::reduce_partials};
}

}  // namespace kernelworks::adaln
#endif
