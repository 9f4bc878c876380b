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

// Granules (of 16 bytes) of a row that one thread keeps in registers; columns beyond what the row's threads keep
// are read again after the reduction, from L2. Measured on an H200 in bf16: forward at 4096x4096 takes 19.9 us
// with 4, 24.5 with 2 and 22.0 with 8; backward at 32768x4096 takes 259 us with 4 and 302 with 2.
constexpr int kept_granules = 4;

// 128 registers for each thread.
constexpr int max_block = 512;
// A block has at least so many threads, by taking several rows where one needs fewer.
constexpr int min_block = 128;

constexpr LaunchPolicy launch_policy(int32_t width, int element_size) {
  constexpr int min_threads_per_row = 4;
  const int64_t bytes = static_cast<int64_t>(width) * element_size;
  int threads = min_threads_per_row;
  while (threads < max_block && threads * kept_granules * 16 < bytes) threads *= 2;
  return {threads, threads < min_block ? min_block / threads : 1};
}

// Columns that the threads of a block which takes several rows keep, at most.
constexpr int max_shared_columns = min_block / 2 * kept_granules * 8;

// Blocks of the persistent backward: enough to fill the GPU, and few enough that the partials stay small.
constexpr int64_t backward_blocks(int64_t rows, LaunchPolicy policy, int multiprocessors) {
  constexpr int threads_per_multiprocessor = 512;
  const int64_t wanted = (rows + policy.rows_per_block - 1) / policy.rows_per_block;
  const int64_t resident = static_cast<int64_t>(multiprocessors) * threads_per_multiprocessor / policy.block_size();
  return wanted < resident ? wanted : resident;
}

// In bf16: the hidden sizes of LTX-Video and Qwen3-8B, Qwen3's head; a row too wide for registers.
static_assert(launch_policy(2048, 2).threads_per_row == 64 && launch_policy(2048, 2).rows_per_block == 2);
static_assert(launch_policy(4096, 2).threads_per_row == 128 && launch_policy(4096, 2).rows_per_block == 1);
static_assert(launch_policy(128, 2).threads_per_row == 4 && launch_policy(128, 2).rows_per_block == 32);
static_assert(launch_policy(65536, 2).block_size() == max_block);

}  // namespace kernelworks::rmsnorm
