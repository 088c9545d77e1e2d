#include "operators/layer_norm_variance.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/rows/convert.h"
#include "runtime/fp_environment.h"
#include "runtime/parallel.h"

namespace descend {
namespace {

constexpr int64_t kBlock = 256;

kernels::Strided line(int64_t count) { return {.rank = 1, .shape = {count}, .from_stride = {1}, .to_stride = {1}}; }

// Calls use(values, count) for each block of a contiguous line, converted to double.
template <class Use>
void for_each_block(Dtype dtype, const char* from, int64_t count, Use use) {
  std::array<double, kBlock> values;
  const int64_t size = dtype_size(dtype);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    kernels::convert(line(length), element_of(dtype), from + begin * size, kernels::Element::kFloat64, values.data());
    use(values.data(), length);
  }
}

double variance(Dtype dtype, const char* row, int64_t columns) {
  double sum = 0, squares = 0;
  for_each_block(dtype, row, columns, [&](const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum += values[i];
  });
  const auto length = static_cast<double>(columns);
  const double mean = sum / length;
  for_each_block(dtype, row, columns, [&](const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) squares += (values[i] - mean) * (values[i] - mean);
  });
  return squares / length;
}

}  // namespace

std::vector<double> row_variances(Dtype dtype, const void* x, int64_t rows, int64_t columns) {
  std::vector<double> result(static_cast<size_t>(rows));
  const int64_t row_bytes = columns * dtype_size(dtype);
  const int64_t chunks = std::min<int64_t>(rows, 64);
  parallel_for(chunks, rows * row_bytes, [&](int64_t chunk) {
    for (int64_t row = rows * chunk / chunks; row < rows * (chunk + 1) / chunks; ++row) {
      result[static_cast<size_t>(row)] = variance(dtype, static_cast<const char*>(x) + row * row_bytes, columns);
    }
  });
  return result;
}

void reciprocal_deviations(int64_t count, Dtype dtype, const void* from, double epsilon, Dtype to_dtype, void* to) {
  const FixedFpEnvironment environment;
  char* out = static_cast<char*>(to);
  for_each_block(dtype, static_cast<const char*>(from), count, [&](double* values, int64_t length) {
    for (int64_t i = 0; i < length; ++i) values[i] = 1 / std::sqrt(values[i] + epsilon);
    kernels::convert(line(length), kernels::Element::kFloat64, values, element_of(to_dtype), out);
    out += length * dtype_size(to_dtype);
  });
}

}  // namespace descend
