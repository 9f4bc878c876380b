// SPDX-License-Identifier: Apache-2.0
// What the ops have in common: their optional arguments, checked, and the Problem that these and x make.
#pragma once

#include "adaln_modulators.h"

namespace kernelworks::adaln {

// The gate, the scale and the shift of a call, and the rows that share them.
struct Modulators {
  ModulatorArgument gate;
  ModulatorArgument scale;
  ModulatorArgument shift;

  // Outer dimensions of x up to the last one over which one of them varies.
  int64_t leading() const { return std::max({gate.leading(), scale.leading(), shift.leading()}); }
};

inline Problem problem_of(const TensorContract& contract, const Tensor& x, const Modulators& modulators, bool layer) {
  Problem problem;
  problem.scalar = contract.scalar("x", x);
  problem.rows = contract.rows();
  problem.width = static_cast<int32_t>(contract.width());
  problem.norm = layer ? Norm::layer : Norm::rms;
  for (int64_t d = modulators.leading(); d + 1 < x.dim(); ++d) problem.group_rows *= x.size(d);
  if (problem.group_rows < RowLayout::max_rows) {
    problem.by_group_rows = Divisor(static_cast<uint32_t>(problem.group_rows > 0 ? problem.group_rows : 1));
  }
  return problem;
}

// Replaces `tensor` by a contiguous copy where it is strided.
inline Columns columns_of(const TensorContract& contract, const char* name, MaybeTensor& tensor) {
  if (!tensor) return {};
  contract.per_column(name, *tensor);
  Columns result;
  result.scalar = contract.scalar(name, *tensor);
  if (!tensor->is_contiguous()) tensor = torch::stable::contiguous(*tensor);
  result.data = tensor->data_ptr();
  return result;
}

// A new tensor that is empty unless wanted.
inline Tensor maybe_new(bool wanted, const Tensor& like, const int64_t* sizes, int64_t dims, int32_t dtype) {
  constexpr int64_t none = 0;
  return wanted ? new_tensor(like, sizes, dims, dtype) : new_tensor(like, &none, 1, dtype);
}

struct Inputs {
  const MaybeTensor& gate;
  const MaybeTensor& gate_temb;
  const MaybeTensor& scale;
  const MaybeTensor& scale_temb;
  const MaybeTensor& shift;
  const MaybeTensor& shift_temb;
  MaybeTensor weight;
  MaybeTensor bias;

  Modulators modulators(const TensorContract& contract, const Tensor& x) const {
    return {{contract, "gate", gate, gate_temb, x},
            {contract, "scale", scale, scale_temb, x},
            {contract, "shift", shift, shift_temb, x}};
  }
};

}  // namespace kernelworks::adaln
