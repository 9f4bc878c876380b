// SPDX-License-Identifier: Apache-2.0
// Rotary embedding without torch: what the ops need to know, and the entry points of each backend.
//
// Pair j of a head turns by an angle that depends on the token and on j alone; q, k and all heads share it:
//
//   out[a] = in[a] * cos - in[b] * sin       out[b] = in[b] * cos + in[a] * sin
//
// where (a, b) = (2j, 2j + 1) if interleaved, else (j, j + pairs). Lanes from 2 * pairs on are copied. The angle
// is coords[token][axis[j]] * inv_freq[j], rounded once to fp32 (fp64 for fp64), or its cosine and sine are read.
// With a norm in front, in = n * weight with n = x * rsqrt(mean(x * x) + eps), over a head or over all of them.
//
// Rounding points. Everything is computed in fp32 (fp64 for fp64), the normalised value included, and the result is
// rounded once to the element type.
#pragma once

#include <cstdint>
#include <string>

#include "vendor/dispatch.h"

namespace kernelworks::rope3d {

constexpr int64_t max_axes = 4;  // coordinates of a token

enum class Norm : int8_t { none, head, full };

struct Problem {
  Scalar scalar = Scalar::f32;
  int64_t batch = 0;
  int64_t tokens = 0;
  int32_t width = 0;  // of a head
  int32_t pairs = 0;  // that turn, of each head
  bool interleaved = true;
  Norm norm = Norm::none;
  double eps = 0;
};

// Element (b, t, h, i) of a tensor is data[b * batch + t * token + h * head + i], strides in elements.
struct Strides {
  int64_t batch = 0;
  int64_t token = 0;
  int64_t head = 0;
};

// Where the angles come from. On a CPU every number is of the accumulator's type (fp64 for fp64, else fp32),
// tables apart.
struct Angles {
  // (b, t, a) is coords[b * coords_batch + t * coords_token + a]. Null: read tables.
  const void* coords = nullptr;
  int64_t coords_batch = 0;  // 0: shared by all samples
  int64_t coords_token = 0;
  const void* inv_freq = nullptr;  // pairs long
  const int32_t* axis = nullptr;   // pairs long; null: coordinate 0 for all
  int32_t axes = 0;                // coordinates of a token; on a GPU nobody has looked whether each axis is below

  // (b, t, j) is cos[b * table_batch + t * table_token + j * table_pair].
  const void* cos = nullptr;
  const void* sin = nullptr;
  Scalar table_scalar = Scalar::f32;
  int64_t table_batch = 0;  // 0: shared by all samples
  int64_t table_token = 0;
  int32_t table_pair = 1;  // 2 where both lanes of a pair have their own entry beside each other; the first counts,
                           // and memory may end with the last pair's first
};

struct Weight {
  const void* data = nullptr;  // null: none; else contiguous, as long as what is normalised
  Scalar scalar = Scalar::f32;
};

struct ForwardTensor {
  int32_t heads = 0;  // 0: there is no such tensor
  const void* in = nullptr;
  Strides in_strides;
  void* out = nullptr;  // may be `in`, with its strides
  Strides out_strides;
  Weight weight;         // with a norm only
  void* rstd = nullptr;  // with a norm, null: no gradient will be wanted; else contiguous: (batch, tokens, heads),
                         // or (batch, tokens) for all heads
};

struct ForwardParams {
  Problem problem;
  bool inverse = false;  // turn back: the gradient of a rotation
  Angles angles;
  ForwardTensor q;
  ForwardTensor k;
};

// With a norm only. g = the gradient turned back, times the weight:
//   grad_x = rstd * (g - n * mean(g * n))
//   grad_weight = sum over rows of the gradient turned back * n, in fp32 (fp64), in an order that the shape and the
//   GPU's number of multiprocessors alone decide.
struct BackwardTensor {
  int32_t heads = 0;
  const void* grad = nullptr;
  Strides grad_strides;
  const void* x = nullptr;
  Strides x_strides;
  Weight weight;
  const void* rstd = nullptr;
  void* grad_x = nullptr;
  Strides grad_x_strides;
  void* grad_weight = nullptr;  // null: not wanted; else weight.scalar
  void* partials = nullptr;     // scratch for it: fp32 (fp64), partial_rows * length of the weight
};

struct BackwardParams {
  Problem problem;
  Angles angles;
  BackwardTensor q;
  BackwardTensor k;
  int32_t partial_rows = 0;
};

// CUDA: launch on `stream` (a cudaStream_t) of the current device. The result is empty, or says what failed.
std::string forward_cuda(const ForwardParams& params, void* stream);
std::string backward_cuda(const BackwardParams& params, void* stream);
int32_t partial_rows_cuda(const Problem& problem, int32_t heads);

// CPU: tokens [begin, end) of all samples' tokens, token i being that of position i / batch in sample i % batch, so
// that samples share the angles of a position. Backward with a weight gradient adds those up in the partial row
// `partial`.
void forward_cpu(const ForwardParams& params, int64_t begin, int64_t end);
void backward_cpu(const BackwardParams& params, int64_t begin, int64_t end, int32_t partial);
// Adds up the partials of columns [begin, end) into grad_weight of q, or of k.
void reduce_partials_cpu(const BackwardParams& params, const BackwardTensor& tensor, int64_t begin, int64_t end);
int32_t partial_rows_cpu(const Problem& problem);

}  // namespace kernelworks::rope3d
