// Softmax and its logarithm, also scaled and masked, cross entropy, and their gradients.
#include <cstring>

#include "references.h"

namespace fuzz {
namespace {

// The softmax of each vector, or its logarithm.
Numbers softmax_of(const Vectors& of, const Numbers& z, bool logarithm) {
  Numbers result(z.size()), sum(of.vectors()), most(of.vectors(), -HUGE_VAL);
  of.for_each([&](int64_t v, int64_t, int64_t i) { most[v] = std::max(most[v], z[i]); });
  of.for_each([&](int64_t v, int64_t, int64_t i) { sum[v] += std::exp(z[i] - most[v]); });
  of.for_each([&](int64_t v, int64_t, int64_t i) {
    const double below = z[i] - most[v];
    result[i] = logarithm ? below - std::log(sum[v]) : std::exp(below) / sum[v];
  });
  return result;
}

Numbers softmax_gradient(const Vectors& of, const Numbers& dy, const Numbers& y) {
  Numbers result(dy.size()), sum(of.vectors());
  of.for_each([&](int64_t v, int64_t, int64_t i) { sum[v] += dy[i] * y[i]; });
  of.for_each([&](int64_t v, int64_t, int64_t i) { result[i] = dy[i] * y[i] - y[i] * sum[v]; });
  return result;
}

Vectors vectors_of(const Call& call) { return {call.tensors[0].shape, call.attributes[0].integer}; }

// Whether element i of a tensor of this shape is masked.
bool is_masked(const Call& call, const Shape& shape, const Numbers& mask, int64_t i) {
  if (call.flags[0]) {
    const int64_t columns = shape[shape.size() - 1], rows = shape[shape.size() - 2];
    return i % columns > i / columns % rows;
  }
  const TensorArgument& tensor = call.tensors[call.inputs - 1];
  return tensor.handle == Handle::kAlive && mask[broadcast_element(tensor.shape, shape, i)] != 0;
}

// The targets of a cross entropy's rows, and what each row's loss is multiplied by.
class Targets {
 public:
  Targets(const Call& call, const Numbers& targets, const Numbers& weights, int64_t classes)
      : targets_(targets),
        weights_(weights),
        ignored_(static_cast<double>(call.attributes[0].integer)),
        of_rows_(targets.size()) {
    for (int64_t n = 0; n < rows(); ++n) {
      if (!counts(n)) continue;
      ++counted_;
      const bool is_class = targets[n] >= 0 && targets[n] < static_cast<double>(classes);
      of_rows_[n] = is_class ? of_class(static_cast<int64_t>(targets[n])) : NAN;
      sum_ += of_rows_[n], sizes_ += std::abs(of_rows_[n]);
    }
    if (std::abs(sum_) < 0.01 * sizes_) sum_ = kNotCompared;
  }
  int64_t rows() const { return static_cast<int64_t>(targets_.size()); }
  bool counts(int64_t n) const { return targets_[n] != ignored_; }
  // The class of a row; 0 for one without.
  int64_t target(int64_t n) const {
    return std::isfinite(of_rows_[n]) && counts(n) ? static_cast<int64_t>(targets_[n]) : 0;
  }
  double of_class(int64_t c) const { return weights_.empty() ? 1 : weights_[c]; }
  double of_row(int64_t n) const { return of_rows_[n]; }  // 0 for one that does not count, NaN for one without a class
  double sum() const { return sum_; }                     // of the rows' weights
  double counted() const { return static_cast<double>(counted_); }

