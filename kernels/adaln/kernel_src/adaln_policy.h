// SPDX-License-Identifier: Apache-2.0
// Launch choices of the CUDA backend, as values. How a row is shared among threads follows from its width, the element
// size and whether there is a residual. The measurements behind the numbers are in docs/adaln-tuning.md.
#pragma once

#include "vendor/row_policy.h"

namespace kernelworks::adaln {

// Forward: granules of a row in the registers of each thread, of which some 64 KiB are then under way on each
// multiprocessor; with a residual, whose granules are held beside them, some 96.
constexpr int held_alone = 4;
constexpr int held_with_residual = 3;
constexpr int max_forward_block = 256;

constexpr RowPolicy forward_policy(int32_t width, int element_size, bool has_residual) {
  return row_policy(width, element_size, has_residual ? held_with_residual : held_alone, max_forward_block);
}

// Modulators that are no plain rows of the rows' own type are put together once for each group, where so many rows use
// them; for fewer it is not worth a launch.
constexpr int64_t least_rows_to_fold = 8;

// Backward: granules for each thread, whose sums over rows lie in registers.
constexpr int held_in_backward = 2;
constexpr int max_backward_block = 384;
constexpr int most_stages = 2;  // rows under way for each row of threads, copied ahead into shared memory

// Threads of a multiprocessor that have the registers they need; a gate asks for more of them.
constexpr int most_backward_threads(bool gated) { return gated ? 384 : 640; }

constexpr RowPolicy backward_policy(int32_t width, int element_size) {
  return row_policy(width, element_size, held_in_backward, max_backward_block);
}

// Blocks that fill the GPU, and hardly more, since each leaves a row of partial sums.
constexpr int64_t backward_blocks(RowPolicy policy, bool gated, int multiprocessors) {
  const int wanted = gated ? 384 : 512;  // threads of a multiprocessor
  const int each = (wanted + policy.block_size() / 2) / policy.block_size();
  return static_cast<int64_t>(multiprocessors) * each;
}

// Into how many parts the rows of each group are split, so that the parts fill the GPU.
constexpr int64_t parts_of_group(int64_t groups, int64_t group_rows, RowPolicy policy, bool gated,
                                int multiprocessors) {
  const int64_t wanted = backward_blocks(policy, gated, multiprocessors) / groups;
  const int64_t most = (group_rows + policy.rows_per_block - 1) / policy.rows_per_block;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

// In bf16: LTX-Video (2048) and Wan 14B (5120).
static_assert(forward_policy(2048, 2, false).threads_per_row == 64);
static_assert(forward_policy(5120, 2, false).threads_per_row == 160);
static_assert(!forward_policy(8192, 2, false).wide && forward_policy(8192, 2, true).wide);
static_assert(parts_of_group(2, 2310, backward_policy(2048, 2), false, 132) == 264);

}  // namespace kernelworks::adaln
