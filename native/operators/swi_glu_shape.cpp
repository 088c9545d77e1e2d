#include "operators/swi_glu_shape.h"

namespace descend {
namespace {

using enum Product;

Status has_shape(const Call& call, int i, const Dims& expected, const char* rule, const SwiGluParameters& p) {
  const Dims& given = call[i].tensor.shape;
  if (given == expected) return {};
  return call.fail(Code::kParamInvalid, call.name(i), " has shape ", to_string(given), ", but must have ",
                   to_string(expected), ", ", rule, call.name(p.x), ", whose shape is ",
                   to_string(call[p.x].tensor.shape), ".");
}

// What single products refuse.
Status check_product(const Call& call, const SwiGluParameters& p, int64_t columns) {
  if (call.on_host()) return {};
  const Tensor& x = call[p.x].tensor;
  const auto refused = [&](const auto&... rule) {
    return call.fail(Code::kParamInvalid, call.name(p.x), " has shape ", to_string(x.shape), ", but ", rule..., " on ",
                     info(call.product).name, ".");
  };
  const bool is_inference = call.product == kAtlasInference;
  if (x.empty()) return p.takes_empty && !is_inference ? Status() : refused("must have elements");
  if (!is_inference || columns * dtype_size(x.dtype) % 64 == 0) return {};
  return refused("half of what dimension ", call[p.dim].integer, " and those after it have, ", columns,
                 " elements, must be a multiple of 64 bytes");
}

uint64_t place_of(const Call& call, const SwiGluParameters& p) {
  const int64_t dim = call[p.dim].integer;
  return static_cast<uint64_t>(dim < 0 ? dim + static_cast<int64_t>(call[p.x].tensor.rank()) : dim);
}

bool is_in_range(const Call& call, const SwiGluParameters& p) {
  const int64_t dim = call[p.dim].integer, rank = static_cast<int64_t>(call[p.x].tensor.rank());
  return -rank <= dim && dim < rank;
}

}  // namespace

std::vector<DtypeRow> swi_glu_dtypes(size_t tensors) {
  constexpr ProductSet with_bfloat16(kAtlasA3, kAtlasA2Training, kAtlasA2Inference, kAscend950);
  const auto row = [&](ProductSet products, DtypeSet dtypes) {
    return DtypeRow{products, std::vector<DtypeSet>(tensors, dtypes)};
  };
  return {row(with_bfloat16 | ProductSet(kAtlasInference), {Dtype::kFloat}),
          row(with_bfloat16 | ProductSet(kAtlasInference), {Dtype::kFloat16}), row(with_bfloat16, {Dtype::kBfloat16}),
          row(ProductSet(kHost), kAllFloats)};
}

Dims half_of_x(const Call& call, const SwiGluParameters& p) {
  Dims shape = call[p.x].tensor.shape;
  if (is_in_range(call, p)) shape[place_of(call, p)] /= 2;
  return shape;
}

Status check_swi_glu(const Call& call, const SwiGluParameters& p, HalvedShape* shape) {
  const Dims& x = call[p.x].tensor.shape;
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kParamInvalid, parts...); };
  if (x.empty()) return invalid(call.name(p.x), " has rank 0, but must have rank 1 to 8.");
  if (!is_in_range(call, p)) {
    return invalid(call.name(p.dim), " is ", call[p.dim].integer, ", but must be from -", x.size(), " to ",
                   x.size() - 1, " for ", call.name(p.x), " of shape ", to_string(x), ".");
  }
  shape->leading = place_of(call, p);
  if (x[shape->leading] % 2 != 0) {
    return invalid(call.name(p.x), " has shape ", to_string(x), ", but its dimension ", call[p.dim].integer,
                   " must have an even size.");
  }
  DESCEND_RETURN_IF_ERROR(has_shape(call, p.half, half_of_x(call, p), "half of ", p));
  DESCEND_RETURN_IF_ERROR(has_shape(call, p.whole, x, "that of ", p));
  shape->rows = shape->columns = 1;
  for (uint64_t i = 0; i < x.size(); ++i) (i < shape->leading ? shape->rows : shape->columns) *= x[i];
  shape->columns /= 2;
  return check_product(call, p, shape->columns);
}

}  // namespace descend
