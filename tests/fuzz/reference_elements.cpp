// What is computed element by element: activations, rotary position embedding, AdamW, and gradients.
#include <cstring>

#include "references.h"

namespace fuzz {
namespace {

constexpr double kCube = 0.044715;
const double kFactor = 2 * std::sqrt(2 / M_PI);

// GELU and its slope, by the normal distribution's function or by tanh.
double gelu_at(double x, bool by_tanh) {
  const double u = kFactor * (x + kCube * x * x * x);
  return by_tanh ? x * sigmoid(u) : x * std::erfc(-x / M_SQRT2) / 2;
}
double gelu_slope(double x, bool by_tanh) {
  const double u = kFactor * (x + kCube * x * x * x);
  if (by_tanh) return sigmoid(u) + x * sigmoid(u) * sigmoid(-u) * kFactor * (1 + 3 * kCube * x * x);
  return std::erfc(-x / M_SQRT2) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}

Numbers gelu_of(const Numbers& x, bool by_tanh) {
  Numbers y;
  for (double value : x) y.push_back(gelu_at(value, by_tanh));
  return y;
}

Numbers gelu_gradient(const Call& call, const std::vector<Numbers>& in, bool by_tanh) {
  const Shape& shape = call.tensors.back().shape;
  Numbers result(count(shape));
  for (int64_t i = 0; i < count(shape); ++i) {
    result[i] = in[0][broadcast_element(call.tensors[0].shape, shape, i)] *
                gelu_slope(in[1][broadcast_element(call.tensors[1].shape, shape, i)], by_tanh);
  }
  return result;
}

// Calls use(element of the result, of its first and of its second half of x), where x is cut into halves along `dim`.
template <class Use>
void for_halves(const Shape& x, int64_t dim, Use use) {
  const Vectors of(x, dim);
  const int64_t half = of.length / 2;
  of.for_each([&](int64_t v, int64_t k, int64_t i) {
    if (k < half) use((v / of.after * half + k) * of.after + v % of.after, i, i + half * of.after);
  });
}

// Rotary position embedding of rows: in place k of each stands x[at(k)], and sign(k) * x[at(partner(k))] beside it.
class Rows {
 public:
  Rows(const Shape& shape, int64_t mode) : mode_(mode), length_(shape.back()), count_(count(shape)) {}
  int64_t count_all() const { return count_; }
  int64_t partner(int64_t k) const { return k + (is_first(k) ? distance() : -distance()); }
  double sign(int64_t k) const { return is_first(k) ? -1 : 1; }
  // Of mode 3, which takes pairs of neighbours apart.
  int64_t at(int64_t k) const {
    const int64_t half = length_ / 2;
    return mode_ != 3 ? k : k < half ? 2 * k : 2 * (k - half) + 1;
  }
  // Calls use(k, index of the row's beginning).
  template <class Use>
  void for_each(Use use) const {
    for (int64_t i = 0; i < count_; ++i) use(i % length_, i - i % length_);
  }

 private:
  int64_t mode_, length_, count_;

