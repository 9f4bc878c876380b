// SPDX-License-Identifier: Apache-2.0
// From the inclusion of this header on, a file is compiled for AVX2: include it last, in a sealed file only.
#pragma once

#include <immintrin.h>
#include <string.h>

#pragma GCC target("avx2,fma,f16c")

#include "cpu_lanes.h"

namespace kernelworks {
namespace {

struct Avx2 {
  static constexpr int bytes = 32;

  template <int Count>
  struct Convert : Lanes32<Count> {
    using typename Lanes32<Count>::F;
    using typename Lanes32<Count>::S;
    using Lanes32<Count>::widen;
    using Lanes32<Count>::narrow;
    static F widen(S raw, Half) { return (F)_mm256_cvtph_ps((__m128i)raw); }
    static S narrow(F value, Half) {
      return (S)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
  };
};

}  // namespace
}  // namespace kernelworks
