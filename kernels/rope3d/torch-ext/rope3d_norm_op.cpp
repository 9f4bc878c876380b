// SPDX-License-Identifier: Apache-2.0
// The rotation with an RMSNorm in front, forward and backward: from checked tensors to Params and the backend.
#include <cstdlib>

#include "rope3d_inputs.h"

namespace kernelworks::rope3d {
namespace {

#if defined(CUDA_KERNEL)
void run_backward(const char* op, const Tensor& q, const BackwardParams& params) {
  on_stream_of(op, q, [&](void* stream) { return backward_cuda(params, stream); });
}

int32_t count_partial_rows(const Tensor& q, const BackwardParams& params) {
  const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
  return partial_rows_cuda(params.problem, params.q.heads > params.k.heads ? params.q.heads : params.k.heads);
}
#else
void reduce(const BackwardParams& params, const BackwardTensor& tensor, int64_t width) {
  if (tensor.grad_weight == nullptr) return;
  in_parallel(width, params.partial_rows,
              [&](int64_t begin, int64_t end) { reduce_partials_cpu(params, tensor, begin, end); });
}

void run_backward(const char*, const Tensor&, const BackwardParams& params) {
  const Problem& problem = params.problem;
  const int64_t tokens = problem.batch * problem.tokens;
  const int64_t width = static_cast<int64_t>(params.q.heads + params.k.heads) * problem.width;
  if (params.q.grad_weight == nullptr && params.k.grad_weight == nullptr) {
    in_parallel(tokens, width, [&](int64_t begin, int64_t end) { backward_cpu(params, begin, end, 0); });
    return;
  }
  in_parts(tokens, params.partial_rows, width,
           [&](int64_t begin, int64_t end, int32_t part) { backward_cpu(params, begin, end, part); });
  const bool full = problem.norm == Norm::full;
  reduce(params, params.q, full ? params.q.heads * static_cast<int64_t>(problem.width) : problem.width);
  reduce(params, params.k, full ? params.k.heads * static_cast<int64_t>(problem.width) : problem.width);
}

int32_t count_partial_rows(const Tensor&, const BackwardParams& params) { return partial_rows_cpu(params.problem); }
#endif

Problem norm_problem_of(const TensorContract& contract, const Tensor& q, const MaybeTensor& k, bool full,
                        bool interleaved) {
  Problem problem = problem_of(contract, q, k, interleaved);
  problem.norm = full ? Norm::full : Norm::head;
  return problem;
}

constexpr int64_t granule = 16;  // bytes

Tensor copy_of(const Tensor& tensor) {
  Tensor copy = new_like(tensor);
  return torch::stable::copy_(copy, tensor);
}

bool starts_on_granule(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data_ptr()) % granule == 0; }

// On a GPU the sum of a row is added up in one order, by threads that each have 16 bytes of it. A tensor whose rows
// could be cut so, but for where they lie, is copied to where they can; the bits must not depend on that. So is one
// whose heads are too far apart for 32 bits.
Tensor on_granules(const Tensor& tensor) {
  const int64_t bytes = tensor.element_size();
  if (!cuda_build || tensor.numel() == 0 || tensor.size(3) * bytes % granule != 0) return tensor;
  bool whole = starts_on_granule(tensor) && tensor.stride(3) == 1;
  for (int64_t d = 0; d < 3; ++d) whole = whole && (tensor.size(d) == 1 || tensor.stride(d) * bytes % granule == 0);
  whole = whole && std::abs(tensor.size(2) * tensor.stride(2)) < INT32_MAX - tensor.size(3);
  return whole ? tensor : copy_of(tensor);
}

Angles shared_angles(const TensorContract& contract, AngleTensors& tensors, Problem& problem) {
  if (tensors.own_heads() > 0) {
    contract.refuse_value("inv_freq has shape " + shape_text(*tensors.inv_freq) + ", wanted (pairs,): with a norm all "
                          "heads turn alike");
  }
  return tensors.layout(contract, problem);
}

int64_t normed_together(const Problem& problem, const Tensor& tensor) {
  return problem.norm == Norm::full ? tensor.size(2) * tensor.size(3) : tensor.size(3);
}

// Replaces `weight` by a contiguous copy where it is strided.
Weight weight_of(const TensorContract& contract, const Problem& problem, const char* name, const Tensor& tensor,
                 MaybeTensor& weight) {
  if (!weight) return {};
  contract.same_device(name, *weight);
  const int64_t wanted = normed_together(problem, tensor);
  if (weight->dim() != 1 || weight->size(0) != wanted) {
    contract.refuse_value(name + (" has shape " + shape_text(*weight)) + ", wanted (" + text(wanted) + ",), " +
                          (problem.norm == Norm::full ? "heads times the width of one" : "the width of a head"));
  }
  Weight result;
  result.scalar = contract.scalar(name, *weight);
  weight = torch::stable::contiguous(*weight);
  if (cuda_build && !starts_on_granule(*weight)) weight = copy_of(*weight);
  result.data = weight->data_ptr();
  return result;
}

Tensor new_rstd(const Problem& problem, const Tensor& tensor) {
  return new_tensor(tensor, tensor.sizes().data(), problem.norm == Norm::full ? 2 : 3,
                    accumulator_dtype(problem.scalar));
}

FourTensors forward(const char* op, Tensor q, MaybeTensor k, MaybeTensor q_weight, MaybeTensor k_weight,
                    AngleTensors tensors, double eps, bool full, bool interleaved, bool want_rstd) {
  const Tensor lead = q;
  const TensorContract contract(op, lead, cuda_build, "q");
  ForwardParams params;
  params.problem = norm_problem_of(contract, q, k, full, interleaved);
  contract.finite("eps", eps, false);
  params.problem.eps = eps;
  params.angles = shared_angles(contract, tensors, params.problem);
  if (k_weight && !k) contract.refuse_value("k_weight is given, and there is no k");
  const Weight of_q = weight_of(contract, params.problem, "q_weight", q, q_weight);
  const Weight of_k = k ? weight_of(contract, params.problem, "k_weight", *k, k_weight) : Weight{};

  const Tensor q_out = new_like(q);
  const Tensor k_out = k ? new_like(*k) : nothing_like(q);
  Tensor q_rstd = want_rstd ? new_rstd(params.problem, q) : nothing_like(q);
  Tensor k_rstd = want_rstd && k ? new_rstd(params.problem, *k) : nothing_like(q);
  if (is_empty(params.problem, q, k)) {
    return {q_out, k_out, torch::stable::zero_(q_rstd), torch::stable::zero_(k_rstd)};
  }
  q = on_granules(q);
  params.q = forward_tensor(q, q_out);
  params.q.weight = of_q;
  if (want_rstd) params.q.rstd = q_rstd.data_ptr();
  if (k) {
    k = on_granules(*k);
    params.k = forward_tensor(*k, k_out);
    params.k.weight = of_k;
    if (want_rstd) params.k.rstd = k_rstd.data_ptr();
  }
  run_forward(op, q, params);
  return {q_out, k_out, q_rstd, k_rstd};
}

// One of q and k in a backward call: what comes in, and what goes out.
struct Side {
  const char* name;
  const char* grad_name;
  const char* weight_name;
  const char* rstd_name;
  Tensor x;
  Tensor grad;
  Tensor rstd;
  MaybeTensor weight;
  bool wants_weight;
  Tensor grad_x;
  Tensor grad_weight;
  MaybeTensor partials;

