// SPDX-License-Identifier: Apache-2.0
// What the ops have in common: q, k and the angles, checked, and laid out as Params has them.
#pragma once

#include "../kernel_src/rope3d.h"

#include "torch_binding.h"
#include "vendor/backend.h"

namespace kernelworks::rope3d {

inline std::string text(int64_t number) { return std::to_string(number); }

// (B, T, H, D) in place where a head's lanes are neighbours; else a contiguous copy, which replaces `tensor`.
inline Strides strides_of(Tensor& tensor) {
  if (tensor.size(3) > 1 && tensor.stride(3) != 1) tensor = torch::stable::contiguous(tensor);
  Strides strides;
  strides.batch = tensor.stride(0);
  strides.token = tensor.stride(1);
  strides.head = tensor.stride(2);
  return strides;
}

// 32 bits count tokens and heads of all samples and the lanes of a token, of q and k together.
inline void check_sizes(const TensorContract& contract, const char* name, const Tensor& tensor) {
  constexpr int64_t most = int64_t{1} << 30;
  const auto check = [&](int64_t count, const char* what) {
    if (count <= most) return;
    contract.refuse_value(name + (" has shape " + shape_text(tensor)) + ", which is " + text(count) + " " + what +
                          ", wanted at most " + text(most) + "; turn a part at a time");
  };
  check(tensor.size(0) * tensor.size(1), "tokens of all samples");
  check(tensor.size(0) * tensor.size(2), "heads of all samples");
  check(tensor.size(2) * tensor.size(3), "lanes of a token");
}

inline Problem problem_of(const TensorContract& contract, const Tensor& q, const MaybeTensor& k, bool interleaved) {
  if (q.dim() != 4) contract.refuse_value("q has shape " + shape_text(q) + ", wanted (B, T, H, D)");
  check_sizes(contract, "q", q);
  Problem problem;
  problem.scalar = contract.scalar("q", q);
  problem.batch = q.size(0);
  problem.tokens = q.size(1);
  problem.width = static_cast<int32_t>(q.size(3));
  problem.interleaved = interleaved;
  if (!k) return problem;
  contract.same_device("k", *k);
  if (k->scalar_type() != q.scalar_type()) {
    contract.refuse("TypeError", "k is " + dtype_text(*k) + ", wanted " + dtype_text(q) + " as q");
  }
  if (k->dim() != 4 || k->size(0) != q.size(0) || k->size(1) != q.size(1) || k->size(3) != q.size(3)) {
    contract.refuse_value("k has shape " + shape_text(*k) + ", wanted (" + text(q.size(0)) + ", " + text(q.size(1)) +
                          ", any, " + text(q.size(3)) +
                          ") to go with q; a k of other tokens can be turned in a call of its own");
  }
  check_sizes(contract, "k", *k);
  return problem;
}

// The tensors that angles come from: coordinates and frequencies, or tables. They stay alive here, with copies in
// place of what cannot be read as it lies.
struct AngleTensors {
  MaybeTensor coords;
  MaybeTensor inv_freq;
  MaybeTensor axis;
  MaybeTensor cos;
  MaybeTensor sin;

  // Fills problem.pairs too.
  Angles layout(const TensorContract& contract, Problem& problem) {
    if (coords.has_value() == cos.has_value() || coords.has_value() != inv_freq.has_value() ||
        cos.has_value() != sin.has_value() || (axis && !coords)) {
      contract.refuse_value("angles come from coords and inv_freq (and axis), or from cos and sin: wanted one of both");
    }
    return coords ? from_coords(contract, problem) : from_tables(contract, problem);
  }

  // Heads with frequencies of their own; 0: all share them.
  int64_t own_heads() const { return inv_freq && inv_freq->dim() == 2 ? inv_freq->size(0) : 0; }

