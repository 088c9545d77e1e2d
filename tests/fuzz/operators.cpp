#include "operators.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string_view>

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
#include "results.h"
#include "table.h"

namespace fuzz {
namespace {

aclTensor* make_tensor(const TensorArgument& tensor) {
  return aclCreateTensor(tensor.shape.data(), tensor.shape.size(), static_cast<aclDataType>(tensor.dtype),
                         tensor.strides.data(), tensor.offset, static_cast<aclFormat>(tensor.format),
                         tensor.storage.data(), tensor.storage.size(), tensor.data);
}

// The handles of a call's arguments.
class Handles {
 public:
  explicit Handles(const Call& call) : call_(call) {
    for (size_t i = 0; i < call.given; ++i) {
      const TensorArgument& tensor = call.tensors[i];
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
      case Op::kOfTable:
        return first_phase_of_table(size, executor);
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
  // By the calling convention a function finds its integers and addresses in their order, and its floating-point
  // numbers in theirs, whatever stands between them; and it does not see more of either. Eight are passed in registers.
  int first_phase_of_table(uint64_t* size, aclOpExecutor** executor) {
    constexpr size_t kWords = descend::kMaxParameters + 2, kReals = 8;
    int64_t words[kWords] = {};
    double reals[kReals] = {};
    size_t word = 0, real = 0, tensor = 0, attribute = 0;
    const auto give = [&](const void* pointer) { words[word++] = reinterpret_cast<int64_t>(pointer); };
    for (const descend::Parameter& one : call_.table->parameters) {
      if (one.in_place_of >= 0) continue;
      switch (one.kind) {
        case descend::Kind::kTensor:
          give(tensors_[tensor++]);
          break;
        case descend::Kind::kIntArray:
          give(list_);
          break;
        case descend::Kind::kBoolArray:
          give(mask_);
          break;
        case descend::Kind::kString:
          give(call_.text);
          break;
        case descend::Kind::kFloat:
          if (real == kReals) fault("an operator has too many numbers");
          reals[real++] = as_argument(one, call_.attributes[attribute++].real);
          break;
        default:
          words[word++] = call_.attributes[attribute++].integer;
      }
    }
    give(size), give(executor);
    return [&]<size_t... w, size_t... r>(std::index_sequence<w...>, std::index_sequence<r...>) {
      using Function =
          aclnnStatus (*)(std::conditional_t<w >= 0, int64_t, void>..., std::conditional_t<r >= 0, double, void>...);
      return reinterpret_cast<Function>(first_phase_of(*call_.table))(words[w]..., reals[r]...);
    }(std::make_index_sequence<kWords>(), std::make_index_sequence<kReals>());
  }

  // A float lies in the first half of its register.
  static double as_argument(const descend::Parameter& parameter, double number) {
    if (parameter.c_type == nullptr || std::string_view(parameter.c_type) != "float") return number;
    return std::bit_cast<double>(uint64_t{std::bit_cast<uint32_t>(static_cast<float>(number))});
  }

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
      expect(name_of(call_), second_(nullptr, 0, executor_, nullptr), {ACLNN_ERR_PARAM_INVALID});
    }
    expect("aclDestroyAclOpExecutor", aclDestroyAclOpExecutor(executor_), {spent ? ACLNN_ERR_PARAM_INVALID : 0});
  }

 private:
  Bytes& bytes_;
  Call& call_;
  Memory& memory_;
  aclOpExecutor* executor_;
  uint64_t size_;
  const SecondPhase second_ = second_phase_of(*call_.table);
  bool moved_ = false;  // an address has changed since phase 1

