// SPDX-License-Identifier: Apache-2.0
// Sealed: the AVX-512 routines.
#include "adaln_cpu.h"

#if defined(__x86_64__) && !defined(__clang__)
#include "vendor/cpu_avx512.h"
//
#include "adaln_rows.h"

namespace kernelworks::adaln {

CpuRoutines avx512_routines() {
  using R = Routines<Avx512>;
  return {R::forward, R::backward, R::reduce_partials};
}

}  // namespace kernelworks::adaln
#endif
