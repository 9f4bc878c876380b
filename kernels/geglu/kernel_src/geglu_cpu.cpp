// SPDX-License-Identifier: Apache-2.0
// CPU backend of gated GELU: the portable routines, and the choice of routines for this machine.
#include "geglu_cpu.h"
#include "geglu_rows.h"
#include "vendor/cpu_isa.h"

namespace kernelworks::geglu {
namespace {

const CpuRoutines& routines() {
  static const CpuRoutines chosen = best_routines<portable_routines, avx2_routines, avx512_routines>();
  return chosen;
}

}  // namespace

CpuRoutines portable_routines() {
  using R = Routines<Portable>;
  return {R::forward, R::backward};
}

void forward_cpu(const ForwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last) {
  routines().forward(params, begin, end, first, last);
}
void backward_cpu(const BackwardParams& params, int64_t begin, int64_t end, int32_t first, int32_t last) {
  routines().backward(params, begin, end, first, last);
}

}  // namespace kernelworks::geglu