  void check(const TensorContract& contract, const Problem& problem) {
    contract.same_device(grad_name, grad);
    if (grad.scalar_type() != x.scalar_type()) {
      contract.refuse("TypeError",
                      grad_name + (" is " + dtype_text(grad)) + ", wanted " + dtype_text(x) + " as " + name);
    }
    if (shape_text(grad) != shape_text(x)) {
      contract.refuse_value(grad_name + (" has shape " + shape_text(grad)) + ", wanted " + shape_text(x) + " as " +
                            name);
    }
    if (wants_weight && !weight) contract.refuse_value(weight_name + std::string("_grad is set, and there is none"));
    contract.same_device(rstd_name, rstd);
    const int64_t count = problem.batch * problem.tokens * (problem.norm == Norm::full ? 1 : x.size(2));
    if (rstd.numel() != count || dtype_of(rstd) != accumulator_dtype(problem.scalar)) {
      contract.refuse_value(rstd_name + (" is " + dtype_text(rstd)) + " of shape " + shape_text(rstd) +
                            ", wanted what the forward op returned");
    }
  }

  BackwardTensor layout(const TensorContract& contract, const Problem& problem) {
    BackwardTensor result;
    result.heads = static_cast<int32_t>(x.size(2));
    result.weight = weight_of(contract, problem, weight_name, x, weight);
    x = on_granules(x);
    grad = on_granules(grad);
    result.x_strides = strides_of(x);
    result.x = x.data_ptr();
    result.grad_strides = strides_of(grad);
    result.grad = grad.data_ptr();
    rstd = torch::stable::contiguous(rstd);
    result.rstd = rstd.data_ptr();
    result.grad_x_strides = strides_of(grad_x);
    result.grad_x = grad_x.data_ptr();
    return result;
  }

