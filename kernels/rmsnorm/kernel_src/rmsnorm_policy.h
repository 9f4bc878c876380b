// SPDX-License-Identifier: Apache-2.0
// Launch choices of the CUDA backend, as values. The measurements behind the numbers are in docs/rmsnorm-tuning.md.
#pragma once

#include "vendor/row_policy.h"

namespace kernelworks::rmsnorm {

constexpr int held_granules = 2;    // of a row in registers, for each thread
constexpr int max_held_block = 384;  // of forward, for rows that lie in registers
constexpr int wide_block = 256;      // and for those in shared memory, up to max_block
constexpr int max_block = 1024;
constexpr int most_per_thread = 8;  // granules of a wide row
constexpr int max_backward_block = 512;

constexpr RowPolicy forward_policy(int32_t width, int element_size) {
  RowPolicy policy = row_policy(width, element_size, held_granules, max_held_block);
  if (!policy.wide) return policy;
  policy.threads_per_row = wide_block;
  while (policy.threads_per_row < max_block &&
         policy.threads_per_row * most_per_thread < granules_of(width, element_size)) {
    policy.threads_per_row *= 2;
  }
  return policy;
}

constexpr RowPolicy backward_policy(int32_t width, int element_size) {
  return row_policy(width, element_size, held_granules, max_backward_block);
}

// Backward: rows under way for each thread, copied ahead into shared memory.
constexpr int most_stages = 3;

// Blocks of the persistent backward: enough to fill the GPU, and few enough that the partials stay small. More
// of them read rows that lie further apart, which the memory serves less well.
constexpr int64_t backward_blocks(int64_t rows, RowPolicy policy, int multiprocessors) {
  constexpr int threads_per_multiprocessor = 512;
  const int each = (threads_per_multiprocessor + policy.block_size() / 2) / policy.block_size();
  const int64_t wanted = (rows + policy.rows_per_block - 1) / policy.rows_per_block;
  const int64_t resident = static_cast<int64_t>(multiprocessors) * each;
  return wanted < resident ? wanted : resident;
}

// In bf16: hidden sizes that lie in registers, and wide rows.
static_assert(!forward_policy(6144, 2).wide && forward_policy(8192, 2).threads_per_row == 256);
static_assert(!backward_policy(8192, 2).wide && backward_policy(65536, 2).wide);
static_assert(forward_policy(65536, 2).block_size() == max_block && backward_policy(65536, 2).block_size() == 512);

}  // namespace kernelworks::rmsnorm
