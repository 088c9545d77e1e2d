#include "reference.h"

#include <algorithm>
#include <cmath>

#include "contract.h"
#include "operators.h"

namespace fuzz {
namespace {

int64_t count(const Shape& shape, size_t begin, size_t end) {
  int64_t value = 1;
  for (size_t i = begin; i < end; ++i) value *= shape[i];
  return value;
}

// Calls use(index of the row, index of the column, index of the element).
template <class Use>
void for_matrix(int64_t rows, int64_t columns, Use use) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) use(r, c, r * columns + c);
  }
}

// The gradients of (x - mean) * rstd * weight + bias; `centred`: mean is the row's own, so it has a gradient, too.
struct NormGradient {
  Numbers dx, dweight, dbias;
};
NormGradient norm_gradient(int64_t rows, int64_t columns, const Numbers& dy, const Numbers& x, const Numbers& mean,
                           const Numbers& rstd, const Numbers& weight, bool centred) {
  NormGradient result{Numbers(rows * columns), Numbers(columns), Numbers(columns)};
  Numbers sum_g(rows), sum_gx(rows);
  const auto xhat = [&](int64_t r, int64_t i) { return (x[i] - (centred ? mean[r] : 0)) * rstd[r]; };
  const auto g = [&](int64_t c, int64_t i) { return dy[i] * (weight.empty() ? 1 : weight[c]); };
  for_matrix(rows, columns, [&](int64_t r, int64_t c, int64_t i) {
    sum_g[r] += centred ? g(c, i) : 0;
    sum_gx[r] += g(c, i) * xhat(r, i);
    result.dweight[c] += dy[i] * xhat(r, i);
    result.dbias[c] += dy[i];
  });
  for_matrix(rows, columns, [&](int64_t r, int64_t c, int64_t i) {
    result.dx[i] = rstd[r] * (g(c, i) - (sum_g[r] + xhat(r, i) * sum_gx[r]) / static_cast<double>(columns));
  });
  return result;
}

std::vector<Numbers> rms_norm(const Call& call, const std::vector<Numbers>& in) {
  const Shape &x = call.tensors[0].shape, &gamma = call.tensors[1].shape;
  const int64_t columns = count(gamma, 0, gamma.size()), rows = count(x, 0, x.size() - gamma.size());
  Numbers y(rows * columns), rstd(rows);
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) { rstd[r] += in[0][i] * in[0][i]; });
  for (double& value : rstd) value = 1 / std::sqrt(value / static_cast<double>(columns) + call.epsilon);
  for_matrix(rows, columns, [&](int64_t r, int64_t c, int64_t i) { y[i] = in[0][i] * rstd[r] * in[1][c]; });
  return {y, rstd};
}

std::vector<Numbers> rms_norm_grad(const Call& call, const std::vector<Numbers>& in) {
  const Shape &x = call.tensors[1].shape, &gamma = call.tensors[3].shape;
  const int64_t columns = count(gamma, 0, gamma.size()), rows = count(x, 0, x.size() - gamma.size());
  NormGradient grad = norm_gradient(rows, columns, in[0], in[1], {}, in[2], in[3], false);
  return {grad.dx, grad.dweight};
}

struct Statistics {
  Numbers mean, rstd;
};
Statistics statistics(int64_t rows, int64_t columns, const Numbers& x, double epsilon) {
  Statistics result{Numbers(rows), Numbers(rows)};
  const auto n = static_cast<double>(columns);
  // First the sum, then the quotient: the variance of equal numbers is exactly 0.
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) { result.mean[r] += x[i]; });
  for (double& value : result.mean) value /= n;
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) {
    result.rstd[r] += (x[i] - result.mean[r]) * (x[i] - result.mean[r]);
  });
  for (double& value : result.rstd) value = 1 / std::sqrt(value / n + epsilon);
  return result;
}

