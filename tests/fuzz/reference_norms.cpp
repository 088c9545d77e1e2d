// RMS norm, layer norm and group norm, of sums too, and their gradients.
#include "references.h"

namespace fuzz {
namespace {

struct Statistics {
  Numbers mean, rstd;
};

Statistics statistics(int64_t rows, int64_t columns, const Numbers& x, double epsilon) {
  Statistics result{zeros(rows), zeros(rows)};
  const auto n = static_cast<double>(columns);
  // The first number, and the mean difference from it: the variance of equal numbers is exactly 0.
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) { result.mean[r] += x[i] - x[r * columns]; });
  if (columns > 0) {
    for (int64_t r = 0; r < rows; ++r) result.mean[r] = x[r * columns] + result.mean[r] / n;
  }
  for_matrix(rows, columns, [&](int64_t r, int64_t, int64_t i) {
    result.rstd[r] += (x[i] - result.mean[r]) * (x[i] - result.mean[r]);
  });
  for (double& value : result.rstd) value = 1 / std::sqrt(value / n + epsilon);
  return result;
}

// The gradients of (x - mean) * rstd * weight + bias; `centred`: mean is the row's own, so it has a gradient, too.
struct NormGradient {
  Numbers dx, dweight, dbias;
};
NormGradient norm_gradient(int64_t rows, int64_t columns, const Numbers& dy, const Numbers& x, const Numbers& mean,
                           const Numbers& rstd, const Numbers& weight, bool centred) {
  NormGradient result{zeros(rows * columns), zeros(columns), zeros(columns)};
  Numbers sum_g = zeros(rows), sum_gx = sum_g;
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

struct Matrix {
  int64_t rows, columns;
  // The last dimensions of x are those of gamma, which may begin with more of 1.
  Matrix(const Shape& x, const Shape& gamma)
      : rows(count(x, 0, x.size() - std::min(x.size(), gamma.size()))), columns(count(gamma)) {
    if (columns > 0) rows = count(x) / columns;
  }
};

struct RmsNorm {
  Numbers y, rstd;
};
RmsNorm rms_norm_of(const Matrix& of, const Numbers& x, const Numbers& gamma, double epsilon) {
  RmsNorm result{Numbers(x.size()), zeros(of.rows)};
  for_matrix(of.rows, of.columns, [&](int64_t r, int64_t, int64_t i) { result.rstd[r] += x[i] * x[i]; });
  for (double& value : result.rstd) value = 1 / std::sqrt(value / static_cast<double>(of.columns) + epsilon);
  for_matrix(of.rows, of.columns,
             [&](int64_t r, int64_t c, int64_t i) { result.y[i] = x[i] * result.rstd[r] * gamma[c]; });
  return result;
}

struct LayerNorm {
  Numbers y;
  Statistics of;
};
LayerNorm layer_norm_of(int64_t rows, int64_t columns, const Numbers& x, const Numbers& weight, const Numbers& bias,
                        double epsilon) {
  LayerNorm result{Numbers(x.size()), statistics(rows, columns, x, epsilon)};
  for_matrix(rows, columns, [&](int64_t r, int64_t c, int64_t i) {
    const double xhat = (x[i] - result.of.mean[r]) * result.of.rstd[r];
    result.y[i] = xhat * (weight.empty() ? 1 : weight[c]) + (bias.empty() ? 0 : bias[c]);
  });
  return result;
}

// factor * a + b, rounded once, so that equal sums are equal numbers; b may be left out.
Numbers add(double factor, const Numbers& a, const Numbers& b) {
  Numbers result = a;
  for (size_t i = 0; i < a.size(); ++i) result[i] = std::fma(factor, a[i], b.empty() ? 0 : b[i]);
  return result;
}

double epsilon_of(const Call& call) { return call.op == Op::kOfTable ? call.attributes[0].real : call.epsilon; }

Matrix rows_of_list(const Call& call, const Shape& x) { return {x, call.list.values}; }

struct Groups {
  int64_t samples, groups, channels, pixels;  // channels of a group
  Groups(const Shape& x, int64_t groups_)
      : samples(x[0]), groups(groups_), channels(x[1] / groups), pixels(count(x, 2, x.size())) {}
  // By the numbers N, C, HxW and group, which are the first attributes.
  explicit Groups(const Call& call)
      : samples(call.attributes[0].integer),
        groups(call.attributes[3].integer),
        channels(call.attributes[1].integer / groups),
        pixels(call.attributes[2].integer) {}
  int64_t rows() const { return samples * groups; }
  int64_t columns() const { return channels * pixels; }
  int64_t all_channels() const { return groups * channels; }
  int64_t channel(int64_t row, int64_t column) const { return row % groups * channels + column / pixels; }
};

// Group norm, then z * sigmoid(scale * z) if `activate`.
std::vector<Numbers> group_norm_of(const Groups& shape, const std::vector<Numbers>& in, double epsilon, bool activate,
                                   double scale) {
  const Statistics of = statistics(shape.rows(), shape.columns(), in[0], epsilon);
  Numbers y(in[0].size());
  for_matrix(shape.rows(), shape.columns(), [&](int64_t r, int64_t c, int64_t i) {
    const int64_t channel = shape.channel(r, c);
    const double xhat = (in[0][i] - of.mean[r]) * of.rstd[r];
    const double z = xhat * (in[1].empty() ? 1 : in[1][channel]) + (in[2].empty() ? 0 : in[2][channel]);
    y[i] = activate ? z * sigmoid(scale * z) : z;
  });
  return {y, of.mean, of.rstd};
}

// The gradients of what slope(xhat * gamma, channel) is the slope of.
template <class Slope>
std::vector<Numbers> group_norm_gradient(const Groups& shape, const Numbers& dy, const Numbers& x, const Numbers& mean,
                                         const Numbers& rstd, const Numbers& gamma, Slope slope) {
  Numbers dx(x.size()), dz(x.size()), c1(mean.size()), c2(mean.size());
  Numbers dgamma = zeros(shape.all_channels()), dbeta = dgamma;
  const auto n = static_cast<double>(shape.columns());
  const auto xhat = [&](int64_t r, int64_t i) { return (x[i] - mean[r]) * rstd[r]; };
  const auto weight = [&](int64_t channel) { return gamma.empty() ? 1 : gamma[channel]; };
  for_matrix(shape.rows(), shape.columns(), [&](int64_t r, int64_t c, int64_t i) {
    const int64_t channel = shape.channel(r, c);
    dz[i] = dy[i] * slope(xhat(r, i) * weight(channel), channel);
    dbeta[channel] += dz[i];
    dgamma[channel] += dz[i] * xhat(r, i);
    c1[r] += dz[i] * weight(channel) / n;
    c2[r] += dz[i] * weight(channel) * xhat(r, i) / n;
  });
  for_matrix(shape.rows(), shape.columns(), [&](int64_t r, int64_t c, int64_t i) {
    dx[i] = rstd[r] * (dz[i] * weight(shape.channel(r, c)) - c1[r] - xhat(r, i) * c2[r]);
  });
  return {dx, dgamma, dbeta};
}

}  // namespace

