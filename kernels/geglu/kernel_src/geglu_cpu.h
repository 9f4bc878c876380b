// SPDX-License-Identifier: Apache-2.0
// What each instruction set offers the CPU backend.
#pragma once

#include "geglu.h"

namespace kernelworks::geglu {

struct CpuRoutines {
  void (*forward)(const ForwardParams&, int64_t begin, int64_t end, int32_t first, int32_t last);
  void (*backward)(const BackwardParams&, int64_t begin, int64_t end, int32_t first, int32_t last);
};

CpuRoutines portable_routines();
CpuRoutines avx2_routines();
CpuRoutines avx512_routines();

}  // namespace kernelworks::geglu
