// SPDX-License-Identifier: Apache-2.0
// What each instruction set offers the CPU backend.
#pragma once

#include "rope3d.h"

namespace kernelworks::rope3d {

struct CpuRoutines {
  void (*forward)(const ForwardParams&, int64_t begin, int64_t end);
  void (*backward)(const BackwardParams&, int64_t begin, int64_t end, int32_t partial);
  void (*reduce_partials)(const BackwardParams&, const BackwardTensor&, int64_t begin, int64_t end);
};

CpuRoutines portable_routines();
CpuRoutines avx2_routines();
CpuRoutines avx512_routines();

}  // namespace kernelworks::rope3d
