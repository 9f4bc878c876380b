// SPDX-License-Identifier: Apache-2.0
// Modulated normalisation without torch: what the ops need to know, and the entry points of each backend.
//
//   residual_out = residual + gate * x                         (where there is a residual; no gate: gate = 1)
//   v = residual_out, or x                                      what is normalised
//   n = v * rsqrt(mean(v * v) + eps)                            (rms)
//   n = (v - mean(v)) * rsqrt(mean((v - mean(v))^2) + eps)      (layer)
//   m = n * weight + bias                                       (1 and 0 where they are not there)
//   y = m * (1 + scale) + shift                                 (0 and 0 where they are not there)
//
// Rounding points. Everything is computed in fp32 (fp64 for fp64), the sum of a modulator's two parts and 1 + scale
// included. residual_out is rounded to the element type before it is normalised and returned; y is rounded once.
#pragma once

#include <cstdint>
#include <string>

#include "vendor/dispatch.h"
#include "vendor/row_layout.h"

namespace kernelworks::adaln {

enum class Norm : int8_t { rms, layer };

// Element type, row count and width are shared by x, residual and every result that is shaped like them; those
// results are contiguous.
struct Problem {
  Scalar scalar = Scalar::f32;
  int64_t rows = 0;
  int32_t width = 0;
  Norm norm = Norm::rms;
  int64_t group_rows = 1;  // so many rows, one after the other, have the same modulators; it divides `rows`
  Divisor by_group_rows;   // where there are fewer than 2**31 rows

  constexpr int64_t groups() const { return rows / group_rows; }
  constexpr int64_t group_of(int64_t row) const {
    return rows < RowLayout::max_rows ? by_group_rows.quotient(static_cast<uint32_t>(row)) : row / group_rows;
  }
};

// A gate, scale or shift: one row for each group, or the sum of two such (a table and an embedding of the timestep).
// Null in the first part: the modulator is not there. Null in the second: one part.
struct Modulator {
  static constexpr int max_parts = 2;
  Rows part[max_parts];  // rows by group
  Scalar scalar[max_parts] = {};
};

// One number for each column, contiguous. Null data: not there.
struct Columns {
  const void* data = nullptr;
  Scalar scalar = Scalar::f32;
};

struct ForwardParams {
  Problem problem;
  double eps = 0;
  Rows x;
  Rows residual;   // null: nothing is added
  Modulator gate;  // with a residual only
  Modulator scale;
  Modulator shift;
  Columns weight;
  Columns bias;
  void* y = nullptr;             // null: residual_out is all that is wanted
  void* residual_out = nullptr;  // with a residual only
  void* mean = nullptr;          // null unless a gradient will be wanted; one fp32 (fp64) for each row; layer only
  void* rstd = nullptr;          // null unless a gradient will be wanted; one fp32 (fp64) for each row
  void* folded = nullptr;        // CUDA: scratch, folded_rows_cuda() rows of fp32; null where that is 0
};

// A result that is a sum over rows. Null data: not wanted.
struct Sum {
  void* data = nullptr;
  Scalar scalar = Scalar::f32;
};

// With a = weight * (1 + scale) and the sums S0 = sum(grad), S1 = sum(grad * n) over the rows of a group:
//
//   grad_v = rstd * (grad * a - n * mean(grad * a * n) - [layer] mean(grad * a)) + grad_residual
//   grad_x = grad_v * gate,  grad_gate = sum(grad_v * x)                    (where there is a gate)
//   grad_shift = S0          grad_scale = weight * S1 + bias * S0
//   grad_weight = sum over groups of (1 + scale) * S1                       grad_bias = ... of (1 + scale) * S0
//
// grad_v is used as it is in fp32, and is what the residual gets. Sums are fp32 (fp64), in an order that the
// shapes, dtypes and alignment of what is given, what is wanted and the GPU's number of multiprocessors alone decide.
struct BackwardParams {
  Problem problem;
  Rows grad;           // of y; null: y was not used, and grad_v = grad_residual
  Rows grad_residual;  // of residual_out; null: nothing to add
  Rows v;              // null where grad is
  Rows x;              // what the gate multiplied; null unless grad_gate is wanted
  Modulator gate;
  Modulator scale;
  Columns weight;
  Columns bias;
  const void* mean = nullptr;  // layer only
  const void* rstd = nullptr;
  void* grad_v = nullptr;  // null: not wanted (where grad is null)
  void* grad_x = nullptr;  // with a gate only
  // (groups, width), contiguous
  Sum grad_shift;
  Sum grad_scale;
  Sum grad_gate;
  // (width), contiguous
  Sum grad_weight;
  Sum grad_bias;
  // Scratch, fp32 (fp64). Each group's rows are split into `parts` parts. `partials` is (groups, parts, sums_each(),
  // width): S0, S1 and, where there is a gate, the sum for its gradient. `affine` is (2, groups, width): each
  // group's term of grad_weight and of grad_bias; null unless one of them is wanted.
  int32_t parts = 1;
  void* partials = nullptr;
  void* affine = nullptr;

  constexpr bool wants_sums() const {
    return grad_shift.data || grad_scale.data || grad_gate.data || grad_weight.data || grad_bias.data;
  }
  constexpr int sums_each() const { return gate.part[0].data ? 3 : 2; }
};

// CUDA: launch on `stream` (a cudaStream_t) of the current device. The result is empty, or says what failed.
std::string forward_cuda(const ForwardParams& params, void* stream);
std::string backward_cuda(const BackwardParams& params, void* stream);
// Rows of scratch in which the modulators of each group are put together once; 0 where they are used as they are.
// Asked when all else is set.
int64_t folded_rows_cuda(const ForwardParams& params);
// What `parts` should be, and whether `partials` will be written then; asked when all else is set.
int32_t parts_cuda(const BackwardParams& params);
bool needs_partials_cuda(const BackwardParams& params);

// CPU: rows [begin, end).
void forward_cpu(const ForwardParams& params, int64_t begin, int64_t end);
// Items [begin, end) of the groups() * parts ones: item i is part i % parts of group i / parts. Part p of a group has
// its rows [group_rows * p / parts, group_rows * (p + 1) / parts).
void backward_cpu(const BackwardParams& params, int64_t begin, int64_t end);
// Adds up the partials of columns [begin, end) into the wanted sums.
void reduce_partials_cpu(const BackwardParams& params, int64_t begin, int64_t end);
int32_t parts_cpu(const Problem& problem);

}  // namespace kernelworks::adaln
