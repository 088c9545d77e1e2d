#include "operators/group_norm_shape.h"

namespace descend {
namespace {

// Whether a * b = product, for numbers from 0 up. Correct even if a * b overflows.
bool multiplies_to(int64_t a, int64_t b, int64_t product) {
  return a == 0 ? product == 0 : product % a == 0 && product / a == b;
}

}  // namespace

Status check_group_norm_shape(const Call& call, const GroupNormParameters& at, kernels::GroupShape* shape) {
  const auto invalid = [&](const auto&... parts) { return call.fail(Code::kTilingError, parts...); };
  const Dims& x = call[at.x].tensor.shape;
  if (x.size() < 2) return invalid(call.name(at.x), " has shape ", to_string(x), ", but must have rank 2 to 8.");
  const int64_t samples = x[0], channels = x[1], groups = call[at.groups].integer;
  if (groups <= 0) return invalid(call.name(at.groups), " is ", groups, ", but must be positive.");
  if (channels % groups != 0) {
    return invalid(call.name(at.groups), " is ", groups, ", but must divide the ", channels, " channels of ",
                   call.name(at.x), ", whose shape is ", to_string(x), ".");
  }
  for (int i : {at.gamma, at.beta}) {
    const Dims& got = call[i].tensor.shape;
    if (got == Dims{channels}) continue;
    return invalid(call.name(i), " has shape ", to_string(got), ", but must have shape [", channels,
                   "], one element for each channel of ", call.name(at.x), ", whose shape is ", to_string(x), ".");
  }
  for (int i : {at.mean, at.rstd}) {
    const Tensor& got = call[i].tensor;
    if (multiplies_to(samples, groups, got.elements())) continue;
    return invalid(call.name(i), " has shape ", to_string(got.shape), ", but must have one element for each of ",
                   groups, " groups of each of ", samples, " samples.");
  }
  const int64_t elements = call[at.x].tensor.elements();
  *shape = {samples, channels, groups, elements == 0 ? 0 : elements / samples / channels};
  return {};
}

FoldedSamples fold_samples(const kernels::GroupShape& shape, int64_t enough) {
  constexpr int64_t kLeast = 4;  // fold at least so many samples; with fewer the copies take as much time as they save
  const int64_t elements = shape.channels * shape.inner;
  if (!kernels::has_short_channels(shape) || elements == 0 || kLeast * elements > enough) {
    return {.main = shape, .rest = {.channels = shape.channels, .groups = shape.groups}};
  }
  int64_t times = std::clamp<int64_t>(enough / elements, 1, std::max<int64_t>(shape.samples, 1));
  for (int64_t fewer = times; 2 * fewer > times; --fewer) {
    if (shape.samples % fewer == 0) {  // no samples are left over
      times = fewer;
      break;
    }
  }
  FoldedSamples folded{.times = times, .main = shape, .rest = shape};
  folded.main.samples = shape.samples / times;
  folded.main.channels *= times;
  folded.main.groups *= times;
  folded.rest.samples = shape.samples % times;
  return folded;
}

}  // namespace descend
