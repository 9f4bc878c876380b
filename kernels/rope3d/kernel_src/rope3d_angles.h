// SPDX-License-Identifier: Apache-2.0
// The cosines and sines of one token on the CPU: computed from coordinates, or read from tables.
//
// fp32: the angle is reduced by multiples of pi/2 in five parts (Cody and Waite, 1980), each so short that its
// product with the multiple is exact, and what is left goes through two polynomials: within 1e-7 of the sine and
// the cosine of the fp32 angle. A token with a larger angle takes the way of fp64: the mathematical library.
#pragma once

#include "rope3d.h"
#include "vendor/cpu_rows.h"

namespace kernelworks::rope3d {
namespace {

// Memory of one call's thread, for `count` numbers and a register more: tails are written whole.
template <class Acc>
class Scratch {
 public:
  Scratch(int64_t count, int padding) : data_(count > 0 ? new Acc[count + padding] : nullptr) {}
  ~Scratch() { delete[] data_; }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Acc* get() const { return data_; }
  Acc& operator[](int64_t i) const { return data_[i]; }

 private:
  Acc* data_;
};

// What turns neighbours: lanes 2j and 2j + 1 of a register exchanged, or both given lane 2j's value.
template <class L>
struct Neighbours {
  using V = typename L::V;
  static constexpr int count = L::count;
  static constexpr bool narrow = sizeof(V) / count == 4;
  using Wide = typename VectorOf<uint64_t, count / 2>::type;

  static V swapped(V value) {
    if constexpr (narrow) {
      const Wide pairs = (Wide)value;
      return (V)(pairs << 32 | pairs >> 32);
    } else {
      V result;
      for (int i = 0; i < count; ++i) result[i] = value[i ^ 1];
      return result;
    }
  }

  // Both lanes get the first one's value; `negate` changes the first one's sign.
  static V first_of_both(V value, bool negate) {
    if constexpr (narrow) {
      const Wide first = (Wide)value & 0xffffffffu;
      return (V)((first | first << 32) ^ (negate ? 0x80000000u : 0u));
    } else {
      V result;
      for (int i = 0; i < count; ++i) result[i] = negate && i % 2 == 0 ? -value[i] : value[i & ~1];
      return result;
    }
  }

  // Writes each lane twice.
  template <class Acc>
  static void store_twice(Acc* to, V value, bool negate) {
    if constexpr (narrow) {
      typename VectorOf<uint32_t, count / 2>::type half[2];
      memcpy(half, &value, sizeof(value));
      for (int i = 0; i < 2; ++i) {
        const V both = first_of_both((V)__builtin_convertvector(half[i], Wide), negate);
        memcpy(to + i * count, &both, sizeof(both));
      }
    } else {
      for (int i = 0; i < count; ++i) {
        to[2 * i] = negate ? -value[i] : value[i];
        to[2 * i + 1] = value[i];
      }
    }
  }
};

inline void sin_cos(double angle, double& sine, double& cosine) {
  sine = __builtin_sin(angle);
  cosine = __builtin_cos(angle);
}

// Up to 2**18 multiples of pi/2, which is in these parts: four of six bits, and what is left.
constexpr float largest_reduced = 4e5f;
constexpr float half_pi[] = {1.5625f, 0x1.08p-7f, 0x1.fp-13f, 0x1.a8p-19f, 0x1.110b46p-26f};

// For |angle| <= largest_reduced only.
template <class V, class U>
void sin_cos_reduced(V angle, V& sine, V& cosine) {
  // Added to 1.5 * 2**23 a number is rounded to an integer, which is then in the last bits.
  constexpr float to_integer = 0x1.8p23f;
  constexpr float two_over_pi = 0.636619772f;
  const V shifted = angle * two_over_pi + to_integer;
  const V multiple = shifted - to_integer;
  V rest = angle;
  for (const float part : half_pi) rest -= multiple * part;

  // Of least largest error for |rest| <= pi/4 + 0.03, fitted to the series: 3e-9 and 2e-10.
  const V square = rest * rest;
  const V near_sine = rest + rest * square * (-0x1.55553ap-3f + square * (0x1.1103ep-7f - square * 0x1.984b34p-13f));
  const V near_cosine =
      1.0f + square * (-0.5f + square * (0x1.555548p-5f + square * (square * 0x1.9989d8p-16f - 0x1.6c0ae8p-10f)));
  const U quarter = (U)shifted;
  const auto odd = (quarter & 1u) != 0u;
  sine = (V)((U)(odd ? near_cosine : near_sine) ^ (quarter & 2u) << 30);
  cosine = (V)((U)(odd ? near_sine : near_cosine) ^ ((quarter + 1u) & 2u) << 30);
}

// T is the rows' type. lane_cos and lane_sin are laid out as the lanes that they multiply: interleaved, each value
// twice and the sine of a first lane negated; else one for each pair.
template <class Isa, class T>
class Turns {
  using R = RowLanes<Isa, T>;
  using Acc = typename R::Acc;
  using L = typename R::L;
  using V = typename R::V;
  using N = Neighbours<L>;