 private:
  // (T, n) or (B, T, n), where B may be 1.
  static void per_token(const TensorContract& contract, const Problem& problem, const char* name, const Tensor& tensor,
                        const char* last) {
    contract.same_device(name, tensor);
    const int64_t dims = tensor.dim();
    if ((dims == 2 || dims == 3) && tensor.size(dims - 2) == problem.tokens &&
        (dims == 2 || tensor.size(0) == problem.batch || tensor.size(0) == 1)) {
      return;
    }
    contract.refuse_value(name + (" has shape " + shape_text(tensor)) + ", wanted (" + text(problem.tokens) + ", " +
                          last + ") or (" + text(problem.batch) + ", " + text(problem.tokens) + ", " + last +
                          ") for the tokens of q");
  }

  static void of_dtype(const TensorContract& contract, const char* name, const Tensor& tensor, ScalarType wanted,
                       const char* wanted_text) {
    if (tensor.scalar_type() == wanted) return;
    contract.refuse("TypeError", name + (" is " + dtype_text(tensor)) + ", wanted " + wanted_text);
  }

  static int64_t batch_stride(const Tensor& tensor) {
    return tensor.dim() == 3 && tensor.size(0) > 1 ? tensor.stride(0) : 0;
  }

  void set_pairs(const TensorContract& contract, Problem& problem, const char* name, int64_t pairs) const {
    if (2 * pairs > problem.width) {
      contract.refuse_value(name + (" has " + text(pairs)) + " pairs, which turn " + text(2 * pairs) +
                            " lanes, and q is " + text(problem.width) + " wide");
    }
    problem.pairs = static_cast<int32_t>(pairs);
  }

  Angles from_coords(const TensorContract& contract, Problem& problem) {
    const bool wide = problem.scalar == Scalar::f64;
    const ScalarType number = wide ? ScalarType::Double : ScalarType::Float;
    const char* number_text = wide ? "float64" : "float32";
    of_dtype(contract, "coords", *coords, number, number_text);
    of_dtype(contract, "inv_freq", *inv_freq, number, number_text);
    per_token(contract, problem, "coords", *coords, "A");
    const int64_t axes = coords->size(coords->dim() - 1);
    if (axes < 1 || axes > max_axes) {
      contract.refuse_value("coords has " + text(axes) + " coordinates for each token, wanted 1 to " + text(max_axes));
    }
    contract.same_device("inv_freq", *inv_freq);
    if (inv_freq->dim() != 1 && inv_freq->dim() != 2) {
      contract.refuse_value("inv_freq has shape " + shape_text(*inv_freq) +
                            ", wanted (pairs,), or (H, pairs) where each head has its own");
    }
    if (inv_freq->dim() == 2 && inv_freq->size(0) == 0) {
      contract.refuse_value("inv_freq has shape " + shape_text(*inv_freq) + ", wanted a row for each head of q");
    }
    set_pairs(contract, problem, "inv_freq", inv_freq->size(inv_freq->dim() - 1));
    check_axis(contract, axes);

    if (axes > 1 && coords->stride(coords->dim() - 1) != 1) coords = torch::stable::contiguous(*coords);
    inv_freq = torch::stable::contiguous(*inv_freq);
    Angles angles;
    angles.coords = coords->data_ptr();
    angles.coords_batch = batch_stride(*coords);
    angles.coords_token = coords->stride(coords->dim() - 2);
    angles.axes = static_cast<int32_t>(axes);
    angles.inv_freq = inv_freq->data_ptr();
    if (axis) angles.axis = static_cast<const int32_t*>(axis->data_ptr());
    return angles;
  }

