#include "contract.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "table.h"

namespace fuzz {
namespace {

using Big = __int128;

constexpr int kNull = 161001, kInvalid = 161002, kTiling = 561002, kNoKernel = 561003;
constexpr Big kLimit = Big{1} << 62;

// Orders of the checks: kNsaRanks comes before what is the same for all tensors, kNsaValues after the other rules of
// the page.
enum Order { kArguments, kProduct, kMaskLength, kNsaRanks, kTensors, kPage, kNsaValues };
constexpr int kOrders = kNsaValues + 1;

// The broken rules, each with the place that the contract gives it in the order of checks.
class Breaches {
 public:
  void add(int order, int code) {
    found_[order].insert(code);
    first_ = std::min(first_, order);
  }
  void add_if(bool broken, int order, int code) {
    if (broken) add(order, code);
  }
  void doubt(int order, int code) { doubts_[order].insert(code); }
  void doubt_if(bool broken, int order, int code) {
    if (broken) doubt(order, code);
  }
  // The codes of the first order that has a breach; and of all doubts up to and including that order.
  Codes codes() const {
    Codes result = first_ < kOrders ? found_[first_] : Codes{0};
    for (int order = 0; order < kOrders && order <= first_; ++order) result.insert(doubts_[order]);
    return result;
  }

 private:
  using List = Codes[kOrders];
  List found_ = {{}, {}, {}, {}, {}, {}, {}}, doubts_ = {{}, {}, {}, {}, {}, {}, {}};
  int first_ = kOrders;
};

Big size_of(const Shape& shape) {  // below 2^125, as if it were not empty; exact up to 2^62
  Big value = 1;
  for (int64_t dim : shape) {
    if (dim > 0 && value < (Big{1} << 62)) value *= dim;
  }
  return value;
}
bool is_empty(const Shape& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }
Big elements(const Shape& shape) { return is_empty(shape) ? 0 : size_of(shape); }
bool is_negative(const Shape& shape) {
  return std::any_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < 0; });
}

Shape part(const Shape& shape, size_t begin, size_t end) { return Shape(shape.begin() + begin, shape.begin() + end); }
Shape without_ones(Shape shape) {
  while (!shape.empty() && shape.back() == 1) shape.pop_back();
  return shape;
}
bool ends_with(const Shape& shape, const Shape& end) {
  return end.size() <= shape.size() && std::equal(end.begin(), end.end(), shape.end() - end.size());
}

bool is_contiguous(const TensorArgument& tensor) {
  Big expected = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

bool is_public(int format) {
  return format == ACL_FORMAT_ND || format == ACL_FORMAT_NCHW || format == ACL_FORMAT_NHWC ||
         format == ACL_FORMAT_NCL || format == ACL_FORMAT_NC || format == ACL_FORMAT_HWCN ||
         format == ACL_FORMAT_NDHWC || format == ACL_FORMAT_NCDHW;
}

struct Range {
  Big low, high;  // the lowest and the highest element, from the tensor's data
};
Range range_of(const TensorArgument& tensor) {
  Range range{tensor.offset, tensor.offset};
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const Big reach = Big{tensor.shape[i] - 1} * tensor.strides[i];
    (reach < 0 ? range.low : range.high) += reach;
  }
  return range;
}

// The rules for a tensor by itself.
void check_layout(const TensorArgument& tensor, int size, Breaches& breaches) {
  breaches.add_if(!is_public(tensor.format), kTensors, kInvalid);
  breaches.add_if(tensor.shape.size() > 8, kTensors, kInvalid);
  if (is_negative(tensor.shape) || is_negative(tensor.storage)) return breaches.add(kTensors, kInvalid);
  if (size == 0) return;
  for (const Shape* shape : {&tensor.shape, &tensor.storage}) {
    const bool large = size_of(*shape) > kLimit / size;
    // "A size that overflows is refused": said of sizes, and a tensor without elements has none.
    breaches.add_if(large && !is_empty(*shape), kTensors, kInvalid);
    breaches.doubt_if(large, kTensors, kInvalid);
  }
  breaches.doubt_if(elements(tensor.shape) > (Big{1} << 57), kTensors, kInvalid);
  // Not said by the contract: an element at an odd address cannot be read as one.
  breaches.add_if(reinterpret_cast<uintptr_t>(tensor.data) % size != 0, kTensors, kInvalid);
  if (is_empty(tensor.shape)) {
    // "The storage must end inside that allocation": nothing of it is touched.
    breaches.doubt_if(elements(tensor.storage) * size > Big{tensor.room}, kTensors, kInvalid);
    return;
  }
  const Range range = range_of(tensor);
  breaches.add_if(range.low < 0 || range.high >= elements(tensor.storage), kTensors, kInvalid);
  breaches.add_if(tensor.data != nullptr && elements(tensor.storage) * size > Big{tensor.room}, kTensors, kInvalid);
}

