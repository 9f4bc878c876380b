// SPDX-License-Identifier: Apache-2.0
// What each instruction set offers the CPU backend.
#pragma once

#include "adaln.h"

namespace kernelworks::adaln {

struct CpuRoutines {
  void (*forward)(const ForwardParams&, int64_t begin, int64_t end);
  void (*backward)(const BackwardParams&, int64_t begin, int64_t end);
  void (*reduce_partials)(const BackwardParams&, int64_t begin, int64_t end);
};

CpuRoutines portable_routines();
CpuRoutines avx2_routines();
CpuRoutines avx512_routines();

}  // namespace kernelworks::adaln