std::vector<Numbers> layer_norm(const Call& call, const std::vector<Numbers>& in) {
  const Shape& x = call.tensors[0].shape;
  const size_t split = x.size() - call.list.values.size();
  const int64_t rows = count(x, 0, split), columns = count(x, split, x.size());
  Statistics of = statistics(rows, columns, in[0], call.epsilon);
  Numbers y(rows * columns);
  for_matrix(rows, columns, [&](int64_t r, int64_t c, int64_t i) {
    y[i] = (in[0][i] - of.mean[r]) * of.rstd[r] * (in[1].empty() ? 1 : in[1][c]) + (in[2].empty() ? 0 : in[2][c]);
  });
  return {y, of.mean, of.rstd};
}

std::vector<Numbers> layer_norm_backward(const Call& call, const std::vector<Numbers>& in) {
  const Shape& x = call.tensors[1].shape;
  const size_t split = x.size() - call.list.values.size();
  const int64_t rows = count(x, 0, split), columns = count(x, split, x.size());
  NormGradient grad = norm_gradient(rows, columns, in[0], in[1], in[2], in[3], in[4], true);
  return {grad.dx, grad.dweight, grad.dbias};
}

struct Groups {
  int64_t samples, groups, channels, pixels;  // channels of a group
  explicit Groups(const Call& call, const Shape& x)
      : samples(x[0]), groups(call.groups), channels(x[1] / groups), pixels(count(x, 2, x.size())) {}
  int64_t rows() const { return samples * groups; }
  int64_t columns() const { return channels * pixels; }
  int64_t channel(int64_t row, int64_t column) const { return row % groups * channels + column / pixels; }
};

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

std::vector<Numbers> group_norm_swish(const Call& call, const std::vector<Numbers>& in) {
  const Groups shape(call, call.tensors[0].shape);
  Statistics of = statistics(shape.rows(), shape.columns(), in[0], call.epsilon);
  Numbers y(in[0].size());
  for_matrix(shape.rows(), shape.columns(), [&](int64_t r, int64_t c, int64_t i) {
    const int64_t channel = shape.channel(r, c);
    const double z = (in[0][i] - of.mean[r]) * of.rstd[r] * in[1][channel] + in[2][channel];
    y[i] = call.flags[0] ? z * sigmoid(call.scale * z) : z;
  });
  return {y, of.mean, of.rstd};
}

std::vector<Numbers> group_norm_swish_grad(const Call& call, const std::vector<Numbers>& in) {
  const Numbers &dy = in[0], &mean = in[1], &rstd = in[2], &x = in[3], &gamma = in[4], &beta = in[5];
  const Groups shape(call, call.tensors[3].shape);
  const double s = call.scale;
  Numbers dx(x.size()), dgamma(gamma.size()), dbeta(gamma.size()), c1(shape.rows()), c2(shape.rows()), dz(x.size());
  const auto xhat = [&](int64_t r, int64_t i) { return (x[i] - mean[r]) * rstd[r]; };
  const auto n = static_cast<double>(shape.columns());
  for_matrix(shape.rows(), shape.columns(), [&](int64_t r, int64_t c, int64_t i) {
    const int64_t channel = shape.channel(r, c);
    const double z = xhat(r, i) * gamma[channel] + beta[channel];
    dz[i] = dy[i] * sigmoid(s * z) * (1 + s * z * sigmoid(-s * z));
    dbeta[channel] += dz[i];
    dgamma[channel] += dz[i] * xhat(r, i);
    c1[r] += dz[i] * gamma[channel] / n;
    c2[r] += dz[i] * gamma[channel] * xhat(r, i) / n;
  });
  for_matrix(shape.rows(), shape.columns(), [&](int64_t r, int64_t c, int64_t i) {
    dx[i] = rstd[r] * (dz[i] * gamma[shape.channel(r, c)] - c1[r] - xhat(r, i) * c2[r]);
  });
  return {dx, dgamma, dbeta};
}

// Calls use(window, index in weight, index in input, index in the windowed tensor) for every product of the sum.
template <class Use>
void for_windows(const Call& call, const Shape& input, Use use) {
  std::vector<int64_t> starts;
  (void)windows(call, input[0], &starts);
  const int64_t heads = input[1], size = input[2];
  for (size_t c = 0; c < starts.size(); ++c) {
    for (int64_t w = 0; w < call.block; ++w) {
      for (int64_t n = 0; n < heads; ++n) {
        for (int64_t d = 0; d < size; ++d) {
          use(w * heads + n, ((starts[c] + w) * heads + n) * size + d,
              (static_cast<int64_t>(c) * heads + n) * size + d);
        }
      }
    }
  }
}