std::vector<Numbers> rms_norm(const Call& call, const std::vector<Numbers>& in) {
  const RmsNorm result = rms_norm_of({call.tensors[0].shape, call.tensors[1].shape}, in[0], in[1], epsilon_of(call));
  return {result.y, result.rstd};
}

std::vector<Numbers> gemma_rms_norm(const Call& call, const std::vector<Numbers>& in) {
  std::vector<Numbers> with_one = in;
  for (double& weight : with_one[1]) weight += 1;
  return rms_norm(call, with_one);
}

std::vector<Numbers> add_rms_norm(const Call& call, const std::vector<Numbers>& in) {
  const Numbers x = add(1, in[0], in[1]);
  const RmsNorm result = rms_norm_of({call.tensors[0].shape, call.tensors[2].shape}, x, in[2], epsilon_of(call));
  return {result.y, result.rstd, x};
}

std::vector<Numbers> add_rms_norm_in_place(const Call& call, const std::vector<Numbers>& in) {
  const std::vector<Numbers> results = add_rms_norm(call, in);
  return {results[1], results[0], results[2]};
}

std::vector<Numbers> rms_norm_grad(const Call& call, const std::vector<Numbers>& in) {
  const Matrix of(call.tensors[1].shape, call.tensors[3].shape);
  const NormGradient grad = norm_gradient(of.rows, of.columns, in[0], in[1], {}, in[2], in[3], false);
  return {grad.dx, grad.dweight};
}

std::vector<Numbers> layer_norm(const Call& call, const std::vector<Numbers>& in) {
  const Matrix of = rows_of_list(call, call.tensors[0].shape);
  LayerNorm result = layer_norm_of(of.rows, of.columns, in[0], in[1], in[2], epsilon_of(call));
  // The variance comes of an epsilon of 0.
  if (call.has_variance) {
    result.of = statistics(of.rows, of.columns, in[0], 0);
    for (double& value : result.of.rstd) value = 1 / (value * value);
  }
  return {result.y, result.of.mean, result.of.rstd};
}