  // Once it is known into how many parts the tokens are split.
  void add_partials(const Problem& problem, int32_t rows, BackwardTensor& result) {
    if (!wants_weight) return;
    if (x.numel() == 0) {  // no row of it, beside rows of the other
      grad_weight = torch::stable::zero_(grad_weight);
      return;
    }
    const int64_t sizes[] = {rows, normed_together(problem, x)};
    partials = new_tensor(x, sizes, 2, accumulator_dtype(problem.scalar));
    result.partials = partials->data_ptr();
    result.grad_weight = grad_weight.data_ptr();
  }
};

Side side_of(const char* const names[4], const Tensor& x, const Tensor& grad, const Tensor& rstd,
             const MaybeTensor& weight, bool wants_weight) {
  Tensor grad_weight = wants_weight && weight ? new_like(*weight) : nothing_like(weight ? *weight : x);
  return {names[0], names[1], names[2], names[3], x, grad, rstd, weight, wants_weight, new_like(x), grad_weight, {}};
}

}  // namespace

TwoTensors rms_norm_rope3d(const Tensor& q, const MaybeTensor& k, const MaybeTensor& q_weight,
                           const MaybeTensor& k_weight, const MaybeTensor& coords, const MaybeTensor& inv_freq,
                           const MaybeTensor& axis, const MaybeTensor& cos, const MaybeTensor& sin, double eps,
                           bool full, bool interleaved) {
  const FourTensors all = forward("rms_norm_rope3d", q, k, q_weight, k_weight, {coords, inv_freq, axis, cos, sin}, eps,
                                  full, interleaved, false);
  return {std::get<0>(all), std::get<1>(all)};
}

FourTensors rms_norm_rope3d_train(const Tensor& q, const MaybeTensor& k, const MaybeTensor& q_weight,
                                  const MaybeTensor& k_weight, const MaybeTensor& coords,
                                  const MaybeTensor& inv_freq, const MaybeTensor& axis, const MaybeTensor& cos,
                                  const MaybeTensor& sin, double eps, bool full, bool interleaved) {
  return forward("rms_norm_rope3d", q, k, q_weight, k_weight, {coords, inv_freq, axis, cos, sin}, eps, full,
                 interleaved, true);
}

FourTensors rms_norm_rope3d_backward(const Tensor& grad_q, const MaybeTensor& grad_k, const Tensor& q,
                                     const MaybeTensor& k, const MaybeTensor& q_weight, const MaybeTensor& k_weight,
                                     const Tensor& q_rstd, const MaybeTensor& k_rstd, const MaybeTensor& coords,
                                     const MaybeTensor& inv_freq, const MaybeTensor& axis, const MaybeTensor& cos,
                                     const MaybeTensor& sin, bool full, bool interleaved, bool q_weight_grad,
                                     bool k_weight_grad) {
  constexpr const char* op = "rms_norm_rope3d_backward";
  constexpr const char* q_names[] = {"q", "grad_q", "q_weight", "q_rstd"};
  constexpr const char* k_names[] = {"k", "grad_k", "k_weight", "k_rstd"};
  const TensorContract contract(op, q, cuda_build, "q");
  AngleTensors tensors{coords, inv_freq, axis, cos, sin};
  BackwardParams params;
  params.problem = norm_problem_of(contract, q, k, full, interleaved);
  params.angles = shared_angles(contract, tensors, params.problem);
  if (k.has_value() != grad_k.has_value() || k.has_value() != k_rstd.has_value()) {
    contract.refuse_value("k, grad_k and k_rstd: wanted all of them, or none");
  }
  Side of_q = side_of(q_names, q, grad_q, q_rstd, q_weight, q_weight_grad);
  of_q.check(contract, params.problem);
  std::optional<Side> of_k;
  if (k) {
    of_k = side_of(k_names, *k, *grad_k, *k_rstd, k_weight, k_weight_grad);
    of_k->check(contract, params.problem);
  }
  params.q = of_q.layout(contract, params.problem);
  if (of_k) params.k = of_k->layout(contract, params.problem);
  const Tensor grad_k_out = of_k ? of_k->grad_x : nothing_like(q);
  Tensor k_weight_out = of_k ? of_k->grad_weight : nothing_like(q);
  if (is_empty(params.problem, q, k)) {
    torch::stable::zero_(of_q.grad_weight);
    torch::stable::zero_(k_weight_out);
    return {of_q.grad_x, grad_k_out, of_q.grad_weight, k_weight_out};
  }
  params.partial_rows = count_partial_rows(q, params);
  of_q.add_partials(params.problem, params.partial_rows, params.q);
  if (of_k) of_k->add_partials(params.problem, params.partial_rows, params.k);
  run_backward(op, q, params);
  return {of_q.grad_x, grad_k_out, of_q.grad_weight, k_weight_out};
}

}  // namespace kernelworks::rope3d
