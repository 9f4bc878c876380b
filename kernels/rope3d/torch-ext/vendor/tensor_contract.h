// SPDX-License-Identifier: Apache-2.0
// What an op asks of its tensors, and the sentences that refuse them. The only header here that knows torch.
//
// The stable ABI carries std::runtime_error alone, so a sentence starts with the Python exception it stands for;
// the Python side of the kernel raises that one.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "cpu_memory.h"
#include "dispatch.h"
#include "row_layout.h"

namespace kernelworks {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline std::string shape_text(const Tensor& tensor) {
  std::string text;
  for (const int64_t size : tensor.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "(" + text + (tensor.dim() == 1 ? ",)" : ")");
}

inline std::string device_text(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  if (tensor.is_cuda()) return "cuda:" + std::to_string(tensor.get_device_index());
  return "another device";
}

inline std::string dtype_text(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return "float32";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Double: return "float64";
    case ScalarType::Bool: return "bool";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    default: return torch::headeronly::toString(tensor.scalar_type());
  }
}

inline int32_t dtype_of(const Tensor& tensor) {
  int32_t dtype = 0;
  aoti_torch_get_dtype(tensor.get(), &dtype);
  return dtype;
}

// Of what is computed from rows of this type: statistics, and sums over rows.
inline int32_t accumulator_dtype(Scalar scalar) {
  return scalar == Scalar::f64 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
}

class TensorContract {
 public:
  static constexpr int64_t max_width = int64_t{1} << 30;  // columns are 32-bit numbers, with room to round up

  // `lead` is the tensor that the others are held against: on a device of this build, of a known dtype, with at
  // least one dimension. `name` is what its op calls it, and `widest` is more where the op takes a row as several.
  TensorContract(const char* op, const Tensor& lead, bool cuda, const char* name = "x", int64_t widest = max_width)
      : op_(op), lead_(lead), cuda_(cuda), name_(name) {
    if (cuda ? !lead.is_cuda() : !lead.is_cpu()) {
      refuse_value(name_ + (" is on " + device_text(lead)) + ", and this build is for " + (cuda ? "cuda" : "cpu"));
    }
    if (lead.dim() < 1) refuse_value(name_ + std::string(" has no dimension, wanted at least one"));
    if (width() > widest) {
      refuse_value(name_ + (" is " + std::to_string(width())) + " wide, wanted at most " + std::to_string(widest));
    }
  }

  int64_t width() const { return lead_.size(lead_.dim() - 1); }
  int64_t rows() const {
    int64_t count = 1;
    for (int64_t d = 0; d + 1 < lead_.dim(); ++d) count *= lead_.size(d);
    return count;
  }

  Scalar scalar(const char* name, const Tensor& tensor) const {
    switch (tensor.scalar_type()) {
      case ScalarType::Float: return Scalar::f32;
      case ScalarType::Half: return Scalar::f16;
      case ScalarType::BFloat16: return Scalar::bf16;
      case ScalarType::Double:
        if (!cuda_) return Scalar::f64;
        [[fallthrough]];
      default:
        refuse("TypeError", name + (" is " + dtype_text(tensor)) + ", wanted float32, float16 or bfloat16" +
                                (cuda_ ? "" : ", or float64"));
    }
  }

  void same_device(const char* name, const Tensor& tensor) const {
    if (tensor.is_cpu() == lead_.is_cpu() && tensor.get_device_index() == lead_.get_device_index()) return;
    refuse_value(name + (" is on " + device_text(tensor)) + ", wanted " + device_text(lead_) + " as " + name_);
  }

  // A tensor of the lead's shape, dtype and device.
  void like_lead(const char* name, const Tensor& tensor) const {
    same_device(name, tensor);
    if (tensor.scalar_type() != lead_.scalar_type()) {
      refuse("TypeError", name + (" is " + dtype_text(tensor)) + ", wanted " + dtype_text(lead_) + " as " + name_);
    }
    bool equal = tensor.dim() == lead_.dim();
    for (int64_t d = 0; equal && d < tensor.dim(); ++d) equal = tensor.size(d) == lead_.size(d);
    if (equal) return;
    refuse_value(name + (" has shape " + shape_text(tensor)) + ", wanted " + shape_text(lead_) + " as " + name_);
  }

  // One number for each column of the lead.
  void per_column(const char* name, const Tensor& tensor) const {
    same_device(name, tensor);
    if (tensor.dim() == 1 && tensor.size(0) == width()) return;
    refuse_value(name + (" has shape " + shape_text(tensor)) + ", wanted (" + std::to_string(width()) +
                 ",), the last dimension of " + name_);
  }

  void finite(const char* name, double value, bool negative_allowed) const {
    if (std::isfinite(value) && (negative_allowed || value >= 0)) return;
    std::ostringstream text;
    text << name << " is " << value << ", wanted a finite number" << (negative_allowed ? "" : " that is not negative");
    refuse_value(text.str());
  }

  [[noreturn]] void refuse_value(const std::string& sentence) const { refuse("ValueError", sentence); }
  [[noreturn]] void refuse(const char* kind, const std::string& sentence) const {
    throw std::runtime_error(std::string(kind) + ": " + op_ + ": " + sentence);
  }

 private:
  const char* op_;
  const Tensor& lead_;
  bool cuda_;
  const char* name_;
};

// The rows of `tensor` in place where they can be read so; else of a contiguous copy, which replaces `tensor`.
inline Rows rows_of(Tensor& tensor) {
  Rows rows;
  const int64_t outer = tensor.dim() - 1;
  const bool unit_inner = tensor.size(outer) <= 1 || tensor.stride(outer) == 1;
  if (!unit_inner || !rows.layout.assign(tensor.sizes().data(), tensor.strides().data(), outer)) {
    tensor = torch::stable::contiguous(tensor);
    rows.layout.assign(tensor.sizes().data(), tensor.strides().data(), outer);
  }
  rows.data = tensor.data_ptr();
  return rows;
}

// A new contiguous tensor on the device of `like`.
inline Tensor new_tensor(const Tensor& like, const int64_t* sizes, int64_t dims, int32_t dtype) {
  constexpr int64_t max_dims = 64;  // torch's own limit
  int64_t strides[max_dims];
  for (int64_t d = dims - 1, step = 1; d >= 0; --d) {
    strides[d] = step;
    step *= sizes[d] > 1 ? sizes[d] : 1;
  }
  int32_t device_type = 0;
  aoti_torch_get_device_type(like.get(), &device_type);
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dims, sizes, strides, dtype, device_type,
                                                         like.get_device_index(), &handle));
  Tensor tensor(handle);
  if (tensor.is_cpu()) advise_huge_pages(tensor.data_ptr(), tensor.numel() * tensor.element_size());
  return tensor;
}

}  // namespace kernelworks