std::vector<Numbers> layer_norm_backward(const Call& call, const std::vector<Numbers>& in) {
  const Matrix of = rows_of_list(call, call.tensors[1].shape);
  Numbers rstd = in[3];
  // The epsilon is that of CANN's definition.
  const bool is_wide = call.product != Product::kAscend950 || call.tensors[1].dtype == ACL_FLOAT;
  for (double& value : rstd) value = call.has_variance ? 1 / std::sqrt(value + (is_wide ? 1e-12 : 1e-5)) : value;
  const NormGradient grad = norm_gradient(of.rows, of.columns, in[0], in[1], in[2], rstd, in[4], true);
  return {grad.dx, grad.dweight, grad.dbias};
}

std::vector<Numbers> add_layer_norm(const Call& call, const std::vector<Numbers>& in) {
  const Matrix of(call.tensors[0].shape, call.tensors[2].shape);
  Numbers x = add(1, in[0], in[1]);
  const bool like_x = in[4].size() == x.size();
  for_matrix(of.rows, of.columns,
             [&](int64_t, int64_t c, int64_t i) { x[i] += in[4].empty() ? 0 : in[4][like_x ? i : c]; });
  const LayerNorm result = layer_norm_of(of.rows, of.columns, x, in[2], in[3], epsilon_of(call));
  return {result.y, result.of.mean, result.of.rstd, x};
}

std::vector<Numbers> add_layer_norm_grad(const Call& call, const std::vector<Numbers>& in) {
  const Matrix of(call.tensors[0].shape, call.tensors[5].shape);
  const Numbers x = add(1, in[1], in[2]);
  const NormGradient grad = norm_gradient(of.rows, of.columns, in[0], x, in[4], in[3], in[5], true);
  return {add(1, grad.dx, in[6]), grad.dweight, grad.dbias};
}

std::vector<Numbers> deep_norm(const Call& call, const std::vector<Numbers>& in) {
  const Matrix of(call.tensors[0].shape, call.tensors[3].shape);
  const Numbers z = add(call.attributes[0].real, in[0], in[1]);
  const LayerNorm result = layer_norm_of(of.rows, of.columns, z, in[3], in[2], call.attributes[1].real);
  return {result.of.mean, result.of.rstd, result.y};
}

std::vector<Numbers> deep_norm_grad(const Call& call, const std::vector<Numbers>& in) {
  const Matrix of(call.tensors[1].shape, call.tensors[3].shape);
  const double alpha = call.attributes[0].real;
  const Numbers z = add(alpha, in[1], in[2]);
  const NormGradient grad = norm_gradient(of.rows, of.columns, in[0], z, in[4], in[5], in[3], true);
  return {add(alpha, grad.dx, {}), grad.dx, grad.dbias, grad.dweight};
}

std::vector<Numbers> group_norm_swish(const Call& call, const std::vector<Numbers>& in) {
  return group_norm_of({call.tensors[0].shape, call.groups}, in, call.epsilon, call.flags[0], call.scale);
}

std::vector<Numbers> group_norm_silu(const Call& call, const std::vector<Numbers>& in) {
  const std::vector<Attribute>& attributes = call.attributes;
  const bool activate = attributes.size() < 3 || attributes[2].integer != 0;
  return group_norm_of({call.tensors[0].shape, attributes[0].integer}, in, attributes[1].real, activate, 1);
}

std::vector<Numbers> group_norm(const Call& call, const std::vector<Numbers>& in) {
  return group_norm_of(Groups(call), in, call.attributes[4].real, false, 1);
}

std::vector<Numbers> group_norm_swish_grad(const Call& call, const std::vector<Numbers>& in) {
  const double s = call.scale;
  const Numbers& beta = in[5];
  return group_norm_gradient({call.tensors[3].shape, call.groups}, in[0], in[3], in[1], in[2], in[4],
                             [&](double weighted, int64_t channel) {
                               const double z = weighted + beta[channel];
                               return sigmoid(s * z) * (1 + s * z * sigmoid(-s * z));
                             });
}

std::vector<Numbers> group_norm_backward(const Call& call, const std::vector<Numbers>& in) {
  return group_norm_gradient(Groups(call), in[0], in[1], in[2], in[3], in[4], [](double, int64_t) { return 1; });
}

}  // namespace fuzz
