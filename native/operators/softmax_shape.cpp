#include "operators/softmax_shape.h"

#include <cmath>

namespace descend {
namespace {

constexpr int64_t kMostColumns = 4096;  // on every product but host

bool triangle(const Call& call, int fix_triu_mask) { return call.given(fix_triu_mask) && call[fix_triu_mask].flag; }

// Whether the mask's dimensions, aligned at the last one, equal the shape's. The first `loose` may also be 1.
bool broadcasts(const Dims& mask, const Dims& shape, uint64_t loose) {
  if (mask.size() > shape.size()) return false;
  const uint64_t skipped = shape.size() - mask.size();
  for (uint64_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != shape[skipped + i] && !(mask[i] == 1 && skipped + i < loose)) return false;
  }
  return true;
}

Status check_huawei(const Call& call, const SoftmaxParameters& p) {
  const Dims& shape = call[p.main].tensor.shape;
  const char* product = info(call.product).name;
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kParamInvalid, parts...); };
  if (shape.size() != 4) {
    return invalid(call.name(p.main), " has shape ", to_string(shape), ", but must have rank 4, [B, N, S1, S2], on ",
                   product, ".");
  }
  if (shape[3] > kMostColumns || shape[3] < p.least_columns) {
    return invalid(call.name(p.main), " has shape ", to_string(shape), ", but its last dimension must be from ",
                   p.least_columns, " to ", kMostColumns, " on ", product, ".");
  }
  const Dims& mask = call[p.mask].tensor.shape;
  if (mask.size() != 4 || !broadcasts(mask, shape, 2)) {
    return invalid(call.name(p.mask), " has shape ", to_string(mask), ", but must be [B or 1, N or 1, S1, S2] for ",
                   call.name(p.main), " of shape ", to_string(shape), " on ", product, ".");
  }
  if (triangle(call, p.fix_triu_mask)) {
    return invalid(call.name(p.fix_triu_mask), " is true, but must be false on ", product, ".");
  }
  return {};
}

Status check_host(const Call& call, const SoftmaxParameters& p) {
  const Dims& shape = call[p.main].tensor.shape;
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kParamInvalid, parts...); };
  if (shape.empty()) return invalid(call.name(p.main), " has rank 0, but must have rank 1 to 8.");
  if (triangle(call, p.fix_triu_mask)) {
    if (shape.size() >= 2) return {};
    return invalid(call.name(p.main), " has shape ", to_string(shape), ", but must have rank 2 or more where ",
                   call.name(p.fix_triu_mask), " is true.");
  }
  const Tensor* mask = call.tensor(p.mask);
  if (mask == nullptr || broadcasts(mask->shape, shape, shape.size())) return {};
  return invalid(call.name(p.mask), " has shape ", to_string(mask->shape), ", which does not broadcast to that of ",
                 call.name(p.main), ", ", to_string(shape), ".");
}

}  // namespace

std::vector<DtypeRow> softmax_dtypes(size_t tensors, size_t mask) {
  std::vector<DtypeRow> rows;
  const auto add = [&](ProductSet products, Dtype dtype) {
    DtypeRow row{products, std::vector<DtypeSet>(tensors, DtypeSet{dtype})};
    row.sets[mask] = DtypeSet{Dtype::kBool};
    rows.push_back(std::move(row));
  };
  for (Dtype dtype : {Dtype::kFloat, Dtype::kFloat16, Dtype::kBfloat16}) add(kSoftmaxProducts, dtype);
  add(ProductSet(Product::kHost), Dtype::kDouble);
  return rows;
}

bool softmax_mask_counts(const Call& call, int fix_triu_mask) {
  return !(call.on_host() && triangle(call, fix_triu_mask));
}

Status check_softmax_shape(const Call& call, const SoftmaxParameters& p, SoftmaxShape* shape) {
  const Dims& main = call[p.main].tensor.shape;
  for (int i : p.others) DESCEND_RETURN_IF_ERROR(check_same_shape(call, i, p.main));
  DESCEND_RETURN_IF_ERROR(call.on_host() ? check_host(call, p) : check_huawei(call, p));
  shape->leading = main.size() - 1;
  shape->columns = main.back();
  shape->rows = 1;
  for (int64_t dim : main.slice(0, shape->leading)) shape->rows *= dim;
  return {};
}

kernels::Element softmax_element(const Call& call, int main, int scale) {
  const double value = call[scale].real;
  const bool fits = value == 0 || !std::isfinite(value) || std::isnormal(static_cast<float>(value));
  return fits ? element_of(call[main].tensor.dtype) : kernels::Element::kFloat64;
}

StagedMask::StagedMask(const Call& call, const SoftmaxParameters& p) {
  const Dims& shape = call[p.main].tensor.shape;
  if (triangle(call, p.fix_triu_mask)) {
    rows_.triangle = shape[shape.size() - 2];
    return;
  }
  const Tensor* mask = call.tensor(p.mask);
  if (mask == nullptr) return;
  present_ = true;
  place_ = Plan::tensor(call, p.mask);
  const uint64_t skipped = shape.size() - mask->rank();
  const auto stride = [&](uint64_t i) {
    return i < skipped || mask->shape[i - skipped] == 1 ? 0 : mask->strides[i - skipped];
  };
  rows_.column_stride = shape.back() == 1 ? 1 : stride(shape.size() - 1);
  // Merges neighbouring dimensions that can be stepped through as one.
  for (uint64_t i = 0; i + 1 < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    int64_t& last = rows_.stride[rows_.rank - (rows_.rank > 0)];
    if (rows_.rank > 0 && last == shape[i] * stride(i)) {
      rows_.shape[rows_.rank - 1] *= shape[i];
      last = stride(i);
    } else {
      rows_.shape[rows_.rank] = shape[i];
      rows_.stride[rows_.rank++] = stride(i);
    }
  }
}

}  // namespace descend
