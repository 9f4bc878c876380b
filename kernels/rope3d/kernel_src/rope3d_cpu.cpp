// SPDX-License-Identifier: Apache-2.0
// CPU backend of the rotary embedding: the portable routines, and the choice of routines for this machine.
#include "rope3d_cpu.h"
#include "rope3d_rows.h"
#include "vendor/cpu_isa.h"

namespace kernelworks::rope3d {
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
void reduce_partials_cpu(const BackwardParams& params, const BackwardTensor& tensor, int64_t begin, int64_t end) {
  routines().reduce_partials(params, tensor, begin, end);
}

int32_t partial_rows_cpu(const Problem& problem) { return cpu_partial_rows(problem.batch * problem.tokens); }

}  // namespace kernelworks::rope3d
