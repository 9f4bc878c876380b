// SPDX-License-Identifier: Apache-2.0
// Launch choices of the CUDA backend, as values. Which thread owns which element depends on the width and the
// element size alone, never on the number of rows, on addresses or on the GPU: a row's sum must not change with
// its neighbours. The measurements behind the numbers are in docs/rmsnorm-tuning.md.
#pragma once

#include <cstdint>

namespace kernelworks::rmsnorm {

// A row is cut into granules of 16 bytes, dealt out in turn to the threads that share it.
constexpr int granule_bytes = 16;

enum class Shape : int8_t {
  two,    // granules in the registers of each thread
  three,  // where two would leave a quarter of the threads without work
  wide,   // in shared memory, up to eight and as many as fit; what does not fit is read twice
};

struct RowPolicy {
  int threads_per_row;  // a power of two
  int rows_per_block;
  Shape shape;

  constexpr int block_size() const { return threads_per_row * rows_per_block; }
};

// A block has at least so many threads, by taking several rows where one needs fewer.
constexpr int min_block = 128;
constexpr int max_block = 1024;
constexpr int max_held_block = 256;  // of the shapes whose rows lie in registers
constexpr int most_per_thread = 8;   // granules of a wide row
constexpr int max_backward_block = 512;

constexpr int64_t granules_of(int32_t width, int element_size) {
  return (static_cast<int64_t>(width) * element_size + granule_bytes - 1) / granule_bytes;
}

constexpr RowPolicy forward_policy(int32_t width, int element_size) {
  const int64_t granules = granules_of(width, element_size);
  if (granules > max_held_block * 3) {
    int threads = max_held_block;
    while (threads < max_block && threads * most_per_thread < granules) threads *= 2;
    return {threads, 1, Shape::wide};
  }
  int threads = 4;
  while (threads * 2 < granules) threads *= 2;
  const bool three = threads > 4 && threads / 2 * 3 >= granules;
  if (three) threads /= 2;
  return {threads, threads < min_block ? min_block / threads : 1, three ? Shape::three : Shape::two};
}

// As forward, but for wide rows, whose threads have more to keep.
constexpr RowPolicy backward_policy(int32_t width, int element_size) {
  const RowPolicy policy = forward_policy(width, element_size);
  if (policy.shape != Shape::wide) return policy;
  const bool two = granules_of(width, element_size) <= max_backward_block * 2;
  return {max_backward_block, 1, two ? Shape::two : Shape::three};
}

// Backward: rows under way for each thread, copied ahead into shared memory.
constexpr int most_stages = 3;

// Blocks of the persistent backward: enough to fill the GPU, and few enough that the partials stay small. More
// of them read rows that lie further apart, which the memory serves less well.
constexpr int64_t backward_blocks(int64_t rows, RowPolicy policy, int multiprocessors) {
  constexpr int threads_per_multiprocessor = 512;
  const int64_t wanted = (rows + policy.rows_per_block - 1) / policy.rows_per_block;
  const int64_t resident = static_cast<int64_t>(multiprocessors) * (threads_per_multiprocessor / policy.block_size());
  return wanted < resident ? wanted : resident;
}

// In bf16: hidden sizes of LTX-Video (2048), Wan (3072), Qwen3-8B (4096), Qwen3's head, and wide rows.
static_assert(forward_policy(2048, 2).threads_per_row == 128 && forward_policy(2048, 2).shape == Shape::two);
static_assert(forward_policy(3072, 2).threads_per_row == 128 && forward_policy(3072, 2).shape == Shape::three);
static_assert(forward_policy(4096, 2).threads_per_row == 256 && forward_policy(4096, 2).shape == Shape::two);
static_assert(forward_policy(128, 2).threads_per_row == 8 && forward_policy(128, 2).rows_per_block == 16);
static_assert(forward_policy(8192, 2).threads_per_row == 256 && forward_policy(8192, 2).shape == Shape::wide);
static_assert(forward_policy(65536, 2).block_size() == max_block && backward_policy(65536, 2).block_size() == 512);

}  // namespace kernelworks::rmsnorm
