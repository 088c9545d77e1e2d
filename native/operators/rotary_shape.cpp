#include "operators/rotary_shape.h"

#include <algorithm>

namespace descend {
namespace {

enum { kHalf, kInterleave, kQuarter, kInterleaveHalf };

// On ascend-950 D has a limit alone; the others have all of these.
constexpr int64_t kMostColumns950 = 1024;
constexpr int64_t kMostColumns = 895;
constexpr int64_t kMostOfBatchOrHeads = 999;
constexpr int64_t kMostSummed = 1024;  // batch * heads where cos and sin have gradients

bool broadcasts(const Dims& cos, const Dims& x) {
  if (cos.size() != x.size()) return false;
  for (uint64_t d = 0; d + 1 < x.size(); ++d) {
    if (cos[d] != 1 && cos[d] != x[d]) return false;
  }
  return cos.back() == x.back();
}

// Where a layout has batch, heads and sequence.
struct Layout {
  uint64_t batch, heads, sequence;
};
constexpr Layout kBsnd{0, 2, 1};
constexpr Layout kLayouts[] = {{0, 1, 2}, kBsnd, {1, 2, 0}};  // BNSD, BSND, SBND

// TND is BSND of one sample.
Dims with_batch(const Dims& tnd) { return {1, tnd[0], tnd[1], tnd[2]}; }

// Whether cos has a shape that the page allows for x in this layout, and both are within its limits.
bool is_taken(const Layout& at, const Dims& x, const Dims& cos, int64_t mode, bool sums) {
  const int64_t batch = x[at.batch], heads = x[at.heads];
  if (cos[at.sequence] != x[at.sequence]) return false;
  if (mode == kInterleave) {
    return cos[at.batch] == 1 && cos[at.heads] == 1 && batch * heads <= kMostOfBatchOrHeads;
  }
  if (cos[at.heads] != 1 && (cos[at.heads] != heads || cos[at.batch] != batch)) return false;
  if (batch > kMostOfBatchOrHeads || heads > kMostOfBatchOrHeads) return false;
  return !sums || batch * heads <= kMostSummed;
}

Status check_product(const Call& call, const RotaryParameters& p) {
  const Dims &x = call[p.x].tensor.shape, &cos = call[p.cos].tensor.shape;
  const int64_t mode = call[p.mode].integer;
  const bool on_950 = call.product == Product::kAscend950;
  const auto refused = [&](const auto&... parts) {
    return call.fail(Code::kTilingError, parts..., " on ", info(call.product).name, ".");
  };
  if (!on_950 && mode > kInterleave) return refused(call.name(p.mode), " is ", mode, ", but must be 0 or 1");
  if (x.size() != 3 && x.size() != 4) {
    return refused(call.name(p.x), " has shape ", to_string(x), ", but must have rank 3 or 4");
  }
  if (const int64_t most = on_950 ? kMostColumns950 : kMostColumns; x.back() > most) {
    return refused(call.name(p.x), " has shape ", to_string(x), ", but its last dimension must be at most ", most);
  }
  const bool is_tnd = x.size() == 3;
  const auto is_taken_in = [&](const Layout& layout) { return is_taken(layout, x, cos, mode, p.sums); };
  const bool taken = on_950   ? !is_tnd || cos[0] == x[0]
                     : is_tnd ? is_taken(kBsnd, with_batch(x), with_batch(cos), mode, p.sums)
                              : std::any_of(std::begin(kLayouts), std::end(kLayouts), is_taken_in);
  if (taken) return {};
  const char* rule = on_950                ? "the first dimension of both the same"
                     : mode == kInterleave ? "1 but for the sequence, and batch * heads less than 1000"
                     : p.sums ? "1 for the heads or for batch and heads, or all of x's dimensions, batch and heads "
                                "less than 1000, and their product at most 1024"
                              : "1 for the heads or for batch and heads, or all of x's dimensions, and batch "
                                "and heads less than 1000";
  return refused(call.name(p.cos), " has shape ", to_string(cos), " for ", call.name(p.x), " of shape ", to_string(x),
                 ", but must have, in a layout ", is_tnd ? "TND, " : "BNSD, BSND or SBND, ", rule);
}

}  // namespace

std::vector<DtypeRow> rotary_dtypes(size_t tensors) {
  const auto row = [&](ProductSet products, DtypeSet dtypes) {
    return DtypeRow{products, std::vector<DtypeSet>(tensors, dtypes)};
  };
  constexpr ProductSet device(Product::kAtlasA3, Product::kAtlasA2Training, Product::kAtlasA2Inference,
                              Product::kAscend950);
  return {row(device, {Dtype::kFloat}), row(device, {Dtype::kFloat16}), row(device, {Dtype::kBfloat16}),
          row(ProductSet(Product::kHost), kAllFloats)};
}

Status check_rotary(const Call& call, const RotaryParameters& p) {
  const Dims &x = call[p.x].tensor.shape, &cos = call[p.cos].tensor.shape;
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kTilingError, parts...); };
  const auto has_shape = [&](int i, int other) { return check_same_shape(call, i, other, Code::kTilingError); };
  for (const int i : p.like_x) {
    if (call.given(i)) DESCEND_RETURN_IF_ERROR(has_shape(i, p.x));
  }
  if (p.any_empty && call[p.x].tensor.empty() && !call.on_host()) return {};
  const int64_t mode = call[p.mode].integer;
  if (mode < kHalf || mode > kInterleaveHalf) {
    return invalid(call.name(p.mode), " is ", mode, ", but must be 0, 1, 2 or 3.");
  }
  const int64_t multiple = mode == kQuarter ? 4 : 2;
  if (x.empty() || x.back() % multiple != 0) {
    return invalid(call.name(p.x), " has shape ", to_string(x), ", but its last dimension must be a multiple of ",
                   multiple, " in mode ", mode, ".");
  }
  DESCEND_RETURN_IF_ERROR(has_shape(p.sin, p.cos));
  if (!broadcasts(cos, x)) {
    return invalid(call.name(p.cos), " has shape ", to_string(cos), ", but must have ", x.size(),
                   " dimensions: the last as that of ", call.name(p.x), ", each other 1 or as that of ", call.name(p.x),
                   ", whose shape is ", to_string(x), ".");
  }
  for (const int i : p.like_cos) DESCEND_RETURN_IF_ERROR(has_shape(i, p.cos));
  return call.on_host() ? Status() : check_product(call, p);
}

RotaryRows rotary_rows(const Call& call, const RotaryParameters& p) {
  const int64_t columns = call[p.x].tensor.shape.back();
  switch (call[p.mode].integer) {
    case kInterleave:
      return {columns, kernels::Pairing::kNeighbours};
    case kQuarter:
      return {columns / 2, kernels::Pairing::kHalves};
    case kInterleaveHalf:
      return {columns, kernels::Pairing::kMixed};
    default:
      return {columns, kernels::Pairing::kHalves};
  }
}

}  // namespace descend
