// SPDX-License-Identifier: Apache-2.0
// Modulators as torch broadcasts them: their shapes checked, the rows that share them counted, their rows found.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "../kernel_src/adaln.h"
#include "torch_binding.h"
#include "vendor/tensor_contract.h"

namespace kernelworks::adaln {

constexpr int64_t max_dims = 64;  // torch's own limit
using Dims = std::array<int64_t, max_dims>;

// One part of a gate, scale or shift beside x.
class Part {
 public:
  Part(const TensorContract& contract, const std::string& name, const Tensor& tensor, const Tensor& x)
      : tensor_(tensor), scalar_(contract.scalar(name.c_str(), tensor)), outer_(x.dim() - 1) {
    contract.same_device(name.c_str(), tensor);
    per_sample_ = is_per_sample(contract, name, x);
    if (!fits(x)) {
      contract.refuse_value(name + " has shape " + shape_text(tensor) + ", wanted " + accepted(x) + " for x of shape " +
                            shape_text(x));
    }
  }

  // How many leading outer dimensions of x this part has more than one row for.
  int64_t leading() const {
    for (int64_t d = outer_; d > 0; --d) {
      if (size(d - 1) != 1) return d;
    }
    return 0;
  }

  Scalar scalar() const { return scalar_; }
  const Tensor& tensor() const { return tensor_; }

  // Its rows for the leading `count` outer dimensions of x; copied where they cannot be read in place.
  Rows rows(const Tensor& x, int64_t count) {
    Rows result;
    if (!unit_inner() || !assign(result.layout, x, count)) {
      tensor_ = torch::stable::contiguous(tensor_);
      if (!assign(result.layout, x, count)) {
        std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().begin() + count);
        sizes.insert(sizes.end(), outer_ - count, 1);
        sizes.push_back(x.size(outer_));
        if (per_sample_) align_samples(x.dim());
        Tensor whole = new_tensor(x, sizes.data(), x.dim(), dtype_of(tensor_));
        tensor_ = torch::stable::copy_(whole, tensor_);
        assign(result.layout, x, count);
      }
    }
    result.data = tensor_.data_ptr();
    return result;
  }

 private:
  // A (N, D) tensor beside an x of three or more dimensions has a row for each sample where torch's alignment,
  // a row for each of the last but one, does not fit.
  bool is_per_sample(const TensorContract& contract, const std::string& name, const Tensor& x) const {
    if (tensor_.dim() != 2 || x.dim() < 3 || tensor_.size(0) != x.size(0) || tensor_.size(0) == 1) return false;
    if (tensor_.size(0) != x.size(outer_ - 1)) return true;
    if (tensor_.size(0) == 0) return false;
    const std::string n = std::to_string(x.size(0)), d = std::to_string(x.size(outer_));
    contract.refuse_value(name + " has shape " + shape_text(tensor_) + ", which fits two dimensions of x of shape " +
                          shape_text(x) + ", wanted (" + n + ", 1, " + d + ") or (1, " + n + ", " + d + ")");
  }

  // Where dimension d of x lies in the part; negative: not in it.
  int64_t place(int64_t d) const {
    if (per_sample_) return d == 0 ? 0 : -1;
    return d - (outer_ - (tensor_.dim() - 1));
  }
  int64_t size(int64_t d) const { return place(d) < 0 ? 1 : tensor_.size(place(d)); }
  int64_t stride(int64_t d) const { return size(d) == 1 ? 0 : tensor_.stride(place(d)); }

  bool fits(const Tensor& x) const {
    const int64_t dims = tensor_.dim();
    if (dims < 1 || dims > x.dim() || tensor_.size(dims - 1) != x.size(outer_)) return false;
    for (int64_t d = 0; d < outer_; ++d) {
      if (size(d) != 1 && size(d) != x.size(d)) return false;
    }
    return true;
  }

  // "(8,), (2, 8), (5 or 1, 8) or (2 or 1, 5 or 1, 8)"
  static std::string accepted(const Tensor& x) {
    const int64_t outer = x.dim() - 1;
    const std::string width = std::to_string(x.size(outer));
    std::vector<std::string> shapes = {"(" + width + ",)"};
    if (outer >= 2 && x.size(0) > 1 && x.size(0) != x.size(outer - 1)) {
      shapes.push_back("(" + std::to_string(x.size(0)) + ", " + width + ")");
    }
    std::string aligned = width;
    for (int64_t d = outer - 1; d >= 0; --d) {
      aligned = std::to_string(x.size(d)) + (x.size(d) == 1 ? ", " : " or 1, ") + aligned;
      shapes.push_back("(" + aligned + ")");
    }
    std::string text;
    for (size_t i = 0; i < shapes.size(); ++i) {
      text += (i == 0 ? "" : i + 1 < shapes.size() ? ", " : " or ") + shapes[i];
    }
    return text;
  }

  // (N, D), contiguous, as (N, 1, ..., 1, D), which torch aligns as it is meant.
  void align_samples(int64_t dims) {
    Dims sizes, strides;
    sizes.fill(1);
    strides.fill(tensor_.size(1));
    sizes[0] = tensor_.size(0);
    sizes[dims - 1] = tensor_.size(1);
    strides[dims - 1] = 1;
    AtenTensorHandle view = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor_.get(), dims, sizes.data(), strides.data(),
                                                          tensor_.storage_offset(), &view));
    tensor_ = Tensor(view);
    per_sample_ = false;
  }

  bool unit_inner() const {
    const int64_t last = tensor_.dim() - 1;
    return tensor_.size(last) <= 1 || tensor_.stride(last) == 1;
  }

  bool assign(RowLayout& layout, const Tensor& x, int64_t count) const {
    Dims strides = {};
    for (int64_t d = 0; d < count; ++d) strides[d] = stride(d);
    return layout.assign(x.sizes().data(), strides.data(), count);
  }

  Tensor tensor_;
  Scalar scalar_;
  int64_t outer_;
  bool per_sample_ = false;
};

// A gate, scale or shift: none, a tensor, or a pair.
class ModulatorArgument {
 public:
  ModulatorArgument(const TensorContract& contract, const char* name, const MaybeTensor& first,
                    const MaybeTensor& second, const Tensor& x) {
    if (second && !first) contract.refuse("TypeError", std::string(name) + "[0] is None, wanted a torch.Tensor");
    if (!first) return;
    parts_.reserve(Modulator::max_parts);
    parts_.emplace_back(contract, second ? std::string(name) + "[0]" : name, *first, x);
    if (second) parts_.emplace_back(contract, std::string(name) + "[1]", *second, x);
  }

  explicit operator bool() const { return !parts_.empty(); }

  int64_t leading() const {
    int64_t most = 0;
    for (const Part& part : parts_) most = std::max(most, part.leading());
    return most;
  }

  Modulator modulator(const Tensor& x, int64_t count) {
    Modulator result;
    for (size_t i = 0; i < parts_.size(); ++i) {
      result.part[i] = parts_[i].rows(x, count);
      result.scalar[i] = parts_[i].scalar();
    }
    return result;
  }

  // The dtype of its gradient with `elements` elements: its own where nothing is left to reduce.
  int32_t grad_dtype(int64_t elements, Scalar scalar) const {
    const bool whole = parts_.size() == 1 && parts_[0].tensor().numel() == elements;
    return whole ? dtype_of(parts_[0].tensor()) : accumulator_dtype(scalar);
  }

 private:
  std::vector<Part> parts_;
};

}  // namespace kernelworks::adaln
