// SPDX-License-Identifier: Apache-2.0
// What the kernels share: the unit of a head that a thread has, and its angles.
#pragma once

#include "rope3d.h"
#include "rope3d_policy.h"
#include "vendor/vec.cuh"

namespace kernelworks::rope3d {

// ---- sine and cosine ---------------------------------------------------------------------------------------

struct SinCos {
  float sin;
  float cos;
};

constexpr float far_angle = 100000.0f;

// For angles so large that nothing but a long multiplication reduces them. Kept out of line: it is hardly ever called.
__device__ __noinline__ SinCos far_sin_cos(float x) {
  SinCos result;
  sincosf(x, &result.sin, &result.cos);
  return result;
}

constexpr float round_off = 12582912.0f;  // 1.5 * 2**23: added to a number, it leaves the nearest integer in the last bits

// For fp32, to 1.5e-7, where the angle is not far: reduction by pi / 2 in three parts (Cody and Waite, 1980), then the
// polynomials of Cephes' sinf and cosf.
__device__ __forceinline__ SinCos fine_sin_cos(float x) {
  const float rounded = fmaf(x, 0.63661977236758134f, round_off), n = rounded - round_off;
  const int quadrant = __float_as_int(rounded);
  float r = fmaf(n, -1.5707963705062866f, x);
  r = fmaf(n, 4.371138828673793e-08f, r);
  r = fmaf(n, 1.7151245100058819e-15f, r);
  const float square = r * r;
  float s = fmaf(-1.9515295891e-4f, square, 8.3321608736e-3f);
  s = fmaf(s, square, -1.6666654611e-1f);
  s = fmaf(s * square, r, r);
  float c = fmaf(2.443315711809948e-5f, square, -1.388731625493765e-3f);
  c = fmaf(c, square, 4.166664568298827e-2f);
  c = fmaf(c, square, -0.5f);
  c = fmaf(c, square, 1.0f);
  const bool swapped = quadrant & 1;
  const float sin = swapped ? c : s, cos = swapped ? s : c;
  return {quadrant & 2 ? -sin : sin, (quadrant + 1) & 2 ? -cos : cos};
}

// For 16-bit results, to 9e-7: reduction to a fraction of a turn, kept with what its rounding took, then the
// multiprocessor's own functions, which are good to 4.2e-7 between -pi and pi.
__device__ __forceinline__ SinCos coarse_sin_cos(float x) {
  constexpr float turn_high = 0.15915494f, turn_low = static_cast<float>(0.15915494309189535 - turn_high);
  const float turns = __fmul_rn(x, turn_high), lost = fmaf(x, turn_low, fmaf(x, turn_high, -turns));
  const float whole = (turns + round_off) - round_off;
  const float r = ((turns - whole) + lost) * 6.2831853071795865f;
  return {__sinf(r), __cosf(r)};
}

// ---- units -------------------------------------------------------------------------------------------------

// Where a unit's lanes lie in a head. Those of `second` are there where pairs are not interleaved, or are moved one
// element at a time; a unit that is copied may have none.
struct Spot {
  int first;
  int second;
  bool has_second;
  bool turns;
};

template <class T, bool Vector, bool Interleaved>
struct Unit {
  static constexpr int size = Granule<T>::size;
  static constexpr int access = Vector ? size : 1;
  static constexpr int pairs = pairs_of_unit(sizeof(T), Vector, Interleaved);
  static constexpr int granules = Vector && Interleaved ? 1 : 2;
  static constexpr bool fine = sizeof(T) == 4;  // whether angles are worked out for fp32 results

  static __host__ __device__ Units units(const Problem& problem) {
    return units_of(problem.width, problem.pairs, pairs, Interleaved);
  }
  static __device__ __forceinline__ Spot spot(const Problem& problem, int index, const Units& units) {
    const bool turns = index < units.turning;
    if constexpr (Interleaved) {
      const int first = index * 2 * pairs;
      return {first, first + 1, first + 1 < problem.width, turns};
    } else {
      const int copied = 2 * problem.pairs + (index - units.turning) * pairs;
      return {turns ? index * pairs : copied, problem.pairs + index * pairs, turns, turns};
    }
  }

  Granule<T> granule[granules];

  __device__ __forceinline__ void load(const T* head, const Spot& spot) {
    granule[0] = kernelworks::load<access>(head + spot.first, 0, access);
    if constexpr (granules == 2) granule[1] = kernelworks::load<access>(head + spot.second, 0, spot.has_second ? access : 0);
  }
  __device__ __forceinline__ void store(T* head, const Spot& spot) const {
    kernelworks::store<access>(head + spot.first, 0, access, granule[0]);
    if constexpr (granules == 2) kernelworks::store<access>(head + spot.second, 0, spot.has_second ? access : 0, granule[1]);
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int g = 0; g < granules; ++g) granule[g] = Granule<T>{};
  }
  __device__ __forceinline__ void unpack(float (&out)[granules][size]) const {
#pragma unroll
    for (int g = 0; g < granules; ++g) granule[g].unpack(out[g]);
  }
  __device__ __forceinline__ void pack(const float (&in)[granules][size]) {
#pragma unroll
    for (int g = 0; g < granules; ++g) granule[g].pack(in[g]);
  }
};

