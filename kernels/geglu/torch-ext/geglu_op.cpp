// SPDX-License-Identifier: Apache-2.0
// From checked tensors to one Params, and one call of the backend.
#include "../kernel_src/geglu.h"

#include <vector>

#include "torch_binding.h"
#include "vendor/backend.h"

namespace kernelworks::geglu {
namespace {

#if defined(CUDA_KERNEL)
void run_forward(const char* op, const Tensor& lead, const ForwardParams& params) {
  on_stream_of(op, lead, [&](void* stream) { return forward_cuda(params, stream); });
}

void run_backward(const char* op, const Tensor& lead, const BackwardParams& params) {
  on_stream_of(op, lead, [&](void* stream) { return backward_cuda(params, stream); });
}
#else
// Splits rows, and wide ones by their columns too, so that one row keeps every thread busy:
// body(begin, end, first, last).
template <class Body>
void in_blocks(const Problem& problem, const Body& body) {
  constexpr int64_t widest = 32768;
  const int64_t width = problem.width;
  if (width <= widest) {
    in_parallel(problem.rows, width, [&](int64_t begin, int64_t end) { body(begin, end, 0, problem.width); });
    return;
  }
  const int64_t blocks = (width + widest - 1) / widest;
  in_parallel(problem.rows * blocks, widest, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block / blocks, first = block % blocks * widest;
      const int64_t last = first + widest < width ? first + widest : width;
      body(row, row + 1, static_cast<int32_t>(first), static_cast<int32_t>(last));
    }
  });
}

void run_forward(const char*, const Tensor&, const ForwardParams& params) {
  in_blocks(params.problem, [&](int64_t begin, int64_t end, int32_t first, int32_t last) {
    forward_cpu(params, begin, end, first, last);
  });
}

void run_backward(const char*, const Tensor&, const BackwardParams& params) {
  in_blocks(params.problem, [&](int64_t begin, int64_t end, int32_t first, int32_t last) {
    backward_cpu(params, begin, end, first, last);
  });
}
#endif

bool is_empty(const Problem& problem) { return problem.rows == 0 || problem.width == 0; }

Problem problem_of(const TensorContract& contract, const char* name, const Tensor& lead, int64_t width, bool tanh) {
  Problem problem;
  problem.scalar = contract.scalar(name, lead);
  problem.rows = contract.rows();
  problem.width = static_cast<int32_t>(width);
  problem.tanh = tanh;
  return problem;
}

// ---- both halves in one tensor ------------------------------------------------------------------------------

TensorContract contract_of_packed(const char* op, const Tensor& x) {
  const TensorContract contract(op, x, cuda_build, "x", 2 * TensorContract::max_width);
  if (contract.width() % 2 != 0) {
    contract.refuse_value("x has shape " + shape_text(x) + ", wanted an even last dimension, which is two halves");
  }
  return contract;
}

// The shape of one half of x.
std::vector<int64_t> half_of(const Tensor& x) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() /= 2;
  return sizes;
}

struct Halves {
  Rows value;
  Rows gate;
};

// The halves of the rows of x, where they lie.
Halves halves_of(Tensor& x, const Problem& problem, bool gate_first) {
  const Rows first = rows_of(x);
  Rows second = first;
  second.data = static_cast<const char*>(first.data) + int64_t{problem.width} * size_of(problem.scalar);
  return gate_first ? Halves{second, first} : Halves{first, second};
}

void check_grad(const TensorContract& contract, const Tensor& grad, const Tensor& x) {
  contract.same_device("grad", grad);
  if (grad.scalar_type() != x.scalar_type()) {
    contract.refuse("TypeError", "grad is " + dtype_text(grad) + ", wanted " + dtype_text(x) + " as x");
  }
  bool equal = grad.dim() == x.dim() && 2 * grad.size(grad.dim() - 1) == contract.width();
  for (int64_t d = 0; equal && d + 1 < x.dim(); ++d) equal = grad.size(d) == x.size(d);
  if (!equal) contract.refuse_value("grad has shape " + shape_text(grad) + ", wanted one half of x's " + shape_text(x));
}

}  // namespace

