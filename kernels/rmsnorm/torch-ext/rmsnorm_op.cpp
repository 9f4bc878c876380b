// SPDX-License-Identifier: Apache-2.0
// From checked tensors to one Params, and one call of the backend.
#include "../kernel_src/rmsnorm.h"

#include "torch_binding.h"
#include "vendor/backend.h"

namespace kernelworks::rmsnorm {
namespace {

#if defined(CUDA_KERNEL)
void run_forward(const char* op, const Tensor& x, const ForwardParams& params) {
  on_stream_of(op, x, [&](void* stream) { return forward_cuda(params, stream); });
}

void run_backward(const char* op, const Tensor& x, const BackwardParams& params) {
  on_stream_of(op, x, [&](void* stream) { return backward_cuda(params, stream); });
}

int32_t count_partial_rows(const Tensor& x, const Problem& problem) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  return partial_rows_cuda(problem);
}
#else
void run_forward(const char*, const Tensor&, const ForwardParams& params) {
  in_parallel(params.problem.rows, params.problem.width,
              [&](int64_t begin, int64_t end) { forward_cpu(params, begin, end); });
}

void run_backward(const char*, const Tensor&, const BackwardParams& params) {
  const int64_t rows = params.problem.rows, width = params.problem.width;
  if (params.grad_weight == nullptr) {
    in_parallel(rows, width, [&](int64_t begin, int64_t end) { backward_cpu(params, begin, end, 0); });
    return;
  }
  in_parts(rows, params.partial_rows, width,
           [&](int64_t begin, int64_t end, int32_t part) { backward_cpu(params, begin, end, part); });
  in_parallel(width, params.partial_rows,
              [&](int64_t begin, int64_t end) { reduce_partials_cpu(params, begin, end); });
}

int32_t count_partial_rows(const Tensor&, const Problem& problem) { return partial_rows_cpu(problem); }
#endif

Problem problem_of(const TensorContract& contract, const Tensor& x, double weight_offset, bool round_before_weight) {
  contract.finite("weight_offset", weight_offset, true);
  Problem problem;
  problem.scalar = contract.scalar("x", x);
  problem.rows = contract.rows();
  problem.width = static_cast<int32_t>(contract.width());
  problem.weight_offset = weight_offset;
  problem.round_before_weight = round_before_weight;
  return problem;
}

// Replaces `weight` by a contiguous copy where it is strided.
Weight weight_of(const TensorContract& contract, MaybeTensor& weight) {
  if (!weight) return {};
  contract.per_column("weight", *weight);
  Weight result;
  result.scalar = contract.scalar("weight", *weight);
  if (!weight->is_contiguous()) weight = torch::stable::contiguous(*weight);
  result.data = weight->data_ptr();
  return result;
}

struct Forward {
  Tensor y;
  MaybeTensor residual_out;
  MaybeTensor rstd;
};

Forward forward(const char* op, Tensor x, MaybeTensor residual, MaybeTensor weight, double eps,
                double weight_offset, bool round_before_weight, bool want_rstd) {
  const TensorContract contract(op, x, cuda_build);
  ForwardParams params;
  params.problem = problem_of(contract, x, weight_offset, round_before_weight);
  contract.finite("eps", eps, false);
  params.eps = eps;
  if (residual) contract.like_lead("residual", *residual);
  params.weight = weight_of(contract, weight);

  const int64_t* sizes = x.sizes().data();
  Forward result{new_tensor(x, sizes, x.dim(), dtype_of(x)), {}, {}};
  params.y = result.y.data_ptr();
  if (residual) {
    result.residual_out = new_tensor(x, sizes, x.dim(), dtype_of(x));
    params.residual_out = result.residual_out->data_ptr();
  }
  if (want_rstd) {
    result.rstd = new_tensor(x, sizes, x.dim() - 1, accumulator_dtype(params.problem.scalar));
    params.rstd = result.rstd->data_ptr();
  }
  if (params.problem.rows == 0 || params.problem.width == 0) {
    if (result.rstd) torch::stable::zero_(*result.rstd);
    return result;
  }
  params.x = rows_of(x);
  if (residual) params.residual = rows_of(*residual);
  run_forward(op, x, params);
  return result;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const MaybeTensor& weight, double eps, double weight_offset,
                bool round_before_weight) {
  return forward("rms_norm", x, {}, weight, eps, weight_offset, round_before_weight, false).y;
}

std::tuple<Tensor, Tensor> rms_norm_train(const Tensor& x, const MaybeTensor& weight, double eps,
                                          double weight_offset, bool round_before_weight) {
  const Forward result = forward("rms_norm", x, {}, weight, eps, weight_offset, round_before_weight, true);
  return {result.y, *result.rstd};
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const MaybeTensor& weight,
                                        double eps, double weight_offset, bool round_before_weight) {
  const Forward result =
      forward("add_rms_norm", x, residual, weight, eps, weight_offset, round_before_weight, false);
  return {result.y, *result.residual_out};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_train(const Tensor& x, const Tensor& residual,
                                                      const MaybeTensor& weight, double eps,
                                                      double weight_offset, bool round_before_weight) {
  const Forward result =
      forward("add_rms_norm", x, residual, weight, eps, weight_offset, round_before_weight, true);
  return {result.y, *result.residual_out, *result.rstd};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_in, const MaybeTensor& grad_residual_in,
                                             const Tensor& x_in, const MaybeTensor& weight_in,
                                             const Tensor& rstd_in, double weight_offset,
                                             bool round_before_weight, bool weight_grad) {
  constexpr const char* op = "rms_norm_backward";
  Tensor x = x_in, grad = grad_in;
  MaybeTensor grad_residual = grad_residual_in, weight = weight_in;
  const TensorContract contract(op, x_in, cuda_build);
  BackwardParams params;
  params.problem = problem_of(contract, x, weight_offset, round_before_weight);
  contract.like_lead("grad", grad);
  if (grad_residual) contract.like_lead("grad_residual", *grad_residual);
  params.weight = weight_of(contract, weight);
  if (weight_grad && !weight) contract.refuse_value("weight_grad is set, and there is no weight");
  contract.same_device("rstd", rstd_in);
  if (rstd_in.numel() != contract.rows() || dtype_of(rstd_in) != accumulator_dtype(params.problem.scalar)) {
    contract.refuse_value("rstd is " + dtype_text(rstd_in) + " of shape " + shape_text(rstd_in) +
                          ", wanted what the forward op returned");
  }

  const int64_t width = weight_grad ? contract.width() : 0;
  Tensor grad_x = new_tensor(x, x.sizes().data(), x.dim(), dtype_of(x));
  Tensor grad_weight = new_tensor(x, &width, 1, weight ? dtype_of(*weight) : dtype_of(x));
  if (params.problem.rows == 0 || params.problem.width == 0) {
    torch::stable::zero_(grad_weight);
    return {grad_x, grad_weight};
  }

  const Tensor rstd = torch::stable::contiguous(rstd_in);
  params.rstd = rstd.data_ptr();
  params.x = rows_of(x);
  params.grad = rows_of(grad);
  if (grad_residual) params.grad_residual = rows_of(*grad_residual);
  params.grad_x = grad_x.data_ptr();
  params.partial_rows = count_partial_rows(x, params.problem);
  MaybeTensor partials;
  if (weight_grad) {
    const int64_t sizes[] = {params.partial_rows, contract.width()};
    partials = new_tensor(x, sizes, 2, accumulator_dtype(params.problem.scalar));
    params.partials = partials->data_ptr();
    params.grad_weight = grad_weight.data_ptr();
  }
  run_backward(op, x, params);
  return {grad_x, grad_weight};
}

}  // namespace kernelworks::rmsnorm
