// SPDX-License-Identifier: Apache-2.0
// Launch choices of the CUDA backend, as values. The measurements behind the numbers are in docs/geglu-tuning.md.
#pragma once

#include <cstdint>

#include "vendor/row_layout.h"
#include "vendor/row_policy.h"

namespace kernelworks::geglu {

constexpr int block_size = 128;  // threads, each with 16 bytes of the result: more of them each are slower at every size

constexpr int warp_size = 32;

// Parts of a row are its accesses; where those are single elements, what a warp has of it. A thread has `size` elements.
constexpr int64_t parts_of_row(int64_t width, int size, int access) {
  return access > 1 ? width / access : (width + size * warp_size - 1) / (size * warp_size);
}
constexpr int64_t parts_of_block(int size, int access) {
  return access > 1 ? block_size * (size / access) : block_size / warp_size;
}

// Parts counted through all rows of a launch: few wide rows and many narrow ones fill the GPU alike.
struct Grid {
  int64_t first_row;
  uint32_t count;  // below 2**31, so that a Divisor serves
  uint32_t each_row;
  Divisor by_row;
};

constexpr int64_t most_parts = (int64_t{1} << 31) - 65536;

// As many rows from first_row on as one launch takes.
constexpr int64_t rows_of_launch(int64_t rows, int64_t first_row, int64_t each_row) {
  const int64_t most = most_parts / each_row, left = rows - first_row;
  return left < most ? left : most;
}

static_assert(rows_of_launch(1, 0, 1 << 30) == 1 && rows_of_launch(60000, 0, 36864 / 8) == 60000);

}  // namespace kernelworks::geglu
