// SPDX-License-Identifier: Apache-2.0
// CPU backend of RMSNorm: the portable routines, and the choice of routines for this machine.
#include "rmsnorm_cpu.h"
#include "rmsnorm_rows.h"
#include "vendor/cpu_isa.h"

namespace kernelworks::rmsnorm {
namespace {

// 16 bytes: what SSE2 and NEON, the baselines of x86-64 and aarch64, hold in a register.
struct Portable {
  static constexpr int bytes = 16;
  template <int Count>
  using Convert = Lanes32<Count>;
};

const CpuRoutines& routines() {
  static const CpuRoutines chosen = [] {
#if defined(__x86_64__) && !defined(__clang__)
    switch (cpu_isa()) {
      case CpuIsa::avx512: return avx512_routines();
      case CpuIsa::avx2: return avx2_routines();
      case CpuIsa::portable: break;
    }
#endif
    return portable_routines();
  }();
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

// Enough partials to feed any number of threads, and few beside the rows. The number of threads must not
// decide: the sum would change with it.
int32_t partial_rows_cpu(const Problem& problem) {
  constexpr int64_t rows_per_partial = 16;
  constexpr int64_t most = 64;
  const int64_t wanted = (problem.rows + rows_per_partial - 1) / rows_per_partial;
  return static_cast<int32_t>(wanted < most ? wanted : most);
}

}  // namespace kernelworks::rmsnorm