  int64_t distance() const { return mode_ == 1 ? 1 : mode_ == 2 ? length_ / 4 : length_ / 2; }
  bool is_first(int64_t k) const { return k / distance() % 2 == 0; }
};

struct AdamW {
  double lr, beta1, beta2, decay, eps;
  double rest1, rest2;  // 1 - beta^t
  bool amsgrad, maximize;
};

// The new var, m, v and largest v.
std::vector<Numbers> adam_w_step(const AdamW& by, const Numbers& vars, const Numbers& ms, const Numbers& vs,
                                 const Numbers& largest, const Numbers& gradients) {
  std::vector<Numbers> result(4);
  for (size_t i = 0; i < vars.size(); ++i) {
    const double g = by.maximize ? -gradients[i] : gradients[i];
    const double old_m = by.beta1 * ms[i], new_m = (1 - by.beta1) * g;
    const double old_v = by.beta2 * vs[i], new_v = (1 - by.beta2) * g * g;
    // As the terms of a quotient both need their digits; as results they do not.
    double m = sum_of(old_m, new_m), u = sum_of(old_v, new_v);
    double most = old_v + new_v;
    if (by.amsgrad) most = std::max(most, largest[i]), u = most == largest[i] ? most : u;
    const double divisor = sum_of(std::sqrt(u) / std::sqrt(by.rest2), by.eps);
    const bool known = m != kNotCompared && u != kNotCompared && divisor != kNotCompared;
    result[0].push_back(known ? (1 - by.lr * by.decay) * vars[i] - by.lr * (m / by.rest1) / divisor : kNotCompared);
    result[1].push_back(old_m + new_m);
    result[2].push_back(old_v + new_v);
    result[3].push_back(most);
  }
  return result;
}

}  // namespace

std::vector<Numbers> gelu(const Call&, const std::vector<Numbers>& in) { return {gelu_of(in[0], true)}; }

std::vector<Numbers> gelu_v2(const Call& call, const std::vector<Numbers>& in) {
  return {gelu_of(in[0], call.attributes[0].integer == 1)};
}

std::vector<Numbers> gelu_backward(const Call& call, const std::vector<Numbers>& in) {
  return {gelu_gradient(call, in, true)};
}

std::vector<Numbers> gelu_backward_v2(const Call& call, const std::vector<Numbers>& in) {
  return {gelu_gradient(call, in, std::strcmp(call.text, "tanh") == 0)};
}

std::vector<Numbers> swi_glu(const Call& call, const std::vector<Numbers>& in) {
  Numbers out(in[0].size() / 2);
  for_halves(call.tensors[0].shape, call.attributes[0].integer, [&](int64_t i, int64_t first, int64_t second) {
    const double a = in[0][first], b = in[0][second];
    out[i] = a * sigmoid(a) * b;
  });
  return {out};
}

std::vector<Numbers> swi_glu_grad(const Call& call, const std::vector<Numbers>& in) {
  Numbers out(in[1].size());
  for_halves(call.tensors[1].shape, call.attributes[0].integer, [&](int64_t i, int64_t first, int64_t second) {
    const double a = in[1][first], b = in[1][second];
    out[first] = in[0][i] * (sigmoid(a) + sigmoid(a) * sigmoid(-a) * a) * b;
    out[second] = in[0][i] * sigmoid(a) * a;
  });
  return {out};
}

std::vector<Numbers> rotary_position_embedding(const Call& call, const std::vector<Numbers>& in) {
  const Shape &shape = call.tensors[0].shape, &angles = call.tensors[1].shape;
  const Rows rows(shape, call.attributes[0].integer);
  const Numbers& x = in[0];
  Numbers out(x.size());
  rows.for_each([&](int64_t k, int64_t row) {
    const int64_t angle = broadcast_element(angles, shape, row + k);
    const double turned = rows.sign(k) * x[row + rows.at(rows.partner(k))];
    out[row + k] = x[row + rows.at(k)] * in[1][angle] + turned * in[2][angle];
  });
  return {out};
}

std::vector<Numbers> rotary_position_embedding_grad(const Call& call, const std::vector<Numbers>& in) {
  const Shape &shape = call.tensors[0].shape, &angles = call.tensors[1].shape;
  const Rows rows(shape, call.attributes[0].integer);
  const Numbers &dy = in[0], &cos = in[1], &sin = in[2], &x = in[3];
  Numbers dx(dy.size()), dcos(cos.size()), dsin(cos.size());
  rows.for_each([&](int64_t k, int64_t row) {
    const int64_t angle = broadcast_element(angles, shape, row + k);
    const int64_t member = row + rows.at(k), partner = row + rows.at(rows.partner(k));
    // The transpose of the forward: what dy[k] brings to each of the two elements that out[k] is made of.
    dx[member] += dy[row + k] * cos[angle];
    dx[partner] += rows.sign(k) * dy[row + k] * sin[angle];
    if (x.empty()) return;
    dcos[angle] += dy[row + k] * x[member];
    dsin[angle] += dy[row + k] * rows.sign(k) * x[partner];
  });
  return {dx, dcos, dsin};
}

std::vector<Numbers> apply_adam_w_v2(const Call& call, const std::vector<Numbers>& in) {
  const std::vector<Attribute>& a = call.attributes;
  const double t = in[5][0] + 1, beta1 = a[1].real, beta2 = a[2].real;
  const AdamW by{.lr = a[0].real,
                 .beta1 = beta1,
                 .beta2 = beta2,
                 .decay = a[3].real,
                 .eps = a[4].real,
                 .rest1 = 1 - std::pow(beta1, t),
                 .rest2 = 1 - std::pow(beta2, t),
                 .amsgrad = a[5].integer != 0,
                 .maximize = a[6].integer != 0};
  return adam_w_step(by, in[0], in[1], in[2], in[3], in[4]);
}

std::vector<Numbers> apply_adam_w(const Call& call, const std::vector<Numbers>& in) {
  const auto number = [&](size_t i) { return in[i][0]; };
  const AdamW by{.lr = number(5),
                 .beta1 = number(7),
                 .beta2 = number(8),
                 .decay = number(6),
                 .eps = number(9),
                 .rest1 = 1 - number(3) * number(7),
                 .rest2 = 1 - number(4) * number(8),
                 .amsgrad = call.attributes[0].integer != 0,
                 .maximize = call.attributes[1].integer != 0};
  std::vector<Numbers> results = adam_w_step(by, in[0], in[1], in[2], in[11], in[10]);
  results.pop_back();  // the largest v is not written
  return results;
}

}  // namespace fuzz
