// SPDX-License-Identifier: Apache-2.0
// Where the rows of a strided tensor start: its outer dimensions, merged as far as their strides allow.
#pragma once

#include <cstdint>

namespace kernelworks {

// Division by a number that is known when a kernel is launched, for dividends below 2**31: a multiplication and a
// shift, where a GPU's own division takes ten times as long (Granlund and Montgomery, 1994).
struct Divisor {
  uint32_t magic = 0;
  int shift = 0;

  Divisor() = default;
  explicit constexpr Divisor(uint32_t divisor) {
    while (uint64_t{1} << shift < divisor) ++shift;
    magic = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor) / divisor + 1);
  }
  constexpr uint32_t quotient(uint32_t dividend) const {
    return static_cast<uint32_t>((uint64_t{dividend} * magic >> 32) + dividend) >> shift;
  }
};

struct RowLayout {
  static constexpr int max_dims = 4;
  static constexpr int64_t max_rows = int64_t{1} << 31;  // where there is more than one dimension
  int dims = 0;  // outer dimensions left after merging; 0 or 1 is the common case
  int64_t size[max_dims] = {};
  int64_t stride[max_dims] = {};  // in elements
  Divisor by_size[max_dims];

  // Offset of `row` in elements. constexpr, so that device code may call it (nvcc's relaxed constexpr); written out,
  // since a loop is unrolled wherever it is inlined.
  constexpr int64_t offset(int64_t row) const {
    if (dims <= 1) return row * stride[0];
    int64_t result = 0;
    if (dims > 3) result += split(3, row);
    if (dims > 2) result += split(2, row);
    result += split(1, row);
    return result + row * stride[0];
  }

  // Merges the dimensions [0, dims) of a tensor; false when more than max_dims, or too many rows, are left.
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
    if (dims <= 1) return true;
    int64_t rows = 1;
    for (int d = 0; d < dims; ++d) rows *= size[d];
    if (rows >= max_rows) return false;
    for (int d = 1; d < dims; ++d) by_size[d] = Divisor(static_cast<uint32_t>(size[d]));
    return true;
  }

 private:
  // What the index along dimension d adds; leaves in `row` the index over the dimensions before it.
  constexpr int64_t split(int d, int64_t& row) const {
    const int64_t rest = by_size[d].quotient(static_cast<uint32_t>(row));
    const int64_t index = row - rest * size[d];
    row = rest;
    return index * stride[d];
  }
};

// A tensor as a stack of rows, each contiguous. Null data: the tensor is not there.
struct Rows {
  const void* data = nullptr;
  RowLayout layout;
};

}  // namespace kernelworks