 public:
  Turns(const Problem& problem, const Angles& angles, bool inverse)
      : problem_(problem),
        angles_(angles),
        inverse_(inverse),
        cos_(lanes(), 2 * L::count),
        sin_(lanes(), 2 * L::count) {
    if (angles.coords == nullptr) return;
    const Acc* inv_freq = static_cast<const Acc*>(angles.inv_freq);
    for (int32_t pair = 0; pair < problem.pairs; ++pair) {
      const Acc magnitude = inv_freq[pair] < 0 ? -inv_freq[pair] : inv_freq[pair];
      if (!(magnitude <= fastest_)) fastest_ = magnitude == magnitude ? magnitude : static_cast<Acc>(__builtin_inf());
    }
  }

  const Acc* lane_cos() const { return cos_.get(); }
  const Acc* lane_sin() const { return sin_.get(); }

  // Makes them those of a token; nothing is done where they are already.
  void move_to(int64_t sample, int64_t token) {
    const bool shared = (angles_.coords != nullptr ? angles_.coords_batch : angles_.table_batch) == 0;
    if (shared) sample = 0;
    if (token == token_ && sample == sample_) return;
    token_ = token;
    sample_ = sample;
    if (angles_.coords != nullptr) {
      compute(static_cast<const Acc*>(angles_.coords) + sample * angles_.coords_batch + token * angles_.coords_token);
      return;
    }
    with_cpu_scalar(angles_.table_scalar, [&](auto scalar) {
      using Table = typename decltype(scalar)::type;
      const int64_t offset = sample * angles_.table_batch + token * angles_.table_token;
      read(static_cast<const Table*>(angles_.cos) + offset, static_cast<const Table*>(angles_.sin) + offset);
    });
  }

 private:
  int64_t lanes() const { return problem_.interleaved ? 2 * static_cast<int64_t>(problem_.pairs) : problem_.pairs; }

  void write(int32_t pair, V cosine, V sine) {
    if (inverse_) sine = -sine;
    if (problem_.interleaved) {
      N::store_twice(&cos_[2 * pair], cosine, false);
      N::store_twice(&sin_[2 * pair], sine, true);
    } else {
      L::store(&cos_[pair], cosine);
      L::store(&sin_[pair], sine);
    }
  }

  void compute(const Acc* coords) {
    bool reduced = sizeof(Acc) == 4;
    for (int32_t a = 0; a < angles_.axes; ++a) {
      const Acc magnitude = coords[a] < 0 ? -coords[a] : coords[a];
      reduced = reduced && magnitude * fastest_ <= static_cast<Acc>(largest_reduced);
    }
    const Acc* inv_freq = static_cast<const Acc*>(angles_.inv_freq);
    for (int32_t pair = 0; pair < problem_.pairs; pair += L::count) {
      const int valid = problem_.pairs - pair < L::count ? problem_.pairs - pair : L::count;
      const V angle = position(coords, pair, valid) * L::load(inv_freq + pair, valid);
      V sine, cosine;
      if (reduced) {
        using U = typename VectorOf<uint32_t, L::count>::type;
        if constexpr (sizeof(Acc) == 4) sin_cos_reduced<V, U>(angle, sine, cosine);
      } else {
        for (int i = 0; i < L::count; ++i) {
          double lane_sine, lane_cosine;
          sin_cos(angle[i], lane_sine, lane_cosine);
          sine[i] = static_cast<Acc>(lane_sine);
          cosine[i] = static_cast<Acc>(lane_cosine);
        }
      }
      write(pair, cosine, sine);
    }
  }

  // The coordinate that each of these pairs turns by.
  V position(const Acc* coords, int32_t pair, int valid) const {
    using Integer = typename Sized<sizeof(Acc)>::type;
    V result = V{} + coords[0];
    if (angles_.axis == nullptr || angles_.axes == 1) return result;
    typename VectorOf<int32_t, L::count>::type raw = {};
    memcpy(&raw, angles_.axis + pair, valid * sizeof(int32_t));
    const auto axis = __builtin_convertvector(raw, typename VectorOf<Integer, L::count>::type);
    for (int32_t a = 1; a < angles_.axes; ++a) result = axis == a ? V{} + coords[a] : result;
    return result;
  }

  template <class Table>
  void read(const Table* cosines, const Table* sines) {
    if (angles_.table_pair == 1) {
      R::for_columns(problem_.pairs, [&](int32_t pair, int valid, int) __attribute__((always_inline)) {
        write(pair, L::load(cosines + pair, valid), L::load(sines + pair, valid));
      });
      return;
    }
    // Entries of both lanes beside each other: the last one of a row counts for nothing and need not exist.
    R::for_columns(2 * problem_.pairs - 1, [&](int32_t lane, int valid, int) __attribute__((always_inline)) {
      const V sine = L::load(sines + lane, valid);
      L::store(&cos_[lane], N::first_of_both(L::load(cosines + lane, valid), false));
      L::store(&sin_[lane], N::first_of_both(inverse_ ? -sine : sine, true));
    });
  }

  template <int Bytes, class = void>
  struct Sized {
    using type = int32_t;
  };
  template <class Unused>
  struct Sized<8, Unused> {
    using type = int64_t;
  };

  const Problem& problem_;
  const Angles& angles_;
  bool inverse_;
  Acc fastest_ = 0;  // the largest inverse frequency
  int64_t token_ = -1;
  int64_t sample_ = -1;
  Scratch<Acc> cos_;
  Scratch<Acc> sin_;
};

}  // namespace
}  // namespace kernelworks::rope3d
