#include "operators.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_nsa_compress.h"
#include "aclnnop/aclnn_nsa_compress_grad.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "aclnnop/aclnn_scaled_masked_softmax.h"
#include "aclnnop/aclnn_scaled_masked_softmax_backward.h"
#include "contract.h"
#include "descend.h"
#include "make_call.h"
#include "memory.h"
#include "reference.h"

namespace fuzz {
namespace {

const char* const kProductNames[kProducts] = {
    "host",           "atlas-a3",  "atlas-a2-training", "atlas-a2-inference", "atlas-200i-500-a2", "atlas-inference",
    "atlas-training", "ascend-950"};
const char* const kNames[kOps] = {"aclnnRmsNorm",
                                  "aclnnRmsNormGrad",
                                  "aclnnLayerNorm",
                                  "aclnnLayerNormBackward",
                                  "aclnnGroupNormSwish",
                                  "aclnnGroupNormSwishGrad",
                                  "aclnnNsaCompress",
                                  "aclnnNsaCompressGrad",
                                  "aclnnScaledMaskedSoftmax",
                                  "aclnnScaledMaskedSoftmaxBackward"};

using SecondPhase = aclnnStatus (*)(void*, uint64_t, aclOpExecutor*, aclrtStream);
const SecondPhase kSecondPhases[kOps] = {aclnnRmsNorm,
                                         aclnnRmsNormGrad,
                                         aclnnLayerNorm,
                                         aclnnLayerNormBackward,
                                         aclnnGroupNormSwish,
                                         aclnnGroupNormSwishGrad,
                                         aclnnNsaCompress,
                                         aclnnNsaCompressGrad,
                                         aclnnScaledMaskedSoftmax,
                                         aclnnScaledMaskedSoftmaxBackward};

aclTensor* make_tensor(const TensorArgument& tensor) {
  return aclCreateTensor(tensor.shape.data(), tensor.shape.size(), static_cast<aclDataType>(tensor.dtype),
                         tensor.strides.data(), tensor.offset, static_cast<aclFormat>(tensor.format),
                         tensor.storage.data(), tensor.storage.size(), tensor.data);
}

// With FUZZ_SHOW in the environment, each call is printed before it is made: what an input stands for.
void show(const Call& call, const char* product) {
  static const bool is_wanted = std::getenv("FUZZ_SHOW") != nullptr;
  if (!is_wanted) return;
  const auto list = [](const Shape& numbers) {
    std::string text;
    for (int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
    return "[" + text + "]";
  };
  std::fprintf(stderr, "%s on %s: epsilon %g, scale %g, groups %ld, block %ld, stride %ld, type %ld, text %s\n",
               kNames[static_cast<int>(call.op)], product, call.epsilon, call.scale, call.groups, call.block,
               call.stride, call.lengths_type, call.text != nullptr ? call.text : "null");
  std::fprintf(stderr, "  list %d %s, mask %d %s, flags %d %d\n", static_cast<int>(call.list.handle),
               list(call.list.values).c_str(), static_cast<int>(call.mask.handle), list(call.mask.values).c_str(),
               call.flags[0], call.flags[1]);
  for (const TensorArgument& tensor : call.tensors) {
    std::fprintf(
        stderr, "  tensor: handle %d, dtype %d, format %d, shape %s, strides %s, offset %ld, storage %s at %p\n",
        static_cast<int>(tensor.handle), tensor.dtype, tensor.format, list(tensor.shape).c_str(),
        list(tensor.strides).c_str(), tensor.offset, list(tensor.storage).c_str(), static_cast<void*>(tensor.data));
  }
}

// The handles of a call's arguments.
class Handles {
 public:
  explicit Handles(const Call& call) : call_(call) {
    for (const TensorArgument& tensor : call.tensors) {
      tensors_.push_back(tensor.handle == Handle::kNull ? nullptr : make_tensor(tensor));
      if (tensor.handle == Handle::kDead) expect("aclDestroyTensor", aclDestroyTensor(tensors_.back()), {0});
    }
    if (call.list.handle != Handle::kNull) list_ = aclCreateIntArray(call.list.values.data(), call.list.values.size());
    if (call.list.handle == Handle::kDead) (void)aclDestroyIntArray(list_);
    if (call.mask.handle != Handle::kNull) {
      const auto values = std::make_unique<bool[]>(call.mask.values.size());
      std::copy(call.mask.values.begin(), call.mask.values.end(), values.get());
      mask_ = aclCreateBoolArray(values.get(), call.mask.values.size());
    }
    if (call.mask.handle == Handle::kDead) (void)aclDestroyBoolArray(mask_);
  }
  ~Handles() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      expect("aclDestroyTensor", aclDestroyTensor(tensors_[i]), {status(call_.tensors[i].handle)});
    }
    expect("aclDestroyIntArray", aclDestroyIntArray(list_), {status(call_.list.handle)});
    expect("aclDestroyBoolArray", aclDestroyBoolArray(mask_), {status(call_.mask.handle)});
  }

