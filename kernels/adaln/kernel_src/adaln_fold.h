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

  // Calls body(start, count) for the blocks of a row.
  template <class Body>
  static void for_blocks(int32_t width, Body body) {
    for (int32_t start = 0; start < width; start += block) body(start, width - start < block ? width - start : block);
  }

  // The gate of `group` in columns [start, start + count); 1 where there is none.
  const Acc* gate(const Modulator& gate, int64_t group, int32_t start, int32_t count) {
    if (!gate_holds_.renew(group, start)) return gate_;
    fill(gate_, count, 1);
    if (gate.part[0].data != nullptr) sum_of_parts(gate_, gate, group, start, count);
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
    fill(a_, count, 0);
    fill(b_, count, 0);
    if (scale.part[0].data != nullptr) sum_of_parts(a_, scale, group, start, count);
    if (shift.part[0].data != nullptr) sum_of_parts(b_, shift, group, start, count);
    for_vectors(count, [&](int32_t column, int valid) { L::store(a_ + column, 1 + L::load(a_ + column, valid), valid); });
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

  static void sum_of_parts(Acc* to, const Modulator& modulator, int64_t group, int32_t start, int32_t count) {
    for (int part = 0; part < Modulator::max_parts; ++part) {
      const Rows& rows = modulator.part[part];
      if (rows.data == nullptr) return;
      with_cpu_scalar(modulator.scalar[part], [&](auto tag) {
        using P = typename decltype(tag)::type;
        const P* from = R::template row_of<const P*>(rows, group) + start;
        for_vectors(count, [&](int32_t column, int valid) {
          const V value = L::load(from + column, valid);
          L::store(to + column, part == 0 ? value : L::load(to + column, valid) + value, valid);
        });
      });
    }
  }

  Holds gate_holds_, affine_holds_;
  Acc gate_[block], a_[block], b_[block];
};

}  // namespace
}  // namespace kernelworks::adaln
