// SPDX-License-Identifier: Apache-2.0
// The toy kernel's entry point: y = factor * x, for `count` floats.
#pragma once

#include <cstdint>

namespace toy {

struct Params {
  const float* x;
  float* y;
  int64_t count;
};

// `stream` is a cudaStream_t, or unused on the CPU. Returns nullptr, or what went wrong.
const char* launch(const Params& params, void* stream);

}  // namespace toy