  int first_phase(uint64_t* size, aclOpExecutor** executor) {
    const Call& c = call_;
    const auto t = [this](size_t i) { return tensors_[i]; };
    const auto text = const_cast<char*>(c.text);
    switch (c.op) {
      case Op::kRmsNorm:
        return aclnnRmsNormGetWorkspaceSize(t(0), t(1), c.epsilon, t(2), t(3), size, executor);
      case Op::kRmsNormGrad:
        return aclnnRmsNormGradGetWorkspaceSize(t(0), t(1), t(2), t(3), t(4), t(5), size, executor);
      case Op::kLayerNorm:
        return aclnnLayerNormGetWorkspaceSize(t(0), list_, t(1), t(2), c.epsilon, t(3), t(4), t(5), size, executor);
      case Op::kLayerNormBackward:
        return aclnnLayerNormBackwardGetWorkspaceSize(t(0), t(1), list_, t(2), t(3), t(4), t(5), mask_, t(6), t(7),
                                                      t(8), size, executor);
      case Op::kGroupNormSwish:
        return aclnnGroupNormSwishGetWorkspaceSize(t(0), t(1), t(2), c.groups, text, c.epsilon, c.flags[0], c.scale,
                                                   t(3), t(4), t(5), size, executor);
      case Op::kGroupNormSwishGrad:
        return aclnnGroupNormSwishGradGetWorkspaceSize(t(0), t(1), t(2), t(3), t(4), t(5), c.groups, text, c.scale,
                                                       c.flags[0], c.flags[1], t(6), t(7), t(8), size, executor);
      case Op::kNsaCompress:
        return aclnnNsaCompressGetWorkspaceSize(t(0), t(1), list_, text, c.block, c.stride, c.lengths_type, t(2), size,
                                                executor);
      case Op::kNsaCompressGrad:
        return aclnnNsaCompressGradGetWorkspaceSize(t(0), t(1), t(2), list_, c.block, c.stride, c.lengths_type, text,
                                                    t(3), t(4), size, executor);
      case Op::kSoftmax:
        return aclnnScaledMaskedSoftmaxGetWorkspaceSize(t(0), t(1), c.scale, c.flags[0], t(2), size, executor);
      case Op::kSoftmaxBackward:
        return aclnnScaledMaskedSoftmaxBackwardGetWorkspaceSize(t(0), t(1), t(2), c.scale, c.flags[0], t(3), size,
                                                                executor);
    }
    return -1;
  }

 private:
  static int status(Handle handle) { return handle == Handle::kDead ? ACLNN_ERR_PARAM_INVALID : 0; }

  const Call& call_;
  std::vector<aclTensor*> tensors_;
  aclIntArray* list_ = nullptr;
  aclBoolArray* mask_ = nullptr;
};

// An accepted call: its executor, and what must come out of it.
class Executor {
 public:
  Executor(Bytes& bytes, Call& call, Memory& memory, aclOpExecutor* executor, uint64_t size)
      : bytes_(bytes), call_(call), memory_(memory), executor_(executor), size_(size) {}

  void run(aclrtStream stream, bool stream_alive) {
    const bool repeatable = bytes_.one_in(3);
    if (repeatable) expect("aclSetAclOpExecutorRepeatable", aclSetAclOpExecutorRepeatable(executor_), {0});
    bool spent = false;
    for (int64_t runs = repeatable ? 1 + bytes_.below(3) : 1; runs > 0; --runs) {
      spent = run_once(stream, stream_alive) && !repeatable;
      if (repeatable) change_address();
    }
    if (spent) {  // a handle that is none any more
      expect(kNames[op()], kSecondPhases[op()](nullptr, 0, executor_, nullptr), {ACLNN_ERR_PARAM_INVALID});
    }
    expect("aclDestroyAclOpExecutor", aclDestroyAclOpExecutor(executor_), {spent ? ACLNN_ERR_PARAM_INVALID : 0});
  }

 private:
  Bytes& bytes_;
  Call& call_;
  Memory& memory_;
  aclOpExecutor* executor_;
  uint64_t size_;
  bool moved_ = false;  // an address has changed since phase 1

