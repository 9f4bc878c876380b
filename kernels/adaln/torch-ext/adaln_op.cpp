// SPDX-License-Identifier: Apache-2.0
// The ops of forward: from checked tensors to one Params, and one call of the backend.
#include "adaln_inputs.h"
#include "torch_binding.h"
#include "vendor/backend.h"

namespace kernelworks::adaln {
namespace {

#if defined(CUDA_KERNEL)
void run_forward(const char* op, const Tensor& x, const ForwardParams& params) {
  on_stream_of(op, x, [&](void* stream) { return forward_cuda(params, stream); });
}

int64_t folded_rows(const ForwardParams& params) { return folded_rows_cuda(params); }
#else
void run_forward(const char*, const Tensor&, const ForwardParams& params) {
  in_parallel(params.problem.rows, params.problem.width,
              [&](int64_t begin, int64_t end) { forward_cpu(params, begin, end); });
}

int64_t folded_rows(const ForwardParams&) { return 0; }
#endif

struct Wanted {
  bool y;
  bool statistics;
};

struct Forward {
  MaybeTensor y;
  MaybeTensor residual_out;
  MaybeTensor mean;
  MaybeTensor rstd;
};

Forward forward(const char* op, Tensor x, MaybeTensor residual, Inputs in, double eps, bool layer, Wanted wanted) {
  const Tensor lead = x;
  const TensorContract contract(op, lead, cuda_build);
  contract.scalar("x", x);
  if (residual) contract.like_lead("residual", *residual);
  Modulators modulators = in.modulators(contract, x);
  ForwardParams params;
  params.problem = problem_of(contract, x, modulators, layer);
  params.weight = columns_of(contract, "weight", in.weight);
  params.bias = columns_of(contract, "bias", in.bias);
  contract.finite("eps", eps, false);
  params.eps = eps;

  const int64_t* sizes = x.sizes().data();
  const int32_t statistic = accumulator_dtype(params.problem.scalar);
  Forward result;
  if (wanted.y) result.y = new_tensor(x, sizes, x.dim(), dtype_of(x));
  if (residual) result.residual_out = new_tensor(x, sizes, x.dim(), dtype_of(x));
  if (wanted.statistics) {
    result.mean = maybe_new(layer, x, sizes, x.dim() - 1, statistic);
    result.rstd = new_tensor(x, sizes, x.dim() - 1, statistic);
  }
  if (params.problem.rows == 0 || params.problem.width == 0) {
    if (result.mean) torch::stable::zero_(*result.mean);
    if (result.rstd) torch::stable::zero_(*result.rstd);
    return result;
  }
  if (result.y) params.y = result.y->data_ptr();
  if (result.residual_out) params.residual_out = result.residual_out->data_ptr();
  if (result.mean && layer) params.mean = result.mean->data_ptr();
  if (result.rstd) params.rstd = result.rstd->data_ptr();

  const int64_t leading = modulators.leading();
  params.gate = modulators.gate.modulator(lead, leading);
  params.scale = modulators.scale.modulator(lead, leading);
  params.shift = modulators.shift.modulator(lead, leading);
  params.x = rows_of(x);
  if (residual) params.residual = rows_of(*residual);
  MaybeTensor folded;  // lives until the backend was called
  if (const int64_t count = folded_rows(params)) {
    const int64_t folded_sizes[] = {count, params.problem.width};
    folded = new_tensor(lead, folded_sizes, 2, statistic);
    params.folded = folded->data_ptr();
  }
  run_forward(op, lead, params);
  return result;
}

}  // namespace

Tensor ada_norm(const Tensor& x, const MaybeTensor& scale, const MaybeTensor& scale_temb, const MaybeTensor& shift,
                const MaybeTensor& shift_temb, const MaybeTensor& weight, const MaybeTensor& bias, double eps,
                bool layer) {
  const Inputs in{{}, {}, scale, scale_temb, shift, shift_temb, weight, bias};
  return forward("ada_norm", x, {}, in, eps, layer, {true, false}).y.value();
}

std::tuple<Tensor, Tensor, Tensor> ada_norm_train(const Tensor& x, const MaybeTensor& scale,
                                                  const MaybeTensor& scale_temb, const MaybeTensor& shift,
                                                  const MaybeTensor& shift_temb, const MaybeTensor& weight,
                                                  const MaybeTensor& bias, double eps, bool layer) {
  const Inputs in{{}, {}, scale, scale_temb, shift, shift_temb, weight, bias};
  const Forward result = forward("ada_norm", x, {}, in, eps, layer, {true, true});
  return {*result.y, *result.mean, *result.rstd};
}

Tensor gate_residual(const Tensor& residual, const Tensor& x, const MaybeTensor& gate, const MaybeTensor& gate_temb) {
  const Inputs in{gate, gate_temb, {}, {}, {}, {}, {}, {}};
  return forward("gate_residual", x, residual, in, 0, false, {false, false}).residual_out.value();
}

std::tuple<Tensor, Tensor> gate_residual_ada_norm(const Tensor& residual, const Tensor& x, const MaybeTensor& gate,
                                                  const MaybeTensor& gate_temb, const MaybeTensor& scale,
                                                  const MaybeTensor& scale_temb, const MaybeTensor& shift,
                                                  const MaybeTensor& shift_temb, const MaybeTensor& weight,
                                                  const MaybeTensor& bias, double eps, bool layer) {
  const Inputs in{gate, gate_temb, scale, scale_temb, shift, shift_temb, weight, bias};
  const Forward result = forward("gate_residual_ada_norm", x, residual, in, eps, layer, {true, false});
  return {*result.y, *result.residual_out};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gate_residual_ada_norm_train(
    const Tensor& residual, const Tensor& x, const MaybeTensor& gate, const MaybeTensor& gate_temb,
    const MaybeTensor& scale, const MaybeTensor& scale_temb, const MaybeTensor& shift, const MaybeTensor& shift_temb,
    const MaybeTensor& weight, const MaybeTensor& bias, double eps, bool layer) {
  const Inputs in{gate, gate_temb, scale, scale_temb, shift, shift_temb, weight, bias};
  const Forward result = forward("gate_residual_ada_norm", x, residual, in, eps, layer, {true, true});
  return {*result.y, *result.residual_out, *result.mean, *result.rstd};
}

}  // namespace kernelworks::adaln
