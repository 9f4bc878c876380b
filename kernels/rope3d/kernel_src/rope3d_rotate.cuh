// SPDX-License-Identifier: Apache-2.0
// Rotation alone: a thread works out the angles of its unit once, and turns that unit of every head of the token.
#pragma once

#include "rope3d_kernel.cuh"
#include "vendor/launch.cuh"

namespace kernelworks::rope3d {

// A thread has Held units of a head, `each_token` of them apart. Index: of an element among those of a token in all
// samples; 32 bits nearly always.
template <class T, bool Vector, bool Interleaved, int Held, class Index>
__global__ void __launch_bounds__(rotate_block)
    rotate_kernel(const __grid_constant__ ForwardParams params, const __grid_constant__ Grid grid) {
  using U = Unit<T, Vector, Interleaved>;
  constexpr int at_once = Held * U::granules < granules_at_once ? granules_at_once / (Held * U::granules) : 1;
  const Problem& problem = params.problem;
  const uint32_t block = grid.by_parts.quotient(blockIdx.x), part = blockIdx.x - block * grid.parts;
  const uint32_t index = block * rotate_block + threadIdx.x;
  const uint32_t place = grid.by_token.quotient(index);
  const int unit = static_cast<int>(index - place * grid.each_token);
  wait_for_earlier_kernels();
  let_next_kernel_start();
  if (index >= grid.count) return;

  Spot spot[Held];
#pragma unroll
  for (int g = 0; g < Held; ++g) spot[g] = U::spot(problem, unit + g * grid.each_token, U::units(problem));
  const uint32_t token = grid.first_token + place;
  const uint32_t first_sample = per_sample(params.angles) ? grid.by_tokens.quotient(token) : 0;
  const uint32_t t = token - first_sample * static_cast<uint32_t>(problem.tokens);
  const T* in[2] = {token_of<T>(params.q.in, params.q.in_strides, first_sample, t),
                    token_of<T>(params.k.in, params.k.in_strides, first_sample, t)};
  const T* out[2] = {token_of<T>(params.q.out, params.q.out_strides, first_sample, t),
                     token_of<T>(params.k.out, params.k.out_strides, first_sample, t)};
  const int heads = params.q.heads + params.k.heads;
  const int begin = part * grid.items_each, end = min(begin + grid.items_each, grid.items);
  Turn<U> turn[Held];
  for (int start = begin; start < end; start += at_once) {
    U units[at_once][Held];
    T* to[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (start + i >= end) continue;
      const int sample = static_cast<int>(grid.by_heads.quotient(start + i)), head = start + i - sample * heads;
      const bool in_q = head < params.q.heads;
      const Strides &from = in_q ? params.q.in_strides : params.k.in_strides,
                    &into = in_q ? params.q.out_strides : params.k.out_strides;
      const int h = in_q ? head : head - params.q.heads;
      const auto offset = [&](const Strides& strides) {
        return static_cast<Index>(sample) * static_cast<Index>(strides.batch) +
               static_cast<Index>(h) * static_cast<Index>(strides.head);
      };
      to[i] = const_cast<T*>(in_q ? out[0] : out[1]) + offset(into);
#pragma unroll
      for (int g = 0; g < Held; ++g) units[i][g].load((in_q ? in[0] : in[1]) + offset(from), spot[g]);
    }
    if (start == begin) {  // while the first heads are on their way
#pragma unroll
      for (int g = 0; g < Held; ++g) {
        const int first = static_cast<int>(unit + g * grid.each_token) * U::pairs;
        turn[g].set(params.angles, first_sample, t, first, params.inverse ? -1.0f : 1.0f, spot[g].turns);
      }
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (start + i >= end) continue;
#pragma unroll
      for (int g = 0; g < Held; ++g) {
        if (turn[g].turns) {
          float values[U::granules][U::size];
          units[i][g].unpack(values);
          turn[g].apply(values);
          units[i][g].pack(values);
        }
        units[i][g].store(to[i], spot[g]);
      }
    }
  }
}

}  // namespace kernelworks::rope3d