  int op() const { return static_cast<int>(call_.op); }

  // Whether the call was accepted.
  bool run_once(aclrtStream stream, bool stream_alive) {
    Codes expected{};
    int used = op();
    uint64_t given = size_;
    const uint32_t seed = bytes_.number();
    std::unique_ptr<char[]> workspace(size_ > 0 ? new char[size_] : nullptr);
    char* place = workspace.get();
    switch (bytes_.below(12)) {
      case 7:
        used = static_cast<int>(bytes_.below(kOps));
        break;
      case 8:
        if (size_ > 0) place = nullptr, expected.insert(ACLNN_ERR_PARAM_NULLPTR);
        break;
      case 9:
        if (size_ > 0) given = bytes_.below(static_cast<int64_t>(size_)), expected.insert(ACLNN_ERR_PARAM_INVALID);
        break;
      case 10:  // an executor that is null
        expect(kNames[op()], kSecondPhases[op()](place, given, nullptr, stream), {ACLNN_ERR_PARAM_NULLPTR});
        break;
      case 11:  // or none
        expect(kNames[op()], kSecondPhases[op()](place, given, reinterpret_cast<aclOpExecutor*>(&used), stream),
               {ACLNN_ERR_PARAM_INVALID});
        break;
      default:
        break;
    }
    const bool needs_less = moved_ && !expected.empty();  // at other addresses it may need no workspace
    if (used != op()) expected.insert(ACLNN_ERR_PARAM_INVALID);
    if (!stream_alive) expected.insert(ACLNN_ERR_RUNTIME_ERROR);
    if (addresses_missing()) expected.insert(ACLNN_ERR_RUNTIME_ERROR);
    const Codes now = moved_ ? first_phase(call_) : Codes{0};  // what new addresses break
    for (int code : now) {
      if (code != 0 || expected.empty()) expected.insert(code);
    }
    if (needs_less && expected.size() == 1) expected.insert(0);
    memory_.fill(call_, seed);
    std::vector<Numbers> inputs;
    for (size_t i = 0; i < call_.inputs; ++i) {
      const bool is_read = call_.tensors[i].handle == Handle::kAlive && uses(call_, i);
      inputs.push_back(is_read ? read(call_.tensors[i]) : Numbers{});
    }
    std::vector<char> before = memory_.bytes();
    const int status = kSecondPhases[used](place, given, executor_, stream);
    expect(kNames[used], status, expected);
    if (status == 0) expect("aclrtSynchronizeStream", aclrtSynchronizeStream(stream), {0});
    compare(status == 0, inputs, before);
    return status == 0;
  }

  // Whether a tensor that is used has elements, but no memory.
  bool addresses_missing() const {
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      const TensorArgument& tensor = call_.tensors[i];
      const bool empty = std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0;
      if (tensor.handle == Handle::kAlive && tensor.data == nullptr && !empty && uses(call_, i)) return true;
    }
    return false;
  }

  // Nothing but the outputs' elements has changed, and these are what they must be.
  void compare(bool accepted, const std::vector<Numbers>& inputs, std::vector<char>& before) {
    std::vector<char> after = memory_.bytes();
    for (size_t i = call_.inputs; accepted && i < call_.tensors.size(); ++i) {
      if (call_.tensors[i].handle != Handle::kAlive || !uses(call_, i)) continue;
      memory_.clear(call_.tensors[i], before);
      memory_.clear(call_.tensors[i], after);
    }
    if (before != after) fault(std::string(kNames[op()]) + " wrote where it must not");
    if (!accepted || !is_tame(inputs)) return;
    const std::vector<Numbers> expected = reference(call_, inputs);
    for (size_t i = call_.inputs; i < call_.tensors.size(); ++i) {
      const TensorArgument& tensor = call_.tensors[i];
      if (tensor.handle != Handle::kAlive || !uses(call_, i)) continue;
      compare(read(tensor), expected[i - call_.inputs], tensor.dtype, i);
    }
  }

