// SPDX-License-Identifier: Apache-2.0
// The op of backward: from checked tensors to one Params, and one call of the backend.
#include "adaln_inputs.h"
#include "torch_binding.h"
#include "vendor/backend.h"

namespace kernelworks::adaln {
namespace {

constexpr const char* op = "ada_norm_backward";

#if defined(CUDA_KERNEL)
void run_backward(const Tensor& lead, const BackwardParams& params) {
  on_stream_of(op, lead, [&](void* stream) { return backward_cuda(params, stream); });
}

int32_t count_parts(const Tensor& lead, const BackwardParams& params) {
  const torch::stable::accelerator::DeviceGuard guard(lead.get_device_index());
  return parts_cuda(params);
}

bool needs_partials(const BackwardParams& params) { return needs_partials_cuda(params); }
#else
void run_backward(const Tensor&, const BackwardParams& params) {
  const Problem& problem = params.problem;
  const int64_t items = problem.groups() * params.parts;
  in_parallel(items, problem.rows / items * problem.width,
              [&](int64_t begin, int64_t end) { backward_cpu(params, begin, end); });
  if (!params.wants_sums()) return;
  in_parallel(problem.width, items * params.sums_each(),
              [&](int64_t begin, int64_t end) { reduce_partials_cpu(params, begin, end); });
}

int32_t count_parts(const Tensor&, const BackwardParams& params) { return parts_cpu(params.problem); }

bool needs_partials(const BackwardParams&) { return true; }
#endif

struct Gradients {
  Tensor grad_v;
  Tensor grad_x;
  Tensor grad_shift;
  Tensor grad_scale;
  Tensor grad_gate;
  Tensor grad_weight;
  Tensor grad_bias;

  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> all() const {
    return {grad_v, grad_x, grad_shift, grad_scale, grad_gate, grad_weight, grad_bias};
  }
};

// The tensors with rows of their own, and the statistics of these; each replaced by a copy where it must be.
struct RowInputs {
  MaybeTensor grad;
  MaybeTensor grad_residual;
  MaybeTensor v;
  MaybeTensor x;
  MaybeTensor mean;
  MaybeTensor rstd;
};

void check_statistic(const TensorContract& contract, const char* name, const MaybeTensor& tensor, Scalar scalar) {
  if (!tensor) contract.refuse_value(std::string(name) + " is None, wanted what the forward op returned");
  contract.same_device(name, *tensor);
  if (tensor->numel() == contract.rows() && dtype_of(*tensor) == accumulator_dtype(scalar)) return;
  contract.refuse_value(name + (" is " + dtype_text(*tensor)) + " of shape " + shape_text(*tensor) +
                        ", wanted what the forward op returned");
}

void check_like_lead(const TensorContract& contract, const char* name, const MaybeTensor& tensor, bool needed) {
  if (tensor) return contract.like_lead(name, *tensor);
  if (needed) contract.refuse_value(std::string(name) + " is None, and its gradients need it");
}

// Results of the shapes that `params` and what is wanted ask for.
Gradients new_gradients(const Tensor& lead, const Problem& problem, const Modulators& modulators, const Inputs& in,
                       bool has_grad, bool modulator_grads, bool affine_grads) {
  std::vector<int64_t> group_sizes(lead.sizes().begin(), lead.sizes().end());
  const int64_t outer = lead.dim() - 1;
  for (int64_t d = modulators.leading(); d < outer; ++d) group_sizes[d] = 1;
  int64_t elements = 1;
  for (const int64_t size : group_sizes) elements *= size;

  const auto of_group = [&](const ModulatorArgument& modulator, bool wanted) {
    return maybe_new(wanted && modulator, lead, group_sizes.data(), lead.dim(),
                     modulator.grad_dtype(elements, problem.scalar));
  };
  const auto of_columns = [&](const MaybeTensor& columns) {
    const int64_t width = problem.width;
    return maybe_new(affine_grads && has_grad && columns, lead, &width, 1, dtype_of(columns ? *columns : lead));
  };
  const int64_t* sizes = lead.sizes().data();
  return {maybe_new(has_grad, lead, sizes, lead.dim(), dtype_of(lead)),
          maybe_new(static_cast<bool>(modulators.gate), lead, sizes, lead.dim(), dtype_of(lead)),
          of_group(modulators.shift, modulator_grads && has_grad),
          of_group(modulators.scale, modulator_grads && has_grad),
          of_group(modulators.gate, modulator_grads),
          of_columns(in.weight),
          of_columns(in.bias)};
}

void check_rows(const TensorContract& contract, const RowInputs& in, const Problem& problem, bool gate_grad) {
  const bool has_grad = in.grad.has_value();
  check_like_lead(contract, "grad_residual", in.grad_residual, false);
  check_like_lead(contract, "v", in.v, has_grad);
  check_like_lead(contract, "x", in.x, gate_grad);
  if (has_grad && problem.norm == Norm::layer) check_statistic(contract, "mean", in.mean, problem.scalar);
  if (has_grad) check_statistic(contract, "rstd", in.rstd, problem.scalar);
}

void read_rows(BackwardParams& params, RowInputs& in, bool gate_grad) {
  const auto contiguous = [](MaybeTensor& tensor) -> const void* {
    tensor = torch::stable::contiguous(*tensor);
    return tensor->data_ptr();
  };
  if (in.grad_residual) params.grad_residual = rows_of(*in.grad_residual);
  if (gate_grad) params.x = rows_of(*in.x);
  if (!in.grad) return;
  params.grad = rows_of(*in.grad);
  params.v = rows_of(*in.v);
  if (params.problem.norm == Norm::layer) params.mean = contiguous(in.mean);
  params.rstd = contiguous(in.rstd);
}

void write_gradients(const TensorContract& contract, BackwardParams& params, const Gradients& out) {
  // Of size 0: not wanted.
  const auto data = [](const Tensor& tensor) { return tensor.numel() == 0 ? nullptr : tensor.data_ptr(); };
  const auto sum = [&](const Tensor& tensor) { return Sum{data(tensor), contract.scalar("a gradient", tensor)}; };
  params.grad_v = data(out.grad_v);
  params.grad_x = data(out.grad_x);
  params.grad_shift = sum(out.grad_shift);
  params.grad_scale = sum(out.grad_scale);
  params.grad_gate = sum(out.grad_gate);
  params.grad_weight = sum(out.grad_weight);
  params.grad_bias = sum(out.grad_bias);
}

// Scratch for the sums; it must live until the backend was called.
struct Scratch {
  MaybeTensor partials;
  MaybeTensor affine;
};

Scratch new_scratch(const Tensor& lead, BackwardParams& params) {
  Scratch scratch;
  const Problem& problem = params.problem;
  params.parts = count_parts(lead, params);
  if (!params.wants_sums()) return scratch;
  const int32_t dtype = accumulator_dtype(problem.scalar);
  if (needs_partials(params)) {
    const int64_t partial_sizes[] = {problem.groups(), params.parts, params.sums_each(), problem.width};
    scratch.partials = new_tensor(lead, partial_sizes, 4, dtype);
    params.partials = scratch.partials->data_ptr();
  }
  if (cuda_build && (params.grad_weight.data || params.grad_bias.data)) {
    const int64_t affine_sizes[] = {2, problem.groups(), problem.width};
    scratch.affine = new_tensor(lead, affine_sizes, 3, dtype);
    params.affine = scratch.affine->data_ptr();
  }
  return scratch;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> ada_norm_backward(
    const MaybeTensor& grad, const MaybeTensor& grad_residual, const MaybeTensor& v, const MaybeTensor& x,
    const MaybeTensor& gate, const MaybeTensor& gate_temb, const MaybeTensor& scale, const MaybeTensor& scale_temb,
    const MaybeTensor& shift, const MaybeTensor& shift_temb, const MaybeTensor& weight, const MaybeTensor& bias,
    const MaybeTensor& mean, const MaybeTensor& rstd, bool layer, bool modulator_grads, bool affine_grads) {
  if (!grad && !grad_residual) throw std::runtime_error("ValueError: ada_norm_backward: there is no gradient");
  const Tensor lead = grad ? *grad : *grad_residual;
  const TensorContract contract(op, lead, cuda_build);
  RowInputs rows{grad, grad_residual, v, x, mean, rstd};
  Inputs in{gate, gate_temb, scale, scale_temb, shift, shift_temb, weight, bias};
  Modulators modulators = in.modulators(contract, lead);
  BackwardParams params;
  params.problem = problem_of(contract, lead, modulators, layer);
  params.weight = columns_of(contract, "weight", in.weight);
  params.bias = columns_of(contract, "bias", in.bias);
  const bool gate_grad = modulators.gate && modulator_grads;
  check_rows(contract, rows, params.problem, gate_grad);

  Gradients out = new_gradients(lead, params.problem, modulators, in, grad.has_value(), modulator_grads, affine_grads);
  if (params.problem.rows == 0 || params.problem.width == 0) {
    for (Tensor* sum : {&out.grad_shift, &out.grad_scale, &out.grad_gate, &out.grad_weight, &out.grad_bias}) {
      torch::stable::zero_(*sum);
    }
    return out.all();
  }
  write_gradients(contract, params, out);
  read_rows(params, rows, gate_grad);
  const int64_t leading = modulators.leading();
  params.gate = modulators.gate.modulator(lead, leading);
  params.scale = modulators.scale.modulator(lead, leading);
  const Scratch scratch = new_scratch(lead, params);
  run_backward(lead, params);
  return out.all();
}

}  // namespace kernelworks::adaln