Tensor geglu(const Tensor& x_in, bool tanh, bool gate_first) {
  constexpr const char* op = "geglu";
  Tensor x = x_in;
  const TensorContract contract = contract_of_packed(op, x_in);
  ForwardParams params;
  params.problem = problem_of(contract, "x", x, contract.width() / 2, tanh);
  const std::vector<int64_t> sizes = half_of(x);
  const Tensor y = new_tensor(x, sizes.data(), x.dim(), dtype_of(x));
  if (is_empty(params.problem)) return y;

  const Halves halves = halves_of(x, params.problem, gate_first);
  params.value = halves.value;
  params.gate = halves.gate;
  params.y = y.data_ptr();
  run_forward(op, x, params);
  return y;
}

Tensor geglu_backward(const Tensor& grad_in, const Tensor& x_in, bool tanh, bool gate_first) {
  constexpr const char* op = "geglu_backward";
  Tensor x = x_in, grad = grad_in;
  const TensorContract contract = contract_of_packed(op, x_in);
  BackwardParams params;
  params.problem = problem_of(contract, "x", x, contract.width() / 2, tanh);
  check_grad(contract, grad, x);
  const Tensor grad_x = new_tensor(x, x.sizes().data(), x.dim(), dtype_of(x));
  if (is_empty(params.problem)) return grad_x;

  const Halves halves = halves_of(x, params.problem, gate_first);
  params.grad = rows_of(grad);
  params.value = halves.value;
  params.gate = halves.gate;
  char* first = static_cast<char*>(grad_x.data_ptr());
  char* second = first + int64_t{params.problem.width} * size_of(params.problem.scalar);
  params.grad_value = gate_first ? second : first;
  params.grad_gate = gate_first ? first : second;
  params.grad_stride = contract.width();
  run_backward(op, x, params);
  return grad_x;
}

// ---- each half a tensor -------------------------------------------------------------------------------------

Tensor geglu_split(const Tensor& value_in, const Tensor& gate_in, bool tanh) {
  constexpr const char* op = "geglu_split";
  Tensor value = value_in, gate = gate_in;
  const TensorContract contract(op, value_in, cuda_build, "value");
  ForwardParams params;
  params.problem = problem_of(contract, "value", value, contract.width(), tanh);
  contract.like_lead("gate", gate);
  const Tensor y = new_tensor(value, value.sizes().data(), value.dim(), dtype_of(value));
  if (is_empty(params.problem)) return y;

  params.value = rows_of(value);
  params.gate = rows_of(gate);
  params.y = y.data_ptr();
  run_forward(op, value, params);
  return y;
}

std::tuple<Tensor, Tensor> geglu_split_backward(const Tensor& grad_in, const Tensor& value_in,
                                                const Tensor& gate_in, bool tanh) {
  constexpr const char* op = "geglu_split_backward";
  Tensor grad = grad_in, value = value_in, gate = gate_in;
  const TensorContract contract(op, value_in, cuda_build, "value");
  BackwardParams params;
  params.problem = problem_of(contract, "value", value, contract.width(), tanh);
  contract.like_lead("gate", gate);
  contract.like_lead("grad", grad);
  const int64_t* sizes = value.sizes().data();
  const Tensor grad_value = new_tensor(value, sizes, value.dim(), dtype_of(value));
  const Tensor grad_gate = new_tensor(value, sizes, value.dim(), dtype_of(value));
  if (is_empty(params.problem)) return {grad_value, grad_gate};

  params.grad = rows_of(grad);
  params.value = rows_of(value);
  params.gate = rows_of(gate);
  params.grad_value = grad_value.data_ptr();
  params.grad_gate = grad_gate.data_ptr();
  params.grad_stride = contract.width();
  run_backward(op, value, params);
  return {grad_value, grad_gate};
}

}  // namespace kernelworks::geglu
