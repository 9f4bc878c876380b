// SPDX-License-Identifier: Apache-2.0
// What each instruction set offers the CPU backend.
#pragma once

#include "rmsnorm.h"

namespace kernelworks::rmsnorm {

struct CpuRoutines {
  void (*forward)(const ForwardParams&, int64_t begin, int64_t end);
  void (*backward)(const BackwardParams&, int64_t begin, int64_t end, int32_t partial);
  void (*reduce_partials)(const BackwardParams&, int64_t begin, int64_t end);
};

CpuRoutines portable_routines();
CpuRoutines avx2_routines();
CpuRoutines avx512_routines();

}  // namespace kernelworks::rmsnorm
