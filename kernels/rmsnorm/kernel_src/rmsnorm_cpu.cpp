// SPDX-License-Identifier: Apache-2.0
// CPU backend of RMSNorm: the portable routines, and the choice of routines for this machine.
#include "rmsnorm_cpu.h"
#include "rmsnorm_rows.h"
#include "vendor/cpu_isa.h"

namespace kernelworks::rmsnorm {
namespace {

const CpuRoutines& routines() {
  static const CpuRoutines chosen = best_routines<portable_routines, avx2_routines, avx512_routines>();
  return chosen;
}

}  // namespace

CpuRoutines portable_routines() {
  using R = Routines<Portable>;
  return {R::forward, R::backward, R::reduce_partials};
}

void forward_cpu(const ForwardParams& params, int64_t begin, int64_t end) {
  routines().forward(params, begin, end);
}
void backward_cpu(const BackwardParams& params, int64_t begin, int64_t end, int32_t partial) {
  routines().backward(params, begin, end, partial);
}
void reduce_partials_cpu(const BackwardParams& params, int64_t begin, int64_t end) {
  routines().reduce_partials(params, begin, end);
}

int32_t partial_rows_cpu(const Problem& problem) { return cpu_partial_rows(problem.rows); }

}  // namespace kernelworks::rmsnorm