  // Whether float32 keeps the digits of what is computed from these numbers.
  bool is_tame(const std::vector<Numbers>& inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!uses(call_, i)) continue;
      for (double value : inputs[i]) {
        if (!(std::abs(value) < 8)) return false;
      }
    }
    return std::abs(call_.scale) <= 2 && call_.epsilon < 2 && (call_.scale == 0 || std::abs(call_.scale) > 0.1);
  }

  void compare(const Numbers& got, const Numbers& expected, int dtype, size_t i) const {
    if (got.size() != expected.size()) fault(std::string(kNames[op()]) + ": the reference has another size");
    double most = 0;
    for (double value : expected) most = std::max(most, std::abs(value));
    for (size_t k = 0; k < got.size(); ++k) {
      if (!(std::abs(expected[k]) < largest(dtype)) || (std::isnan(expected[k]) && std::isnan(got[k]))) continue;
      const double error = std::abs(got[k] - expected[k]);
      if (error <= rounding(dtype) * std::abs(expected[k]) + 1e-4 * std::max(most, 1.0)) continue;
      fault(std::string(kNames[op()]) + " gave " + std::to_string(got[k]) + " in place of " +
            std::to_string(expected[k]) + " as element " + std::to_string(k) + " of tensor " + std::to_string(i));
    }
  }

  void change_address() {
    const bool input = bytes_.below(2) != 0;
    const size_t first = input ? 0 : call_.inputs;
    const size_t number = input ? call_.inputs : call_.tensors.size() - call_.inputs;
    const size_t index = bytes_.below(static_cast<int64_t>(number) + 1), i = first + index;
    const TensorArgument fallback;
    TensorArgument other = index < number ? call_.tensors[i] : fallback;
    const bool ignored = call_.op == Op::kLayerNormBackward && index < number && !input && !uses(call_, i);
    if (index < number && other.handle == Handle::kAlive && !ignored) {
      if (bytes_.one_in(4)) {  // the memory of another tensor, where it is as large
        const TensorArgument& source = call_.tensors[bytes_.below(static_cast<int64_t>(call_.tensors.size()))];
        if (source.shape != other.shape || source.dtype != other.dtype || source.storage != other.storage) return;
        call_.tensors[i].data = source.data, call_.tensors[i].room = source.room;
      } else if (memory_.move(call_, i) == nullptr) {
        return;
      }
      other = call_.tensors[i];
    }
    moved_ = true;
    Codes expected{0};
    const bool wrong = bytes_.one_in(8);
    if (wrong) other.shape.push_back(2), other.strides.push_back(1);
    if (wrong || index >= number || other.handle != Handle::kAlive) expected = {ACLNN_ERR_PARAM_INVALID};
    if (ignored) expected = {0, ACLNN_ERR_PARAM_INVALID};
    aclTensor* const tensor = make_tensor(other);
    const int status = input ? aclSetInputTensorAddr(executor_, index, tensor, other.data)
                             : aclSetOutputTensorAddr(executor_, index, tensor, other.data);
    expect("aclSetTensorAddr", status, expected);
    if (wrong && index < number && other.handle == Handle::kAlive && !ignored) {
      other.shape.pop_back(), other.strides.pop_back();  // then the right one, so that both sides know one address
      aclTensor* const right = make_tensor(other);
      expect("aclSetTensorAddr", aclSetTensorAddr(executor_, i, right, other.data), {0});
      expect("aclDestroyTensor", aclDestroyTensor(right), {0});
    }
    expect("aclDestroyTensor", aclDestroyTensor(tensor), {0});
  }
};

int64_t work(const Call& call) {
  int64_t sum = 0;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.tensors[i].handle != Handle::kAlive || !uses(call, i)) continue;
    const int64_t count = count_of(call.tensors[i].shape);
    if (count < 0) return INT64_MAX;
    sum += count;
  }
  return sum;
}

}  // namespace

void call_operator(Bytes& bytes, aclrtStream stream, bool stream_alive) {
  Call call = make_call(bytes);
  Memory memory;
  memory.place(bytes, call);
  const char* const product = kProductNames[static_cast<int>(call.product)];
  if (is_alone) expect("descendSetProduct", descendSetProduct(product), {0});
  show(call, product);
  constexpr uint64_t kUntouched = 12345;
  uint64_t size = kUntouched;
  auto* const nothing = reinterpret_cast<aclOpExecutor*>(&size);
  aclOpExecutor* executor = nothing;
  int status;
  {
    Handles handles(call);
    status = handles.first_phase(call.no_size ? nullptr : &size, call.no_executor ? nullptr : &executor);
    expect(kNames[static_cast<int>(call.op)], status, first_phase(call), "GetWorkspaceSize");
  }
  if (status != 0) {
    if (size != kUntouched || executor != nothing) fault("a refused first phase wrote its results");
    return;
  }
  // What is too much for a fuzzer is not computed; the workspace may be larger than any memory.
  if (work(call) > 20000 || size > (1 << 20)) {
    expect("aclDestroyAclOpExecutor", aclDestroyAclOpExecutor(executor), {0});
    return;
  }
  Executor(bytes, call, memory, executor, size).run(stream, stream_alive);
}

}  // namespace fuzz
