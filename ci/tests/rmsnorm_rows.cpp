// SPDX-License-Identifier: Apache-2.0
// RMSNorm's CPU backend without torch: every element type and some widths, against double arithmetic.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "rmsnorm.h"

using namespace kernelworks;
using namespace kernelworks::rmsnorm;

namespace {

double widen_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -value : value;
}

double widen_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// An array of one of the element types, written with exact values and read as double.
struct Array {
  Scalar scalar;
  std::vector<unsigned char> bytes;

  Array(Scalar type, int count) : scalar(type), bytes(static_cast<size_t>(count) * size_of(type)) {}

  template <class T>
  T& at(int i) {
    return *reinterpret_cast<T*>(&bytes[i * sizeof(T)]);
  }
  // Values with few bits, which every type holds: multiples of 1/64 below 2.
  void set(int i, int seed) {
    const double value = ((seed * 37 + 11) % 255 - 127) / 64.0;
    switch (scalar) {
      case Scalar::f32: at<float>(i) = static_cast<float>(value); break;
      case Scalar::f64: at<double>(i) = value; break;
      case Scalar::bf16: {
        const float narrow = static_cast<float>(value);
        uint32_t bits;
        std::memcpy(&bits, &narrow, sizeof(bits));
        at<uint16_t>(i) = static_cast<uint16_t>(bits >> 16);
        break;
      }
      case Scalar::f16: {
        int exponent = 0;
        const int fraction = static_cast<int>(std::frexp(std::fabs(value), &exponent) * 2048);
        at<uint16_t>(i) = value == 0 ? 0 : (value < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + fraction - 1024;
        break;
      }
    }
  }
  double get(int i) {
    switch (scalar) {
      case Scalar::f32: return at<float>(i);
      case Scalar::f64: return at<double>(i);
      case Scalar::bf16: return widen_bfloat16(at<uint16_t>(i));
      case Scalar::f16: return widen_half(at<uint16_t>(i));
    }
    return NAN;
  }
};

// Half a unit in the last place, and what fp32 accumulation may add.
double tolerance(Scalar scalar) {
  switch (scalar) {
    case Scalar::f32: return 5e-7;
    case Scalar::f16: return 1.001 / 2048;
    case Scalar::bf16: return 1.001 / 256;
    case Scalar::f64: return 1e-14;
  }
  return 0;
}

bool check(Scalar scalar, Scalar weight_scalar, int width) {
  constexpr int rows = 5;
  Array x(scalar, rows * width), weight(weight_scalar, width), y(scalar, rows * width);
  for (int i = 0; i < rows * width; ++i) x.set(i, i);
  for (int i = 0; i < width; ++i) weight.set(i, i + 5);
  ForwardParams params;
  params.problem.scalar = scalar;
  params.problem.rows = rows;
  params.problem.width = width;
  params.eps = 1e-6;
  const int64_t size = rows, stride = width;
  params.x.data = x.bytes.data();
  params.x.layout.assign(&size, &stride, 1);
  params.weight = {weight.bytes.data(), weight_scalar};
  params.y = y.bytes.data();
  forward_cpu(params, 0, rows);
  for (int row = 0; row < rows; ++row) {
    double sum = 0;
    for (int i = 0; i < width; ++i) sum += x.get(row * width + i) * x.get(row * width + i);
    const double rstd = 1 / std::sqrt(sum / width + params.eps);
    for (int i = 0; i < width; ++i) {
      const double truth = x.get(row * width + i) * rstd * weight.get(i), got = y.get(row * width + i);
      if (!(std::fabs(got - truth) <= tolerance(scalar) * std::fmax(std::fabs(truth), 1e-3))) {
        std::printf("type %d width %d row %d column %d: %.9g, wanted %.9g\n", static_cast<int>(scalar), width,
                    row, i, got, truth);
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main() {
  bool right = true;
  const Scalar scalars[] = {Scalar::f32, Scalar::f16, Scalar::bf16, Scalar::f64};
  for (const Scalar scalar : scalars) {
    for (const Scalar weight : scalars) {
      for (const int width : {1, 3, 7, 64, 129, 4097}) right = check(scalar, weight, width) && right;
    }
  }
  std::puts(right ? "right" : "wrong");
  return right ? 0 : 1;
}
