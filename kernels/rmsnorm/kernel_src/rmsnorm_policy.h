// SPDX-License-Identifier: Apache-2.0
// Launch choices of the CUDA backend, as values. They depend on the width and the element size alone, never on
// the number of rows or on addresses: a row's sum must not change with its neighbours.
#pragma once

#include <cstdint>

namespace kernelworks::rmsnorm {

struct LaunchPolicy {
  int threads_per_row;  // a power of two
  int rows_per_block;

  constexpr int block_size() const { return threads_per_row * rows_per_block; }
};

// Elements of a row that one thread keeps in registers. Columns beyond threads_per_row times this are read
// again after the reduction, from L2.
constexpr int forward_cached = 32;
// Backward keeps x, grad and a partial grad_weight, so half as many.
constexpr int backward_cached = 16;

// 128 registers a thread on every architecture: enough for what is kept, without spills.
constexpr int max_block = 512;

constexpr LaunchPolicy launch_policy(int32_t width, int cached) {
  constexpr int min_threads_per_row = 4;
  constexpr int min_block = 128;
  int threads = min_threads_per_row;
  while (threads < max_block && static_cast<int64_t>(threads) * cached < width) threads *= 2;
  return {threads, threads < min_block ? min_block / threads : 1};
}

constexpr LaunchPolicy forward_policy(int32_t width) {
  return launch_policy(width, forward_cached);
}
constexpr LaunchPolicy backward_policy(int32_t width) {
  return launch_policy(width, backward_cached);
}

// Blocks of the persistent backward: enough to fill the GPU, and few enough that the partials stay small.
constexpr int64_t backward_blocks(int64_t rows, int32_t width, int multiprocessors) {
  const int rows_per_block = backward_policy(width).rows_per_block;
  const int64_t wanted = (rows + rows_per_block - 1) / rows_per_block;
  const int64_t resident = static_cast<int64_t>(multiprocessors) * 1024 / backward_policy(width).block_size();
  return wanted < resident ? wanted : resident;
}

// LTX-Video's hidden size, its qk-norm, Qwen3-8B's hidden size and its head; a row too wide for registers.
static_assert(forward_policy(2048).threads_per_row == 64 && forward_policy(2048).rows_per_block == 2);
static_assert(forward_policy(4096).threads_per_row == 128 && forward_policy(4096).rows_per_block == 1);
static_assert(forward_policy(128).threads_per_row == 4 && forward_policy(128).rows_per_block == 32);
static_assert(forward_policy(65536).threads_per_row == 512 && backward_policy(65536).threads_per_row == 512);
static_assert(backward_policy(4096).block_size() == 256);

}  // namespace kernelworks::rmsnorm
