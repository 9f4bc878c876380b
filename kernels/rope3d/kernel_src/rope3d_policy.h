// SPDX-License-Identifier: Apache-2.0
// Launch choices of the CUDA backend, as values. The measurements behind the numbers are in docs/rope3d-tuning.md.
#pragma once

#include <cstdint>

#include "vendor/row_layout.h"
#include "vendor/row_policy.h"

namespace kernelworks::rope3d {

// What a thread turns of a head: a unit of so many pairs, in accesses of 16 bytes (of one element where addresses do
// not allow that). Interleaved pairs lie in one granule, the two lanes of the others in two.
constexpr int pairs_of_unit(int element_size, bool vector, bool interleaved) {
  return !vector ? 1 : granule_bytes / element_size / (interleaved ? 2 : 1);
}

// The units of a head: first those that turn, then those that are copied.
struct Units {
  int32_t turning;
  int32_t all;
};

constexpr Units units_of(int32_t width, int32_t pairs, int pairs_each, bool interleaved) {
  if (interleaved) return {pairs / pairs_each, (width + 2 * pairs_each - 1) / (2 * pairs_each)};
  const int32_t turning = pairs / pairs_each, rest = width - 2 * pairs;
  return {turning, turning + (rest + pairs_each - 1) / pairs_each};
}

// ---- without a norm ----------------------------------------------------------------------------------------

constexpr int rotate_block = 128;
constexpr int granules_at_once = 4;  // that a thread has under way

// Heads of a token, in all tensors and all samples that share its angles, are dealt out to `parts` threads, each of which
// works out the angles again: ten heads each where there are many, and fewer only where the GPU would not be filled.
constexpr int parts_of_items(int64_t threads, int64_t items, int multiprocessors) {
  constexpr int64_t enough_items = 10, enough_threads = 16 * 2048, least_threads = 512;  // of a multiprocessor
  const int64_t wanted = (enough_threads * multiprocessors + threads - 1) / threads;
  const int64_t most = (items + enough_items - 1) / enough_items;
  const int64_t parts = wanted < most ? wanted : most;
  if (threads * parts >= least_threads * multiprocessors) return static_cast<int>(parts);
  const int64_t needed = (least_threads * multiprocessors + threads - 1) / threads;
  return static_cast<int>(needed < items ? needed : items);
}

// Threads counted through all tokens of a launch.
struct Grid {
  uint32_t first_token;
  uint32_t count;  // of threads; below 2**31, so that a Divisor serves
  uint32_t each_token;  // threads
  int32_t items;  // heads of a token, in all samples that share its angles
  int32_t parts;
  int32_t items_each;
  Divisor by_token;
  Divisor by_heads;
  Divisor by_parts;
  Divisor by_tokens;  // of a sample, where each has its own angles
};

constexpr int64_t most_threads = (int64_t{1} << 31) - 65536;
constexpr int few_items = 4;  // heads of a token, up to which a thread has two units of each

// ---- with a norm -------------------------------------------------------------------------------------------

// Halves of one head ask for more registers, and so for smaller blocks.
constexpr int max_norm_block(bool interleaved, bool full) { return interleaved || full ? 512 : 384; }
constexpr int wide_block = 256;

// Rows that a thread has under way: so many granules in all.
constexpr int rows_at_once(int granules_of_row) { return granules_of_row < 4 ? 4 / granules_of_row : 1; }

// Units of a row for each thread: two of a long row, whose reduction and addresses cost as much as those of one.
constexpr int held_units(bool full) { return full ? 2 : 1; }

// Whether a row of so many units fits a block.
constexpr bool fits_block(int64_t units, bool interleaved, bool full) {
  return units <= int64_t{max_norm_block(interleaved, full)} * held_units(full);
}

constexpr RowPolicy norm_policy(int64_t units, bool interleaved, bool full) {
  // row_policy counts granules; here they stand for units.
  return row_policy(static_cast<int32_t>(units), granule_bytes, held_units(full), max_norm_block(interleaved, full));
}

// Backward: blocks of a multiprocessor. Each leaves a row of partial sums, so they are few.
constexpr int backward_blocks = 4;

}  // namespace kernelworks::rope3d