// The two lanes of pair i among a unit's numbers.
template <class U>
__device__ __forceinline__ float& lane_a(float (&values)[U::granules][U::size], int i) {
  return U::granules == 1 ? values[0][2 * i] : values[0][i];
}
template <class U>
__device__ __forceinline__ float& lane_b(float (&values)[U::granules][U::size], int i) {
  return U::granules == 1 ? values[0][2 * i + 1] : values[U::granules - 1][i];
}

// ---- angles ------------------------------------------------------------------------------------------------

// The sines and cosines of a unit's pairs.
template <class U>
struct Turn {
  float sin[U::pairs];
  float cos[U::pairs];
  bool turns;

  // `first`: its first pair; `direction` is -1 to turn back.
  __device__ __forceinline__ void set(const Angles& angles, int64_t sample, int64_t token, int first, float direction,
                                      bool does) {
    turns = does;
    if (!turns) return;
    if (angles.coords != nullptr) {
      work_out(angles, sample, token, first, direction);
    } else {
      read(angles, sample, token, first, direction);
    }
  }

  __device__ __forceinline__ void apply(float (&values)[U::granules][U::size]) const {
    if (!turns) return;
#pragma unroll
    for (int i = 0; i < U::pairs; ++i) {
      float &a = lane_a<U>(values, i), &b = lane_b<U>(values, i);
      const float turned = fmaf(a, cos[i], -b * sin[i]);
      b = fmaf(b, cos[i], a * sin[i]);
      a = turned;
    }
  }

 private:
  __device__ __forceinline__ void work_out(const Angles& angles, int64_t sample, int64_t token, int first,
                                           float direction) {
    const float* coords = static_cast<const float*>(angles.coords) + sample * angles.coords_batch +
                          token * angles.coords_token;
    const auto freq = load_pairs(static_cast<const float*>(angles.inv_freq) + first);
    float angle[U::pairs];
    if (angles.axis == nullptr) {
      const float coord = coords[0] * direction;
#pragma unroll
      for (int i = 0; i < U::pairs; ++i) angle[i] = coord * freq.element[i];
    } else {
      const auto axis = load_pairs(angles.axis + first);
#pragma unroll
      for (int i = 0; i < U::pairs; ++i) {
        // An axis that is not there gives no number, rather than another's.
        const bool known = static_cast<unsigned>(axis.element[i]) < static_cast<unsigned>(angles.axes);
        angle[i] = (known ? coords[axis.element[i]] * direction : NAN) * freq.element[i];
      }
    }
    bool near = true;
#pragma unroll
    for (int i = 0; i < U::pairs; ++i) {
      near = near && fabsf(angle[i]) < far_angle;
      const SinCos found = U::fine ? fine_sin_cos(angle[i]) : coarse_sin_cos(angle[i]);
      sin[i] = found.sin;
      cos[i] = found.cos;
    }
    if (near) return;  // one branch for all, so that nothing above waits for another
#pragma unroll
    for (int i = 0; i < U::pairs; ++i) {
      if (fabsf(angle[i]) < far_angle) continue;
      const SinCos found = far_sin_cos(angle[i]);
      sin[i] = found.sin;
      cos[i] = found.cos;
    }
  }
  template <class E>
  static __device__ __forceinline__ Pack<E, U::pairs> load_pairs(const E* from) {
    using Whole = Pack<E, U::pairs>;
    if (reinterpret_cast<uintptr_t>(from) % alignof(Whole) == 0) return *reinterpret_cast<const Whole*>(from);
    Whole result;
#pragma unroll
    for (int i = 0; i < U::pairs; ++i) result.element[i] = from[i];
    return result;
  }
  __device__ __forceinline__ void read(const Angles& angles, int64_t sample, int64_t token, int first, float direction) {
    const int64_t start = sample * angles.table_batch + token * angles.table_token +
                          static_cast<int64_t>(first) * angles.table_pair;
    with_gpu_scalar(angles.table_scalar, [&](auto tag) {
      using S = typename decltype(tag)::type;
#pragma unroll
      for (int i = 0; i < U::pairs; ++i) {
        cos[i] = to_float(static_cast<const S*>(angles.cos)[start + i * angles.table_pair]);
        sin[i] = direction * to_float(static_cast<const S*>(angles.sin)[start + i * angles.table_pair]);
      }
    });
  }
};

// Whether samples have their own angles, and so each token of each sample works out its own.
__host__ __device__ inline bool per_sample(const Angles& angles) {
  return angles.coords != nullptr ? angles.coords_batch != 0 : angles.table_batch != 0;
}

// Where token t of a sample starts.
template <class T>
__device__ __forceinline__ const T* token_of(const void* data, const Strides& strides, int64_t sample, int64_t t) {
  return static_cast<const T*>(data) + sample * strides.batch + t * strides.token;
}

}  // namespace kernelworks::rope3d
