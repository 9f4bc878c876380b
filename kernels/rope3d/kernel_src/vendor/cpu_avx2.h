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
    using typename Lanes32<Count>::D;
    using typename Lanes32<Count>::F;
    using typename Lanes32<Count>::S;
    using Lanes32<Count>::bfloat16_bits;
    // Spelled out, since GCC 12 widens in halves and narrows lane by lane.
    static D widen(F value) { return (D)_mm256_cvtps_pd((__m128)value); }
    static F narrow(D value) { return (F)_mm256_cvtpd_ps((__m256d)value); }
    static F widen(S raw, BFloat16) {
      return (F)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)raw), 16);
    }
    static S narrow(F value, BFloat16) {
      const __m256i bits = (__m256i)bfloat16_bits(value);
      return (S)_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08));
    }
    static F widen(S raw, Half) { return (F)_mm256_cvtph_ps((__m128i)raw); }
    static S narrow(F value, Half) {
      return (S)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
  };
};

}  // namespace
}  // namespace kernelworks
