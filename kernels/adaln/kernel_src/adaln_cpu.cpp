// SPDX-License-Identifier: Apache-2.0
// CPU backend of modulated normalisation: the portable routines, and the choice of routines for this machine.
#include "adaln_cpu.h"

#include <algorithm>

#include "adaln_rows.h"
#include "vendor/cpu_isa.h"

namespace kernelworks::adaln {
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
void backward_cpu(const BackwardParams& params, int64_t begin, int64_t end) {
  routines().backward(params, begin, end);
}
void reduce_partials_cpu(const BackwardParams& params, int64_t begin, int64_t end) {
  routines().reduce_partials(params, begin, end);
}

// So many that all groups together feed any number of threads.
int32_t parts_cpu(const Problem& problem) {
  const int64_t all = cpu_partial_rows(problem.rows);
  const int64_t most = cpu_partial_rows(problem.group_rows);
  return static_cast<int32_t>(std::clamp<int64_t>(all / problem.groups(), 1, most));
}

}  // namespace kernelworks::adaln