 private:
  const Numbers &targets_, &weights_;
  double ignored_;
  Numbers of_rows_;
  double sum_ = 0, sizes_ = 0;
  int64_t counted_ = 0;
};

bool is_reduction(const Call& call, const char* name) {
  return std::strcmp(call.text != nullptr ? call.text : "mean", name) == 0;
}

// Products other than host have no zloss.
double zloss_scale(const Call& call) { return call.product == Product::kHost ? call.attributes[2].real : 0; }

}  // namespace

std::vector<Numbers> masked_softmax(const Call& call, const std::vector<Numbers>& in) {
  const Shape& shape = call.tensors[0].shape;
  const Vectors of(shape, -1);
  if (call.op == Op::kSoftmaxBackward) {
    Numbers result = softmax_gradient(of, in[0], in[1]);
    of.for_each([&](int64_t, int64_t, int64_t i) {
      result[i] = is_masked(call, shape, in.back(), i) ? 0 : call.scale * result[i];
    });
    return {result};
  }
  Numbers z(in[0].size());
  of.for_each([&](int64_t, int64_t, int64_t i) {
    z[i] = is_masked(call, shape, in.back(), i) ? -10000 : call.scale * in[0][i];
  });
  return {softmax_of(of, z, false)};
}

std::vector<Numbers> softmax(const Call& call, const std::vector<Numbers>& in) {
  return {softmax_of(vectors_of(call), in[0], false)};
}

std::vector<Numbers> log_softmax(const Call& call, const std::vector<Numbers>& in) {
  return {softmax_of(vectors_of(call), in[0], true)};
}

std::vector<Numbers> softmax_backward(const Call& call, const std::vector<Numbers>& in) {
  return {softmax_gradient(vectors_of(call), in[0], in[1])};
}

std::vector<Numbers> log_softmax_backward(const Call& call, const std::vector<Numbers>& in) {
  const Vectors of = vectors_of(call);
  Numbers result(in[0].size()), sum(of.vectors());
  of.for_each([&](int64_t v, int64_t, int64_t i) { sum[v] += in[0][i]; });
  of.for_each([&](int64_t v, int64_t, int64_t i) { result[i] = in[0][i] - std::exp(in[1][i]) * sum[v]; });
  return {result};
}

std::vector<Numbers> cross_entropy_loss(const Call& call, const std::vector<Numbers>& in) {
  const Shape& shape = call.tensors[0].shape;
  const int64_t classes = shape[1];
  const Vectors of(shape, 1);
  const Targets targets(call, in[1], in[2], classes);
  const double s = call.attributes[1].real, scale = zloss_scale(call);
  const bool all_lse = call.tensors[call.inputs + 1].handle == Handle::kAlive;  // logProbOut needs it for all rows
  const Numbers log_prob = softmax_of(of, in[0], true);
  Numbers loss(targets.rows()), zloss(targets.rows()), lse(targets.rows());
  for (int64_t n = 0; n < targets.rows(); ++n) {
    lse[n] = in[0][n * classes] - log_prob[n * classes];
    if (!targets.counts(n)) {
      lse[n] = all_lse ? lse[n] : 0;
      continue;
    }
    double smooth = 0;
    for (int64_t c = 0; c < classes; ++c) smooth += targets.of_class(c) * log_prob[n * classes + c];
    loss[n] = -(1 - s) * targets.of_row(n) * log_prob[n * classes + targets.target(n)] -
              s / static_cast<double>(classes) * smooth;
    zloss[n] = scale * lse[n] * lse[n];
  }
  if (!is_reduction(call, "none")) {
    const auto reduce = [&](Numbers& of_rows, double divisor) {
      double sum = 0;
      for (double value : of_rows) sum += value;
      of_rows = {is_reduction(call, "sum") ? sum : divisor == kNotCompared ? kNotCompared : sum / divisor};
    };
    reduce(loss, targets.sum()), reduce(zloss, targets.counted());
  }
  for (size_t i = 0; i < loss.size(); ++i) loss[i] += scale == 0 ? 0 : zloss[i];
  return {loss, log_prob, zloss, lse};
}

std::vector<Numbers> cross_entropy_loss_grad(const Call& call, const std::vector<Numbers>& in) {
  const int64_t classes = call.tensors[1].shape[1];
  const Numbers &lse = in[5], &grad_zloss = in[4];
  const Targets targets(call, in[2], in[3], classes);
  const double s = call.attributes[1].real, scale = zloss_scale(call);
  const bool is_mean = is_reduction(call, "mean"), of_rows = is_reduction(call, "none");
  const bool takes_input = !lse.empty() && call.tensors[5].shape.size() == 2;
  double of_all = 0;
  for (int64_t c = 0; c < classes; ++c) of_all += targets.of_class(c);
  Numbers out(in[1].size());
  for (int64_t n = 0; n < targets.rows(); ++n) {
    if (!targets.counts(n)) continue;
    double g = in[0][of_rows ? n : 0], z = g + (grad_zloss.empty() ? 0 : grad_zloss[of_rows ? n : 0]);
    if (is_mean) g /= targets.sum(), z /= targets.counted();
    const double a = g * (1 - s) * targets.of_row(n), b = g * s / static_cast<double>(classes);
    const double factor = a + b * of_all + (scale == 0 ? 0 : 2 * scale * lse[n] * z);
    for (int64_t c = 0; c < classes; ++c) {
      const double log_prob = in[1][n * classes + c] - (takes_input ? lse[n] : 0);
      double& result = out[n * classes + c];
      result = std::exp(log_prob) * factor - b * targets.of_class(c) - (c == targets.target(n) ? a : 0);
      if (is_mean && targets.sum() == kNotCompared) result = kNotCompared;
    }
  }
  return {out};
}

}  // namespace fuzz
