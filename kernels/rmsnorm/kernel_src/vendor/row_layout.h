// SPDX-License-Identifier: Apache-2.0
// Where the rows of a strided tensor start: its outer dimensions, merged as far as their strides allow.
#pragma once

#include <cstdint>

namespace kernelworks {

struct RowLayout {
  static constexpr int max_dims = 4;
  int dims = 0;                 // outer dimensions left after merging; 0 or 1 is the common case
  int64_t size[max_dims] = {};  // size[0] is never needed for an offset
  int64_t stride[max_dims] = {};  // in elements

  // Offset of `row` in elements. constexpr, so that device code may call it (nvcc's relaxed constexpr).
  constexpr int64_t offset(int64_t row) const {
    int64_t result = 0;
    for (int d = dims - 1; d > 0; --d) {
      // A 64-bit division costs a GPU some hundred instructions, a 32-bit one a tenth of that.
      const int64_t rest = (row | size[d]) >> 32 == 0
                               ? static_cast<int64_t>(static_cast<uint32_t>(row) / static_cast<uint32_t>(size[d]))
                               : row / size[d];
      result += (row - rest * size[d]) * stride[d];
      row = rest;
    }
    return result + row * stride[0];
  }

  // Merges the dimensions [0, dims) of a tensor; false when more than max_dims are left.
  bool assign(const int64_t* sizes, const int64_t* strides, int64_t count) {
    dims = 0;
    for (int64_t d = 0; d < count; ++d) {
      if (sizes[d] == 1) continue;
      if (dims > 0 && stride[dims - 1] == sizes[d] * strides[d]) {
        size[dims - 1] *= sizes[d];
        stride[dims - 1] = strides[d];
        continue;
      }
      if (dims == max_dims) return false;
      size[dims] = sizes[d];
      stride[dims++] = strides[d];
    }
    return true;
  }
};

// A tensor as a stack of rows, each contiguous. Null data: the tensor is not there.
struct Rows {
  const void* data = nullptr;
  RowLayout layout;
};

}  // namespace kernelworks