// Whether no two elements share a place: 1 yes, 0 no, -1 too many to try.
int is_injective(const TensorArgument& tensor) {
  const std::vector<int64_t>* const found = places(tensor);
  if (found == nullptr) return is_contiguous(tensor) ? 1 : -1;
  std::vector<int64_t> all = *found;
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

// The bytes that a tensor's elements lie in.
std::vector<intptr_t> addresses(const TensorArgument& tensor) {
  const std::vector<int64_t>* const all = places(tensor);
  std::vector<intptr_t> result;
  if (all == nullptr) return result;
  result.reserve(all->size());
  const int64_t size = element_size(tensor.dtype);
  for (int64_t place : *all) result.push_back(reinterpret_cast<intptr_t>(tensor.data) + place * size);
  return result;
}

bool ranges_meet(const TensorArgument& a, const TensorArgument& b) {
  const auto bytes = [](const TensorArgument& tensor) {
    const Range range = range_of(tensor);
    const Big data = reinterpret_cast<intptr_t>(tensor.data), size = element_size(tensor.dtype);
    return Range{data + range.low * size, data + (range.high + 1) * size};
  };
  if (a.data == nullptr || b.data == nullptr || is_empty(a.shape) || is_empty(b.shape)) return false;
  const Range first = bytes(a), second = bytes(b);
  return first.low < second.high && second.low < first.high;
}

// Whether two tensors whose byte ranges meet may be an output and another tensor.
bool may_share(const TensorArgument& output, const TensorArgument& other, bool other_is_input) {
  if (output.dtype != other.dtype || output.shape.size() != other.shape.size()) return false;
  for (size_t i = 0; i < output.shape.size(); ++i) {
    const bool matters = output.shape[i] != 1 && other.shape[i] != 1;
    if (matters && output.strides[i] != other.strides[i]) return false;
  }
  const auto mine = addresses(output);
  auto theirs = addresses(other);
  if (other_is_input && output.shape == other.shape && mine == theirs) return true;
  std::sort(theirs.begin(), theirs.end());
  return std::none_of(mine.begin(), mine.end(),
                      [&](intptr_t place) { return std::binary_search(theirs.begin(), theirs.end(), place); });
}

class Rules {
 public:
  explicit Rules(const Call& call) : call_(call) {}

  Codes run() {
    check_arguments();
    breaches_.add_if(!exists(call_), kProduct, kNoKernel);
    if (arguments_missing_) return breaches_.codes();
    if (is_nsa()) check_nsa_ranks();
    check_dtypes();
    check_tensors();
    check_page();
    return breaches_.codes();
  }

 private:
  const Call& call_;
  Breaches breaches_;
  bool arguments_missing_ = false;

  bool host() const { return call_.product == Product::kHost; }
  bool is_nsa() const { return call_.op == Op::kNsaCompress || call_.op == Op::kNsaCompressGrad; }
  bool is_softmax() const { return call_.op == Op::kSoftmax || call_.op == Op::kSoftmaxBackward; }
  const TensorArgument& at(size_t i) const { return call_.tensors[i]; }
  bool given(size_t i) const { return at(i).handle == Handle::kAlive && counts(i); }
  bool is_output(size_t i) const { return i >= call_.inputs; }

  // Whether the call looks at tensor i.
  bool counts(size_t i) const {
    if (call_.op == Op::kOfTable) return table_counts(call_, i);
    if (call_.op == Op::kLayerNormBackward && is_output(i)) {
      return call_.mask.values.size() != 3 || call_.mask.values[i - call_.inputs] != 0;
    }
    if (is_softmax() && i + 1 == call_.inputs) return !(host() && call_.flags[0]);
    return true;
  }
  bool is_optional(size_t i) const { return fuzz::is_optional(call_, parameter(call_, i)); }

  void missing(bool is, int code, int order = kArguments) {
    breaches_.add_if(is, order, code);
    arguments_missing_ = arguments_missing_ || is;
  }

  void check_arguments() {
    missing(call_.no_size || call_.no_executor, kNull);
    check_list(descend::Kind::kIntArray, call_.list);
    check_list(descend::Kind::kBoolArray, call_.mask);
    const descend::Parameter* const text = find_parameter(call_, descend::Kind::kString);
    missing(text != nullptr && call_.text == nullptr && !fuzz::is_optional(call_, *text), kNull);
    const bool backward = call_.op == Op::kLayerNormBackward;
    const bool bad_mask = backward && call_.mask.handle == Handle::kAlive && call_.mask.values.size() != 3;
    missing(bad_mask, kInvalid, kMaskLength);
    // Not said for an empty one.
    const bool needs_lengths = call_.op == Op::kNsaCompress && !host();
    if (needs_lengths && call_.list.values.empty()) breaches_.doubt(kArguments, kNull);
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      if (is_output(i) && bad_mask) continue;
      if (!counts(i)) continue;
      missing(at(i).handle == Handle::kNull && !is_optional(i), kNull);
      missing(at(i).handle == Handle::kDead, kInvalid);
    }
  }

  void check_list(descend::Kind kind, const ListArgument& list) {
    const descend::Parameter* const one = find_parameter(call_, kind);
    if (one == nullptr) return;
    missing(list.handle == Handle::kNull && !fuzz::is_optional(call_, *one), kNull);
    missing(list.handle == Handle::kDead, kInvalid);
  }

  void check_nsa_ranks() {
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      const bool weight = call_.op == Op::kNsaCompress ? i == 1 : i == 2 || i == 4;
      breaches_.add_if(at(i).shape.size() != (weight ? 2 : 3), kNsaRanks, kTiling);
    }
  }

  void check_dtypes() {
    std::vector<bool> looked_at;
    for (size_t i = 0; i < call_.tensors.size(); ++i) looked_at.push_back(given(i));
    breaches_.add_if(!has_row(call_, looked_at), kTensors, kInvalid);
  }

  void check_tensors() {
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      if (given(i)) check_layout(at(i), static_cast<int>(element_size(at(i).dtype)), breaches_);
    }
    if (!breaches_.codes().is_only(0)) return;  // what follows needs views inside their storage
    for (size_t out = call_.inputs; out < call_.tensors.size(); ++out) {
      if (!given(out)) continue;
      const int injective = is_injective(at(out));
      breaches_.add_if(injective == 0, kTensors, kInvalid);
      breaches_.doubt_if(injective < 0, kTensors, kInvalid);
      for (size_t other = 0; other < call_.tensors.size(); ++other) {
        if (other == out || !given(other) || !ranges_meet(at(out), at(other))) continue;
        if (elements(at(out).shape) >= kMany || elements(at(other).shape) >= kMany) {  // too many to try
          breaches_.doubt(kTensors, kInvalid);
          continue;
        }
        const bool refused = !may_share(at(out), at(other), !is_output(other));
        breaches_.add_if(refused && uses(call_, out) && uses(call_, other), kTensors, kInvalid);
        breaches_.doubt_if(refused, kTensors, kInvalid);  // of a tensor that is not touched
      }
    }
  }

  // --- the operators' pages ---

  void page(bool fine, int code = kTiling) { breaches_.add_if(!fine, kPage, code); }

  void check_page() {
    switch (call_.op) {
      case Op::kOfTable:
        return check_other();
      case Op::kRmsNorm:
        return check_rms_norm(0, 1, 3, 2);
      case Op::kRmsNormGrad:
        return check_rms_norm(1, 3, 2, 4);
      case Op::kLayerNorm:
      case Op::kLayerNormBackward:
        return check_layer_norm();
      case Op::kGroupNormSwish:
        return check_group_norm(0, {1, 2}, {4, 5});
      case Op::kGroupNormSwishGrad:
        return check_group_norm(3, {4, 5, 7, 8}, {1, 2});
      case Op::kNsaCompress:
      case Op::kNsaCompressGrad:
        return check_nsa();
      case Op::kSoftmax:
      case Op::kSoftmaxBackward:
        return check_softmax();
    }
  }

  // The rules of an operator that is known by its table alone are not known. What has the table's shapes is accepted.
  void check_other() {
    if (call_.certain) return;
    if (call_.table->validate_first != nullptr) breaches_.doubt(kArguments, kNull);  // of what goes together
    for (const descend::ErrorRule& rule : call_.table->errors) {
      const int code = static_cast<int>(rule.code);
      if (code == kInvalid || code == kTiling) breaches_.doubt(kNsaRanks, code);
    }
  }

  void check_rms_norm(size_t x, size_t gamma, size_t rstd, size_t like_x) {
    const bool grad = call_.op == Op::kRmsNormGrad, newest = call_.product == Product::kAscend950;
    const Shape& shape = at(x).shape;
    const size_t rank = shape.size(), k = at(gamma).shape.size();
    page(at(like_x).shape == shape);
    if (grad) page(at(0).shape == shape && at(5).shape == at(gamma).shape);
    if (rank == 0 || k == 0 || !ends_with(shape, at(gamma).shape)) return page(false);
    const Shape rows = part(shape, 0, rank - k), given_rows = at(rstd).shape;
    page(without_ones(given_rows) == without_ones(rows));
    if (grad && newest) page(rank >= 2 && given_rows.size() >= 1 && given_rows.size() <= 7 && k <= 7);
    if (!grad) {
      const bool exact = given_rows == rows || given_rows.size() == rank;
      breaches_.doubt_if(!exact, kPage, kTiling);
      page(!(call_.epsilon < 0));
      breaches_.doubt_if(std::isnan(call_.epsilon), kPage, kTiling);
      if (newest) page(!is_empty(at(gamma).shape) && given_rows.size() == rank);
    } else if (!host() && !newest) {
      for (size_t i = 0; i < call_.tensors.size(); ++i) {
        page(!is_empty(at(i).shape));
        if (!is_output(i)) page(is_contiguous(at(i)));
      }
      if (call_.product == Product::kInference) {
        for (size_t i : {size_t{0}, x, gamma}) {
          const Shape& one = at(i).shape;  // that of dy may be another one
          page(!one.empty() && one.back() * element_size(at(i).dtype) >= 32);
        }
      }
    }
  }

  void check_layer_norm() {
    const auto check = [&](bool fine) { page(fine, kInvalid); };
    const bool grad = call_.op == Op::kLayerNormBackward;
    const Shape& shape = at(grad ? 1 : 0).shape;
    const Shape& normalized = call_.list.values;
    if (normalized.empty() || normalized.size() > 8 || !ends_with(shape, normalized)) return check(false);
    const Big rows = elements(part(shape, 0, shape.size() - normalized.size())), columns = elements(normalized);
    if (!grad) {
      check(!(call_.epsilon < 0));
      breaches_.doubt_if(std::isnan(call_.epsilon), kPage, kInvalid);
      for (size_t i : {1, 2}) check(!given(i) || at(i).shape == normalized);
      for (size_t i : {4, 5}) check(!given(i) || elements(at(i).shape) == rows);
      return check(at(3).shape == shape);
    }
    check(at(0).shape == shape && at(2).shape == at(3).shape && elements(at(2).shape) == rows);
    for (size_t i : {4, 5}) check(!given(i) || at(i).shape == normalized);
    check(!given(6) || at(6).shape == shape);
    for (size_t i : {7, 8}) check(!given(i) || elements(at(i).shape) == columns);
    check(!given(7) || !given(8) || at(7).shape == at(8).shape);
  }

  void check_group_norm(size_t x, std::initializer_list<size_t> channels, std::initializer_list<size_t> statistics) {
    const bool grad = call_.op == Op::kGroupNormSwishGrad;
    const Shape& shape = at(x).shape;
    const int64_t groups = call_.groups;
    page(at(grad ? 6 : 3).shape == shape);
    if (grad) page(at(0).shape == shape);
    page(grad || !(call_.epsilon < 0));
    breaches_.doubt_if(!grad && std::isnan(call_.epsilon), kPage, kTiling);
    if (shape.size() < 2 || groups <= 0 || shape[1] % groups != 0) return page(false);
    for (size_t i : channels) page(at(i).shape == Shape{shape[1]});
    for (size_t i : statistics) page(elements(at(i).shape) == Big{shape[0]} * groups);
    page(!grad || host() || shape[1] / groups <= 4000);
    breaches_.doubt_if(!grad && !host() && shape[1] / groups > 4000, kPage, kTiling);
    if (grad && !host())
      page(std::none_of(call_.tensors.begin(), call_.tensors.end(),
                        [](const TensorArgument& tensor) { return is_empty(tensor.shape); }));
  }

  void check_nsa() {
    const bool grad = call_.op == Op::kNsaCompressGrad;
    const TensorArgument &input = at(grad ? 1 : 0), &weight = at(grad ? 2 : 1), &windowed = at(grad ? 0 : 2);
    breaches_.add_if(call_.text != nullptr && std::strcmp(call_.text, "TND") != 0, kPage, kInvalid);
    if (input.shape.size() != 3) return;
    const int64_t tokens = input.shape[0], heads = input.shape[1], size = input.shape[2], W = call_.block,
                  S = call_.stride;
    breaches_.add_if(weight.shape != Shape{W, heads}, kPage, kInvalid);
    const auto late = [&](bool fine) { breaches_.add_if(!fine, kNsaValues, kTiling); };
    late(W >= 1 && S >= 1);
    if (!host()) {
      late(W % 16 == 0 && S % 16 == 0 && (grad ? W > S : W >= S) && size % 16 == 0 && call_.lengths_type == 0);
      for (const TensorArgument& tensor : call_.tensors) late(!is_empty(tensor.shape));
    }
    if (grad) late(at(3).shape == input.shape && at(4).shape == weight.shape);
    late(call_.lengths_type == 0 || call_.lengths_type == 1);
    std::vector<int64_t> starts;
    if (W < 1 || S < 1 || tokens < 0) return;
    const bool listed = call_.list.handle == Handle::kAlive && !call_.list.values.empty();
    if (tokens > kMany) return breaches_.doubt(kNsaValues, kTiling);  // windows of long inputs are not listed here
    late(windows(call_, tokens, &starts));
    if (listed && !host()) late(call_.list.values.back() == tokens);
    late(windowed.shape == Shape{static_cast<int64_t>(starts.size()), heads, size});
  }

  void check_softmax() {
    const bool forward = call_.op == Op::kSoftmax;
    const auto check = [&](bool fine) { page(fine, kInvalid); };
    const size_t m = call_.inputs - 1;
    const Shape &shape = at(0).shape, &mask = at(m).shape;
    check(at(call_.inputs).shape == shape && (forward || at(1).shape == shape));
    check(!shape.empty());
    const auto broadcasts = [&](size_t loose) {
      if (mask.size() > shape.size()) return false;
      for (size_t i = 0; i < mask.size(); ++i) {
        const size_t axis = shape.size() - mask.size() + i;
        if (mask[i] != shape[axis] && !(mask[i] == 1 && axis < loose)) return false;
      }
      return true;
    };
    if (host()) {
      check(!given(m) || broadcasts(8));
      breaches_.doubt_if(call_.flags[0] && shape.size() < 2, kPage, kInvalid);
      return;
    }
    check(!call_.flags[0]);
    if (shape.size() != 4 || mask.size() != 4) return check(false);
    check(shape[3] <= 4096 && shape[3] >= (forward ? 1 : 0) && broadcasts(2));
  }
};

}  // namespace

Codes first_phase(const Call& call) { return Rules(call).run(); }

}  // namespace fuzz
