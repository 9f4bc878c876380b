// SPDX-License-Identifier: Apache-2.0
// The modulators of a group of rows on the CPU, folded to three numbers for each column: a gate, and y = n * a + b.
//
// Modulators have one or two parts of any dtype each. Folding them takes the types out of the loops over rows, and
// is done once for all rows of a group where a row fits one block of columns. What a row is multiplied by has the
// same bits whichever way the modulators came, because there is this one way to fold them.
#pragma once

#include "adaln.h"
#include "vendor/cpu_rows.h"

namespace kernelworks::adaln {
namespace {

constexpr Modulator no_modulator;
constexpr Columns no_columns;

template <class Isa, class T>
class Folded {
  using R = RowLanes<Isa, T>;
  using L = typename R::L;
  using V = typename R::V;

 public:
  using Acc = typename R::Acc;
  static constexpr int32_t block = 32768 / sizeof(Acc);  // columns; three blocks lie on a thread's stack

  // Calls body(start, count) for the blocks of a row. Where every row has its own modulators a block serves one row
  // only, and short ones stay in the fastest cache.
  template <class Body>
  static void for_blocks(const Problem& problem, Body body) {
    const int32_t width = problem.width, step = problem.group_rows == 1 ? 512 : block;
    for (int32_t start = 0; start < width; start += step) body(start, width - start < step ? width - start : step);
  }

  // The gate of `group` in columns [start, start + count); 1 where there is none.
  const Acc* gate(const Modulator& gate, int64_t group, int32_t start, int32_t count) {
    if (!gate_holds_.renew(group, start)) return gate_;
    fold_modulator(gate_, gate, 0, 1, group, start, count);
    return gate_;
  }

  struct Affine {
    const Acc* a;
    const Acc* b;
  };

  // a = weight * (1 + scale), b = bias * (1 + scale) + shift, of `group` in columns [start, start + count).
  Affine affine(const Modulator& scale, const Modulator& shift, const Columns& weight, const Columns& bias,
                int64_t group, int32_t start, int32_t count) {
    if (!affine_holds_.renew(group, start)) return {a_, b_};
    fold_modulator(a_, scale, 1, 1, group, start, count);
    fold_modulator(b_, shift, 0, 0, group, start, count);
    if (bias.data != nullptr) {
      with_columns(bias, [&](auto from) {
        for_vectors(count, [&](int32_t column, int valid) {
          const V value = L::load(from + start + column, valid) * L::load(a_ + column, valid);
          L::store(b_ + column, value + L::load(b_ + column, valid), valid);
        });
      });
    }
    if (weight.data != nullptr) {
      with_columns(weight, [&](auto from) {
        for_vectors(count, [&](int32_t column, int valid) {
          L::store(a_ + column, L::load(from + start + column, valid) * L::load(a_ + column, valid), valid);
        });
      });
    }
    return {a_, b_};
  }

  static void fill(Acc* to, int32_t count, Acc value) {
    for (int32_t column = 0; column < count; ++column) to[column] = value;
  }

  // Calls step(column, valid lanes) over columns [0, count).
  template <class Step>
  static void for_vectors(int32_t count, Step step) {
    R::for_columns(count, [&](int32_t column, int valid, int) __attribute__((always_inline)) { step(column, valid); });
  }

  // Calls body with the columns' data as a pointer to their type.
  template <class Body>
  static void with_columns(const Columns& columns, Body body) {
    with_cpu_scalar(columns.scalar, [&](auto tag) {
      body(static_cast<const typename decltype(tag)::type*>(columns.data));
    });
  }

 private:
  // Which group and block of columns a buffer holds.
  struct Holds {
    int64_t group = -1;
    int32_t start = 0;

    bool renew(int64_t new_group, int32_t new_start) {
      if (group == new_group && start == new_start) return false;
      group = new_group;
      start = new_start;
      return true;
    }
  };

  // offset + the sum of the parts; `absent` where there are none.
  static void fold_modulator(Acc* to, const Modulator& modulator, Acc offset, Acc absent, int64_t group, int32_t start,
                             int32_t count) {
    if (modulator.part[0].data == nullptr) return fill(to, count, absent);
    const bool two = modulator.part[1].data != nullptr;
    for (int part = 0; part < (two ? 2 : 1); ++part) {
      const Acc added = part == (two ? 1 : 0) ? offset : 0;
      with_cpu_scalar(modulator.scalar[part], [&](auto tag) {
        using P = typename decltype(tag)::type;
        const P* from = R::template row_of<const P*>(modulator.part[part], group) + start;
        for_vectors(count, [&](int32_t column, int valid) {
          __builtin_prefetch(from + column + ahead);
          const V value = L::load(from + column, valid);
          L::store(to + column, added + (part == 0 ? value : L::load(to + column, valid) + value), valid);
        });
      });
    }
  }

  // Columns: what a row's modulators are followed by is most often the next row's, and the processor's own prefetch
  // ends with a page.
  static constexpr int32_t ahead = 1024;

  Holds gate_holds_, affine_holds_;
  Acc gate_[block], a_[block], b_[block];
};

}  // namespace
}  // namespace kernelworks::adaln
