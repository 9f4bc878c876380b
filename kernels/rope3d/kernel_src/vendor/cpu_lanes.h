// SPDX-License-Identifier: Apache-2.0
// A register of fp32 or fp64 lanes on the CPU, loaded from and stored to any element type.
//
// Everything is in an anonymous namespace: each instruction-set file keeps its own copy, so that the linker
// cannot put wide code where a baseline caller finds it. The vectors are the compiler's own (GCC and Clang),
// so the same text serves SSE2, AVX2, AVX-512 and NEON. Rounding is to nearest, ties to even.
#pragma once

#include <stdint.h>
#include <string.h>

namespace kernelworks {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class T, int Count>
struct VectorOf {
  typedef T type __attribute__((vector_size(Count * sizeof(T))));
};

// Conversions that need no instruction beyond integer and fp32 arithmetic.
template <int Count>
struct Lanes32 {
  using F = typename VectorOf<float, Count>::type;
  using U = typename VectorOf<uint32_t, Count>::type;
  using S = typename VectorOf<uint16_t, Count>::type;
  using D = typename VectorOf<double, Count>::type;

  static D widen(F value) { return __builtin_convertvector(value, D); }
  static F narrow(D value) { return __builtin_convertvector(value, F); }
  static F widen(S raw, BFloat16) { return (F)(__builtin_convertvector(raw, U) << 16); }
  static S narrow(F value, BFloat16) { return __builtin_convertvector(bfloat16_bits(value), S); }
  // The rounded bits, still 32 to a lane.
  static U bfloat16_bits(F value) {
    const U bits = (U)value;
    const U rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (value == value ? rounded : bits | 0x400000u) >> 16;  // a NaN stays one, made quiet
  }
  static F widen(S raw, Half) {
    const U bits = __builtin_convertvector(raw, U);
    // Shifted into place the exponent is 112 too small; the multiplication mends it, subnormals included.
    const F scaled = (F)((bits & 0x7fffu) << 13) * 0x1p112f;
    const U special = (bits & 0x7c00u) == 0x7c00u ? (U)scaled | 0x7f800000u : (U)scaled;
    return (F)(special | (bits & 0x8000u) << 16);
  }
  static S narrow(F value, Half) {
    const U bits = (U)value;
    const U magnitude = bits & 0x7fffffffu;
    const U rebased = magnitude - (112u << 23);
    const U normal = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
    // 0.5 has the spacing of fp16's subnormals, so this addition rounds to it.
    const U subnormal = (U)((F)magnitude + 0.5f) - 0x3f000000u;
    U result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x477ff000u ? U{} + 0x7c00u : result;
    result = magnitude > 0x7f800000u ? U{} + 0x7e00u : result;
    return __builtin_convertvector(result | (bits & 0x80000000u) >> 16, S);
  }
};

// Bytes: the width of a register. Convert: how that instruction set converts 16-bit floats.
template <class Acc, int Bytes, template <int> class Convert>
struct Lanes {
  static constexpr int count = Bytes / sizeof(Acc);
  using V = typename VectorOf<Acc, count>::type;

  // The first `valid` lanes, the others zero. Where valid is the constant `count`, a plain load is left.
  template <class T>
  static V load(const T* from, int valid = count) {
    if (valid != count) {
      T part[count] = {};
      memcpy(part, from, valid * sizeof(T));
      return load(part);
    }
    if constexpr (sizeof(T) == 2 && sizeof(Acc) == 4) {
      typename Convert<count>::S raw;
      memcpy(&raw, from, sizeof(raw));
      return Convert<count>::widen(raw, T{});
    } else if constexpr (sizeof(T) == 2) {  // a 16-bit weight beside fp64 rows: rare, so one lane at a time
      V result;
      for (int i = 0; i < count; ++i) result[i] = Lanes32<4>::widen(typename Lanes32<4>::S{from[i].bits}, T{})[0];
      return result;
    } else if constexpr (sizeof(T) < sizeof(Acc)) {
      typename Convert<count>::F raw;
      memcpy(&raw, from, sizeof(raw));
      return Convert<count>::widen(raw);
    } else {
      typename VectorOf<T, count>::type raw;
      memcpy(&raw, from, sizeof(raw));
      return __builtin_convertvector(raw, V);
    }
  }

  template <class T>
  static void store(T* to, V value, int valid = count) {
    if (valid != count) {
      T part[count];
      store(part, value);
      memcpy(to, part, valid * sizeof(T));
      return;
    }
    if constexpr (sizeof(T) == 2 && sizeof(Acc) == 4) {
      const auto raw = Convert<count>::narrow(value, T{});
      memcpy(to, &raw, sizeof(raw));
    } else if constexpr (sizeof(T) == 2) {
      for (int i = 0; i < count; ++i) {
        to[i].bits = Lanes32<4>::narrow(typename Lanes32<4>::F{static_cast<float>(value[i])}, T{})[0];
      }
    } else if constexpr (sizeof(T) < sizeof(Acc)) {
      const auto raw = Convert<count>::narrow(value);
      memcpy(to, &raw, sizeof(raw));
    } else {
      const auto raw = __builtin_convertvector(value, typename VectorOf<T, count>::type);
      memcpy(to, &raw, sizeof(raw));
    }
  }

  // The value that storing as T and loading again gives.
  template <class T>
  static V round_to(V value) {
    if constexpr (sizeof(T) == sizeof(Acc)) {
      return value;
    } else {
      T raw[count];
      store(raw, value);
      return load(raw);
    }
  }

  static Acc sum(V value) {
    Acc lane[count];
    memcpy(lane, &value, sizeof(value));
    for (int half = count / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    return lane[0];
  }
};

}  // namespace
}  // namespace kernelworks
