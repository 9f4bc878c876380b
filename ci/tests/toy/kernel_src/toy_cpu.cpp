// SPDX-License-Identifier: Apache-2.0
// The toy kernel on the CPU.
#include "toy.h"

#include <cmath>
#include <memory>

#include "factor.h"

namespace toy {

const char* launch(const Params& params, void*) {
  // A shared_ptr because it pulls in __libc_single_threaded, which the builder has to deal with.
  const auto shared = std::make_shared<float>(factor);
  const auto other = shared;
  // A double exp for the same reason: glibc 2.29 has a newer version of it.
  const double one = std::exp(-std::ldexp(1.0, -60) * static_cast<double>(params.count));
  for (int64_t i = 0; i < params.count; ++i) params.y[i] = params.x[i] * *other * static_cast<float>(one);
  return nullptr;
}

}  // namespace toy