std::vector<Numbers> nsa_compress(const Call& call, const std::vector<Numbers>& in) {
  const Shape& out = call.tensors[2].shape;
  Numbers result(count(out, 0, 3));
  for_windows(call, call.tensors[0].shape, [&](int64_t w, int64_t t, int64_t o) { result[o] += in[1][w] * in[0][t]; });
  return {result};
}

std::vector<Numbers> nsa_compress_grad(const Call& call, const std::vector<Numbers>& in) {
  Numbers dinput(in[1].size()), dweight(in[2].size());
  for_windows(call, call.tensors[1].shape, [&](int64_t w, int64_t t, int64_t o) {
    dinput[t] += in[2][w] * in[0][o];
    dweight[w] += in[0][o] * in[1][t];
  });
  return {dinput, dweight};
}

// Whether element i of a tensor of this shape is masked.
bool is_masked(const Call& call, const Shape& shape, const Numbers& mask, int64_t i) {
  if (call.flags[0]) {
    const int64_t columns = shape[shape.size() - 1], rows = shape[shape.size() - 2];
    return i % columns > i / columns % rows;
  }
  const TensorArgument& tensor = call.tensors[call.inputs - 1];
  if (tensor.handle != Handle::kAlive) return false;
  int64_t place = 0, step = 1;
  for (size_t back = 1; back <= shape.size(); ++back) {
    const int64_t index = i % shape[shape.size() - back];
    i /= shape[shape.size() - back];
    if (back > tensor.shape.size()) continue;
    const int64_t dim = tensor.shape[tensor.shape.size() - back];
    place += (dim == 1 ? 0 : index) * step;
    step *= dim;
  }
  return mask[place] != 0;
}

std::vector<Numbers> softmax(const Call& call, const std::vector<Numbers>& in) {
  const bool backward = call.op == Op::kSoftmaxBackward;
  const Shape& shape = call.tensors[0].shape;
  const Numbers& mask = in.back();
  const int64_t rows = count(shape, 0, shape.size() - 1), columns = shape.back();
  Numbers result(rows * columns), sum(rows), most(rows, -HUGE_VAL);
  const auto z = [&](int64_t i) { return is_masked(call, shape, mask, i) ? -10000 : call.scale * in[0][i]; };
  if (backward) {
    for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) { sum[r] += in[0][i] * in[1][i]; });
    for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) {
      const bool masked = is_masked(call, shape, mask, i);
      result[i] = masked ? 0 : call.scale * (in[0][i] * in[1][i] - in[1][i] * sum[r]);
    });
    return {result};
  }
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) { most[r] = std::max(most[r], z(i)); });
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) { sum[r] += result[i] = std::exp(z(i) - most[r]); });
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) { result[i] /= sum[r]; });
  return {result};
}

}  // namespace

std::vector<Numbers> reference(const Call& call, const std::vector<Numbers>& inputs) {
  switch (call.op) {
    case Op::kRmsNorm:
      return rms_norm(call, inputs);
    case Op::kRmsNormGrad:
      return rms_norm_grad(call, inputs);
    case Op::kLayerNorm:
      return layer_norm(call, inputs);
    case Op::kLayerNormBackward:
      return layer_norm_backward(call, inputs);
    case Op::kGroupNormSwish:
      return group_norm_swish(call, inputs);
    case Op::kGroupNormSwishGrad:
      return group_norm_swish_grad(call, inputs);
    case Op::kNsaCompress:
      return nsa_compress(call, inputs);
    case Op::kNsaCompressGrad:
      return nsa_compress_grad(call, inputs);
    case Op::kSoftmax:
    case Op::kSoftmaxBackward:
      return softmax(call, inputs);
    case Op::kOfTable:
      return compute_in_double(call, inputs);
  }
  return {};
}

}  // namespace fuzz