  // Whether the call was accepted.
  bool run_once(aclrtStream stream, bool stream_alive) {
    Codes expected{};
    const descend::Operator* used = call_.table;
    uint64_t given = size_;
    const uint32_t seed = bytes_.number();
    std::unique_ptr<char[]> workspace(size_ > 0 ? new char[size_] : nullptr);
    char* place = workspace.get();
    switch (bytes_.below(12)) {
      case 7:
        used = table_of(static_cast<Op>(bytes_.below(kOps)));
        break;
      case 8:
        if (size_ > 0) place = nullptr, expected.insert(ACLNN_ERR_PARAM_NULLPTR);
        break;
      case 9:
        if (size_ > 0) given = bytes_.below(static_cast<int64_t>(size_)), expected.insert(ACLNN_ERR_PARAM_INVALID);
        break;
      case 10:  // an executor that is null
        expect(name_of(call_), second_(place, given, nullptr, stream), {ACLNN_ERR_PARAM_NULLPTR});
        break;
      case 11:  // or none
        expect(name_of(call_), second_(place, given, reinterpret_cast<aclOpExecutor*>(&used), stream),
               {ACLNN_ERR_PARAM_INVALID});
        break;
      default:
        break;
    }
    const bool needs_less = moved_ && !expected.empty();  // at other addresses it may need no workspace
    if (used != call_.table) expected.insert(ACLNN_ERR_PARAM_INVALID);
    if (!stream_alive) expected.insert(ACLNN_ERR_RUNTIME_ERROR);
    if (addresses_missing(call_)) expected.insert(ACLNN_ERR_RUNTIME_ERROR);
    const Codes now = moved_ ? first_phase(call_) : Codes{0};  // what new addresses break
    for (int code : now) {
      if (code != 0 || expected.empty()) expected.insert(code);
    }
    const bool may_run = used == call_.table && stream_alive && !addresses_missing(call_) && now.has(0);
    if (needs_less && may_run) expected.insert(0);
    memory_.fill(call_, seed);
    Results results(call_, memory_, name_of(call_));
    const int status = second_phase_of(*used)(place, given, executor_, stream);
    expect(used->c_name, status, expected);
    if (status == 0) expect("aclrtSynchronizeStream", aclrtSynchronizeStream(stream), {0});
    results.compare(status == 0);
    return status == 0;
  }

  void change_address() {
    const bool input = bytes_.below(2) != 0;
    const std::vector<size_t> all = tensors_of(call_, input ? descend::Role::kInput : descend::Role::kOutput);
    const size_t number = all.size(), index = bytes_.below(static_cast<int64_t>(number) + 1);
    const size_t i = index < number ? all[index] : 0;
    const TensorArgument fallback;
    TensorArgument other = index < number ? call_.tensors[i] : fallback;
    const bool ignored = call_.op == Op::kLayerNormBackward && index < number && !input && !uses(call_, i);
    if (index < number && other.handle == Handle::kAlive && !ignored) {
      if (bytes_.one_in(4)) {  // the memory of another tensor, where it is as large
        const TensorArgument& source = call_.tensors[bytes_.below(static_cast<int64_t>(call_.tensors.size()))];
        if (source.shape != other.shape || source.dtype != other.dtype || source.storage != other.storage) return;
        call_.tensors[i].data = source.data, call_.tensors[i].room = source.room;
        call_.copy_in_place();
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

}  // namespace

void call_operator(Bytes& bytes, Call call, aclrtStream stream, bool stream_alive) {
  Memory memory;
  memory.place(bytes, call);
  set_product(call.product);
  show(call);
  constexpr uint64_t kUntouched = 12345;
  uint64_t size = kUntouched;
  auto* const nothing = reinterpret_cast<aclOpExecutor*>(&size);
  aclOpExecutor* executor = nothing;
  int status;
  {
    Handles handles(call);
    status = handles.first_phase(call.no_size ? nullptr : &size, call.no_executor ? nullptr : &executor);
    expect(name_of(call), status, first_phase(call), "GetWorkspaceSize");
  }
  if (status != 0) {
    if (size != kUntouched || executor != nothing) fault("a refused first phase wrote its results");
    return;
  }
  // The workspace may be larger than any memory.
  if (is_too_much(call) || size > (1 << 20)) {
    expect("aclDestroyAclOpExecutor", aclDestroyAclOpExecutor(executor), {0});
    return;
  }
  Executor(bytes, call, memory, executor, size).run(stream, stream_alive);
}

}  // namespace fuzz