  void check_axis(const TensorContract& contract, int64_t axes) {
    if (!axis) {
      if (axes > 1) contract.refuse_value("axis is None, wanted the coordinate, of " + text(axes) + ", of each pair");
      return;
    }
    contract.same_device("axis", *axis);
    of_dtype(contract, "axis", *axis, ScalarType::Int, "int32");
    if (shape_text(*axis) != shape_text(*inv_freq)) {
      contract.refuse_value("axis has shape " + shape_text(*axis) + ", wanted " + shape_text(*inv_freq) +
                            " as inv_freq");
    }
    axis = torch::stable::contiguous(*axis);
    if constexpr (!cuda_build) {  // on a GPU a look would wait for it
      const int32_t* values = static_cast<const int32_t*>(axis->data_ptr());
      for (int64_t i = 0; i < axis->numel(); ++i) {
        if (values[i] >= 0 && values[i] < axes) continue;
        contract.refuse_value("axis has " + text(values[i]) + ", wanted 0 to " + text(axes - 1) + ", as coords has " +
                              text(axes) + " coordinates");
      }
    }
  }

  Angles from_tables(const TensorContract& contract, Problem& problem) {
    per_token(contract, problem, "cos", *cos, "pairs");
    contract.same_device("sin", *sin);
    if (shape_text(*sin) != shape_text(*cos)) {
      contract.refuse_value("sin has shape " + shape_text(*sin) + ", wanted " + shape_text(*cos) + " as cos");
    }
    Angles angles;
    angles.table_scalar = contract.scalar("cos", *cos);
    if (sin->scalar_type() != cos->scalar_type()) {
      contract.refuse("TypeError", "sin is " + dtype_text(*sin) + ", wanted " + dtype_text(*cos) + " as cos");
    }
    const int64_t last = cos->dim() - 1;
    set_pairs(contract, problem, "cos", cos->size(last));
    const int64_t step = cos->size(last) > 1 ? cos->stride(last) : 1;
    bool in_place = step == 1 || (step == 2 && problem.interleaved);
    for (int64_t d = 0; d <= last; ++d) in_place = in_place && (cos->size(d) <= 1 || cos->stride(d) == sin->stride(d));
    if (!in_place) {
      cos = torch::stable::contiguous(*cos);
      sin = torch::stable::contiguous(*sin);
    }
    angles.table_pair = in_place ? static_cast<int32_t>(step) : 1;
    angles.cos = cos->data_ptr();
    angles.sin = sin->data_ptr();
    angles.table_batch = batch_stride(*cos);
    angles.table_token = cos->stride(last - 1);
    return angles;
  }
};

inline Tensor new_like(const Tensor& tensor) {
  return new_tensor(tensor, tensor.sizes().data(), tensor.dim(), dtype_of(tensor));
}

inline Tensor nothing_like(const Tensor& tensor) {
  constexpr int64_t none = 0;
  return new_tensor(tensor, &none, 1, dtype_of(tensor));
}

// `tensor` may become a copy of itself.
inline ForwardTensor forward_tensor_in_place(Tensor& tensor) {
  ForwardTensor result;
  result.heads = static_cast<int32_t>(tensor.size(2));
  result.in_strides = strides_of(tensor);
  result.out_strides = result.in_strides;
  result.out = tensor.data_ptr();
  result.in = result.out;
  return result;
}

inline ForwardTensor forward_tensor(Tensor& in, const Tensor& out) {
  Tensor contiguous = out;
  ForwardTensor result = forward_tensor_in_place(in);
  result.out_strides = strides_of(contiguous);
  result.out = out.data_ptr();
  return result;
}

inline bool is_empty(const Problem& problem, const Tensor& q, const MaybeTensor& k) {
  return problem.batch * problem.tokens == 0 || (q.numel() == 0 && (!k || k->numel() == 0));
}

#if defined(CUDA_KERNEL)
inline void run_forward(const char* op, const Tensor& q, const ForwardParams& params) {
  on_stream_of(op, q, [&](void* stream) { return forward_cuda(params, stream); });
}
#else
inline void run_forward(const char*, const Tensor&, const ForwardParams& params) {
  const int64_t heads = params.q.heads + params.k.heads;
  in_parallel(params.problem.batch * params.problem.tokens, heads * params.problem.width,
              [&](int64_t begin, int64_t end) { forward_cpu(params, begin, end); });
}
#endif

}  // namespace kernelworks::rope3d
