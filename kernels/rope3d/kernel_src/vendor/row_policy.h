// SPDX-License-Identifier: Apache-2.0
// How the threads of a block share rows, as a value. Which thread owns which element depends on the width and the
// element size alone, never on the number of rows, on addresses or on the GPU: a row's sum must not change with
// its neighbours. The measurements behind the numbers are in docs/rmsnorm-tuning.md.
#pragma once

#include <cstdint>

namespace kernelworks {

// A row is cut into granules of 16 bytes, dealt out in turn to the threads that share it.
constexpr int granule_bytes = 16;

struct RowPolicy {
  int threads_per_row;  // a power of two up to a warp, from there on whole warps
  int rows_per_block;
  bool wide;  // more granules than the threads hold

  constexpr int block_size() const { return threads_per_row * rows_per_block; }
};

constexpr int64_t granules_of(int32_t width, int element_size) {
  return (static_cast<int64_t>(width) * element_size + granule_bytes - 1) / granule_bytes;
}

// Rows of which each thread holds so many granules; wide, with max_threads to a row, where that is not enough.
constexpr RowPolicy row_policy(int32_t width, int element_size, int held, int max_threads) {
  constexpr int warp = 32;
  constexpr int least = 4;
  constexpr int min_block = 128;  // by taking several rows where one needs fewer threads
  const int64_t wanted = (granules_of(width, element_size) + held - 1) / held;
  if (wanted > max_threads) return {max_threads, 1, true};
  int threads = least;
  while (threads < wanted) threads += threads < warp ? threads : warp;
  return {threads, threads < min_block ? min_block / threads : 1, false};
}

// In bf16: hidden sizes of LTX-Video (2048), Wan (3072, 5120), Qwen3-8B (4096) and DiT-XL (1152), and Qwen3's head.
static_assert(row_policy(2048, 2, 2, 384).threads_per_row == 128 && row_policy(3072, 2, 2, 384).threads_per_row == 192);
static_assert(row_policy(5120, 2, 2, 384).threads_per_row == 320 && row_policy(4096, 2, 2, 384).threads_per_row == 256);
static_assert(row_policy(1152, 2, 2, 384).threads_per_row == 96 && row_policy(1152, 2, 2, 384).rows_per_block == 1);
static_assert(row_policy(128, 2, 2, 384).threads_per_row == 8 && row_policy(128, 2, 2, 384).rows_per_block == 16);
static_assert(!row_policy(6144, 2, 2, 384).wide && row_policy(6152, 2, 2, 384).wide);

}  // namespace kernelworks
