// SPDX-License-Identifier: Apache-2.0
// Sealed: the AVX2 routines.
#include "rope3d_cpu.h"

#if defined(__x86_64__) && !defined(__clang__)
#include "vendor/cpu_avx2.h"
//
#include "rope3d_rows.h"

namespace kernelworks::rope3d {

CpuRoutines avx2_routines() {
  using R = Routines<Avx2>;
  return {R::forward, R::backward, R::reduce_partials};
}

}  // namespace kernelworks::rope3d
#endif
