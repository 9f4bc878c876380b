// SPDX-License-Identifier: Apache-2.0
// The rotations, into new tensors and in place: from checked tensors to Params, and calls of the backend.
#include <algorithm>
#include <array>
#include <utility>

#include "rope3d_inputs.h"

namespace kernelworks::rope3d {
namespace {

struct Rotation {
  ForwardParams params;
  int64_t own_heads = 0;  // that have frequencies of their own; 0: all share them
};

Rotation rotation_of(const TensorContract& contract, const Tensor& q, const MaybeTensor& k, AngleTensors& tensors,
                     bool interleaved, bool inverse) {
  Rotation rotation;
  ForwardParams& params = rotation.params;
  params.problem = problem_of(contract, q, k, interleaved);
  params.inverse = inverse;
  params.angles = tensors.layout(contract, params.problem);
  rotation.own_heads = tensors.own_heads();
  const auto check = [&](const char* name, const Tensor& tensor) {
    if (rotation.own_heads == 0 || tensor.size(2) == rotation.own_heads) return;
    contract.refuse_value(name + (" has " + text(tensor.size(2))) + " heads, and inv_freq has those of " +
                          text(rotation.own_heads));
  };
  check("q", q);
  if (k) check("k", *k);
  return rotation;
}

// One call; or one for each head, on its own frequencies.
void run(const char* op, const Tensor& q, const Rotation& rotation) {
  const ForwardParams& params = rotation.params;
  if (rotation.own_heads == 0) return run_forward(op, q, params);
  const int64_t number = params.problem.scalar == Scalar::f64 ? 8 : 4;
  const auto one_head = [&](ForwardTensor& tensor, int64_t head) {
    if (tensor.heads == 0) return;
    const int64_t size = size_of(params.problem.scalar);
    tensor.heads = 1;
    tensor.in = static_cast<const char*>(tensor.in) + head * tensor.in_strides.head * size;
    tensor.out = static_cast<char*>(tensor.out) + head * tensor.out_strides.head * size;
  };
  for (int64_t head = 0; head < rotation.own_heads; ++head) {
    ForwardParams one = params;
    one_head(one.q, head);
    one_head(one.k, head);
    one.angles.inv_freq = static_cast<const char*>(params.angles.inv_freq) + head * params.problem.pairs * number;
    if (params.angles.axis != nullptr) one.angles.axis = params.angles.axis + head * params.problem.pairs;
    run_forward(op, q, one);
  }
}

TwoTensors rotate(const char* op, Tensor q, MaybeTensor k, AngleTensors tensors, bool interleaved, bool inverse) {
  const Tensor lead = q;
  const TensorContract contract(op, lead, cuda_build, "q");
  Rotation rotation = rotation_of(contract, q, k, tensors, interleaved, inverse);
  const Tensor q_out = new_like(q);
  const Tensor k_out = k ? new_like(*k) : nothing_like(q);
  if (is_empty(rotation.params.problem, q, k)) return {q_out, k_out};
  rotation.params.q = forward_tensor(q, q_out);
  if (k) rotation.params.k = forward_tensor(*k, k_out);
  run(op, q, rotation);
  return {q_out, k_out};
}

// Whether two places of it may be one: sufficient, in that every dimension steps over all that lies within it.
bool may_overlap_itself(const Tensor& tensor) {
  std::array<std::pair<int64_t, int64_t>, 4> dims;  // stride and size
  for (int64_t d = 0; d < 4; ++d) dims[d] = {tensor.size(d) > 1 ? tensor.stride(d) : 0, tensor.size(d)};
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (size <= 1) continue;
    if (stride < extent) return true;
    extent += stride * (size - 1);
  }
  return false;
}

void check_in_place(const TensorContract& contract, const char* name, const Tensor& tensor) {
  if (tensor.numel() == 0 || !may_overlap_itself(tensor)) return;
  contract.refuse_value(name + std::string(" has elements that share memory, wanted one place for each, to write to"));
}

void rotate_in_place(const char* op, Tensor q, MaybeTensor k, AngleTensors tensors, bool interleaved, bool inverse) {
  const Tensor lead = q;
  const TensorContract contract(op, lead, cuda_build, "q");
  Rotation rotation = rotation_of(contract, q, k, tensors, interleaved, inverse);
  check_in_place(contract, "q", q);
  if (k) check_in_place(contract, "k", *k);
  if (k && k->numel() > 0 && k->data_ptr() == q.data_ptr()) {
    contract.refuse_value("k is q's own memory, which would be turned twice; wanted memory of its own");
  }
  if (is_empty(rotation.params.problem, q, k)) return;
  // Copies where a head's lanes are no neighbours: those are turned, and copied back.
  Tensor q_turned = q;
  MaybeTensor k_turned = k;
  rotation.params.q = forward_tensor_in_place(q_turned);
  if (k) rotation.params.k = forward_tensor_in_place(*k_turned);
  run(op, q, rotation);
  if (q_turned.data_ptr() != q.data_ptr()) torch::stable::copy_(q, q_turned);
  if (k && k_turned->data_ptr() != k->data_ptr()) torch::stable::copy_(*k, *k_turned);
}

}  // namespace

TwoTensors rope3d(const Tensor& q, const MaybeTensor& k, const Tensor& coords, const Tensor& inv_freq,
                  const MaybeTensor& axis, bool interleaved, bool inverse) {
  return rotate("rope3d", q, k, {coords, inv_freq, axis, {}, {}}, interleaved, inverse);
}

void rope3d_in_place(const Tensor& q, const MaybeTensor& k, const Tensor& coords, const Tensor& inv_freq,
                     const MaybeTensor& axis, bool interleaved, bool inverse) {
  rotate_in_place("rope3d_", q, k, {coords, inv_freq, axis, {}, {}}, interleaved, inverse);
}

TwoTensors apply_rotary(const Tensor& q, const MaybeTensor& k, const Tensor& cos, const Tensor& sin,
                        bool interleaved, bool inverse) {
  return rotate("apply_rotary", q, k, {{}, {}, {}, cos, sin}, interleaved, inverse);
}

void apply_rotary_in_place(const Tensor& q, const MaybeTensor& k, const Tensor& cos, const Tensor& sin,
                           bool interleaved, bool inverse) {
  rotate_in_place("apply_rotary_", q, k, {{}, {}, {}, cos, sin}, interleaved, inverse);
}

}  // namespace kernelworks::rope3d
