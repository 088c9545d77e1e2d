#include "results.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <map>
#include <mutex>
#include <string_view>

#include "bytes.h"
#include "contract.h"
#include "descend.h"
#include "reference.h"
#include "table.h"

namespace fuzz {
namespace {

const char* const kProductNames[kProducts] = {
    "host",           "atlas-a3",  "atlas-a2-training", "atlas-a2-inference", "atlas-200i-500-a2", "atlas-inference",
    "atlas-training", "ascend-950"};
const char* product_name(const Call& call) { return kProductNames[static_cast<int>(call.product)]; }

struct Count {
  uint64_t accepted = 0, compared = 0, in_double = 0;
};
std::mutex mutex;
std::map<std::string_view, Count> counts;  // under mutex

void count(const char* name, bool is_compared, bool is_double) {
  const std::lock_guard lock(mutex);
  Count& one = counts[name];
  ++one.accepted;
  if (is_compared) ++one.compared;
  if (is_compared && is_double) ++one.in_double;
}

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", number);
  return text;
}

}  // namespace

bool print_counts() {
  const std::lock_guard lock(mutex);
  for (int i = 0; i < kOps; ++i) counts[table_of(static_cast<Op>(i))->c_name];
  for (const descend::Operator* op : other_operators()) counts[op->c_name];
  std::printf("%-34s %12s %12s %12s\n", "operator", "accepted", "compared", "in double");
  for (const auto& [name, one] : counts) {
    std::printf("%-34s %12" PRIu64 " %12" PRIu64 " %12" PRIu64 "\n", name.data(), one.accepted, one.compared,
                one.in_double);
  }
  return std::none_of(counts.begin(), counts.end(), [](const auto& named) { return named.second.compared == 0; });
}

void set_product(Product product) {
  if (is_alone) expect("descendSetProduct", descendSetProduct(kProductNames[static_cast<int>(product)]), {0});
}

void show(const Call& call) {
  static const bool is_wanted = std::getenv("FUZZ_SHOW") != nullptr;
  if (!is_wanted) return;
  const auto list = [](const Shape& numbers) {
    std::string text;
    for (int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
    return "[" + text + "]";
  };
  std::fprintf(stderr, "%s on %s: epsilon %g, scale %g, groups %ld, block %ld, stride %ld, type %ld, text %s\n",
               name_of(call), product_name(call), call.epsilon, call.scale, call.groups, call.block, call.stride,
               call.lengths_type, call.text != nullptr ? call.text : "null");
  std::fprintf(stderr, "  list %d %s, mask %d %s, flags %d %d\n", static_cast<int>(call.list.handle),
               list(call.list.values).c_str(), static_cast<int>(call.mask.handle), list(call.mask.values).c_str(),
               call.flags[0], call.flags[1]);
  for (const Attribute& one : call.attributes) {
    std::fprintf(stderr, "  attribute: %g or %ld\n", one.real, one.integer);
  }
  for (const TensorArgument& tensor : call.tensors) {
    std::fprintf(
        stderr, "  tensor: handle %d, dtype %d, format %d, shape %s, strides %s, offset %ld, storage %s at %p\n",
        static_cast<int>(tensor.handle), tensor.dtype, tensor.format, list(tensor.shape).c_str(),
        list(tensor.strides).c_str(), tensor.offset, list(tensor.storage).c_str(), static_cast<void*>(tensor.data));
  }
}

bool is_too_much(const Call& call) {
  int64_t sum = 0;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.tensors[i].handle != Handle::kAlive || !uses(call, i)) continue;
    const int64_t count = count_of(call.tensors[i].shape);
    if (count < 0) return true;
    sum += count;
  }
  return sum > 20000;
}

bool addresses_missing(const Call& call) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const TensorArgument& tensor = call.tensors[i];
    const bool empty = std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0;
    if (tensor.handle == Handle::kAlive && tensor.data == nullptr && !empty && uses(call, i)) return true;
  }
  return false;
}

Results::Results(const Call& call, const Memory& memory, const char* name)
    : call_(call), memory_(memory), name_(name), before_(memory.bytes()) {
  for (size_t i = 0; i < call.inputs; ++i) {
    const bool is_read = call.tensors[i].handle == Handle::kAlive && uses(call, i);
    inputs_.push_back(is_read ? read(call.tensors[i]) : Numbers{});
  }
}

void Results::compare(bool accepted) {
  std::vector<char> after = memory_.bytes();
  for (size_t i = call_.inputs; accepted && i < call_.tensors.size(); ++i) {
    if (call_.tensors[i].handle != Handle::kAlive || !uses(call_, i)) continue;
    memory_.clear(call_.tensors[i], before_);
    memory_.clear(call_.tensors[i], after);
  }
  if (before_ != after) fault(std::string(name_) + " wrote where it must not");
  if (!accepted) return;
  const bool tame = is_tame();
  count(name_of(call_), tame, is_double());
  if (!tame) return;
  const std::vector<Numbers> expected = reference(call_, inputs_);
  for (size_t i = call_.inputs; i < call_.tensors.size(); ++i) {
    const TensorArgument& tensor = call_.tensors[i];
    if (tensor.handle != Handle::kAlive || !uses(call_, i)) continue;
    compare(read(tensor), expected[i - call_.inputs], tensor.dtype, i);
  }
}

// Whether float32 keeps the digits of what is computed from these numbers.
bool Results::is_tame() const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!uses(call_, i) || is_integer(call_.tensors[i].dtype)) continue;
    for (double value : inputs_[i]) {
      if (!(std::abs(value) < 8)) return false;
    }
  }
  for (const Attribute& one : call_.attributes) {
    if (!(one.real == 0 || (one.real > 1e-9 && one.real <= 2))) return false;
  }
  return std::abs(call_.scale) <= 2 && call_.epsilon < 2 && (call_.scale == 0 || std::abs(call_.scale) > 0.1);
}

// Whether all is computed in double: its tensors are, but for integers and masks.
bool Results::is_double() const {
  for (size_t i = 0; i < call_.tensors.size(); ++i) {
    const int dtype = call_.tensors[i].dtype;
    const bool is_number = dtype != ACL_BOOL && !is_integer(dtype) && uses(call_, i);
    if (is_number && call_.tensors[i].handle == Handle::kAlive && dtype != ACL_DOUBLE) return false;
  }
  return true;
}

void Results::compare(const Numbers& got, const Numbers& expected, int dtype, size_t i) const {
  if (got.size() != expected.size()) fault(std::string(name_) + ": the reference has another size");
  const double share = is_double() ? 1e-10 : 1e-4;
  double most = 0;
  for (double value : expected) {
    if (std::abs(value) < largest(dtype)) most = std::max(most, std::abs(value));
  }
  for (size_t k = 0; k < got.size(); ++k) {
    if (std::isnan(expected[k]) ? std::isnan(got[k]) : std::abs(expected[k]) >= largest(dtype)) continue;
    const double error = std::abs(got[k] - expected[k]);
    if (error <= rounding(dtype) * std::abs(expected[k]) + share * std::max(most, 1.0)) continue;
    fault(std::string(name_) + " gave " + text_of(got[k]) + " in place of " + text_of(expected[k]) + " as element " +
          std::to_string(k) + " of tensor " + std::to_string(i));
  }
}

}  // namespace fuzz
