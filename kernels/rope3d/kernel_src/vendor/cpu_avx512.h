// SPDX-License-Identifier: Apache-2.0
// From the inclusion of this header on, a file is compiled for AVX-512: include it last, in a sealed file only.
#pragma once

#include <immintrin.h>
#include <string.h>

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

#include "cpu_lanes.h"

namespace kernelworks {
namespace {

struct Avx512 {
  static constexpr int bytes = 64;

  template <int Count>
  struct Convert : Lanes32<Count> {
    using typename Lanes32<Count>::D;
    using typename Lanes32<Count>::F;
    using typename Lanes32<Count>::S;
    using Lanes32<Count>::bfloat16_bits;
    static D widen(F value) { return (D)_mm512_maskz_cvtps_pd(0xff, (__m256)value); }
    static F narrow(D value) { return (F)_mm512_maskz_cvtpd_ps(0xff, (__m512d)value); }
    static F widen(S raw, BFloat16) {
      return (F)_mm512_slli_epi32(_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)raw), 16);
    }
    static S narrow(F value, BFloat16) {
      return (S)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)bfloat16_bits(value));
    }
    // The masked forms: the plain ones read an undefined register in GCC 12's header and draw its warning.
    static F widen(S raw, Half) { return (F)_mm512_maskz_cvtph_ps(0xffff, (__m256i)raw); }
    static S narrow(F value, Half) {
      return (S)_mm512_maskz_cvtps_ph(0xffff, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
  };
};

}  // namespace
}  // namespace kernelworks
