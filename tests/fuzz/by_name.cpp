#include "by_name.h"

#include <algorithm>
#include <memory>

#include "acl/acl_op_compiler.h"
#include "contract.h"
#include "make_call.h"
#include "memory.h"
#include "results.h"

namespace fuzz {
namespace {

constexpr int kNull = 161001, kNotAlive = 161002, kEmpty = 561002, kInvalid = 100000, kInput = 100021, kOutput = 100022,
              kAttribute = 100023, kUnknown = 100024, kStale = 200005, kNoApi = 200001, kNoFeature = 200006,
              kNoAddress = 361001;

// A type, as docs/coming-from-cann.md lists it. The tensors have the order of the type's definition: a number is that
// of the tensor in the operator's signature, -1 the list of numbers. What is not optional must be given.
struct Type {
  const char* name;
  Op op;
  std::initializer_list<int> inputs, outputs, optional;
  bool has_axis = false;      // begin_norm_axis in place of the list
  bool has_variance = false;  // in place of rstd
};
const Type kTypes[] = {
    {"RmsNorm", Op::kRmsNorm, {0, 1}, {2, 3}, {}},
    {"RmsNormGrad", Op::kRmsNormGrad, {0, 1, 2, 3}, {4, 5}, {}},
    {"LayerNormV4", Op::kLayerNorm, {0, -1, 1, 2}, {3, 4, 5}, {1, 2}},
    {"LayerNormV3", Op::kLayerNorm, {0, 1, 2}, {3, 4, 5}, {}, true},
    {"LayerNorm", Op::kLayerNorm, {0, 1, 2}, {3, 4, 5}, {}, true, true},
    {"LayerNormGradV3", Op::kLayerNormBackward, {0, 1, 3, 2, 4}, {6, 7, 8}, {6, 7, 8}},
    {"LayerNormGrad", Op::kLayerNormBackward, {0, 1, 3, 2, 4}, {6, 7, 8}, {}, false, true},
    {"GroupNormSwish", Op::kGroupNormSwish, {0, 1, 2}, {3, 4, 5}, {}},
    {"GroupNormSwishGrad", Op::kGroupNormSwishGrad, {0, 1, 2, 3, 4, 5}, {6, 7, 8}, {}},
    {"NsaCompress", Op::kNsaCompress, {0, 1, -1}, {2}, {-1}},
    {"NsaCompressGrad", Op::kNsaCompressGrad, {0, 1, 2, -1}, {3, 4}, {-1}},
    {"ScaledMaskedSoftmax", Op::kSoftmax, {0, 1}, {2}, {1}},
    {"ScaledMaskedSoftmaxV2", Op::kSoftmax, {0, 1}, {2}, {1}},
    {"ScaledMaskedSoftmaxGrad", Op::kSoftmaxBackward, {0, 1, 2}, {3}, {2}},
    {"ScaledMaskedSoftmaxGradV2", Op::kSoftmaxBackward, {0, 1, 2}, {3}, {2}},
};

bool has(std::initializer_list<int> list, int i) { return std::find(list.begin(), list.end(), i) != list.end(); }

class ByName {
 public:
  ByName(Bytes& bytes, Call call) : bytes_(bytes), call_(std::move(call)), model_(call_) {}
  ~ByName() {
    for (aclTensorDesc* desc : descs_) aclDestroyTensorDesc(desc);
    for (aclDataBuffer* buffer : buffers_) expect("aclDestroyDataBuffer", aclDestroyDataBuffer(buffer), {0});
    aclopDestroyAttr(attr_);
  }

  void run(aclrtStream stream, bool stream_alive) {
    choose_type();
    for (TensorArgument& tensor : call_.tensors) lay_out(tensor);
    memory_.place(bytes_, call_);
    const uint32_t seed = bytes_.number();
    set_product(call_.product);
    show(call_);
    model_ = call_;
    give_list();
    for (int i : type_->inputs) describe(i, true);
    for (int i : type_->outputs) describe(i, false);
    set_attributes();
    spoil(stream_alive);
    execute(stream, seed);
  }

 private:
  Bytes& bytes_;
  Call call_, model_;  // the model sees copies of what lies in host memory
  const Type* type_ = nullptr;
  Memory memory_;
  std::vector<aclTensorDesc*> descs_;  // inputs, then outputs
  std::vector<aclDataBuffer*> buffers_;
  aclopAttr* attr_ = aclopCreateAttr();
  Codes broken_{};  // what the call by name itself breaks, before the operator's contract is asked
  int input_count_ = 0, output_count_ = 0;
  const char* name_ = nullptr;
  bool null_descs_ = false;
  aclopEngineType engine_ = ACL_ENGINE_SYS;
  aclopCompileType compile_ = ACL_COMPILE_SYS;

  void choose_type() {
    std::vector<const Type*> fitting;
    for (const Type& type : kTypes) {
      if (type.op == call_.op) fitting.push_back(&type);
    }
    type_ = fitting[bytes_.below(static_cast<int64_t>(fitting.size()))];
    name_ = type_->name;
    call_.has_variance = type_->has_variance;
    // Only living handles can be described, and all sizes are there.
    call_.no_size = call_.no_executor = false;
    for (TensorArgument& tensor : call_.tensors) {
      if (tensor.handle == Handle::kDead) tensor.handle = Handle::kAlive;
      if (tensor.dtype == ACL_DT_UNDEFINED) tensor.handle = Handle::kNull;
    }
    for (ListArgument* list : {&call_.list, &call_.mask}) {
      if (list->handle == Handle::kDead) list->handle = Handle::kAlive;
    }
    for (double* number : {&call_.epsilon, &call_.scale}) {          // attributes are in float
      const volatile float attribute = static_cast<float>(*number);  // volatile: GCC 12 leaves the rounding out
      *number = attribute;
    }
    if (call_.op != Op::kLayerNormBackward) return;
    call_.tensors[5].handle = Handle::kNull;  // a bias, which no type has
    if (type_->has_variance || call_.mask.handle == Handle::kNull) call_.mask = {Handle::kAlive, {1, 1, 1}};
  }

  // A description has no strides: the buffer holds the elements one after the other, or is too short.
  void lay_out(TensorArgument& tensor) {
    const int64_t count = count_of(tensor.shape);
    tensor.strides.assign(tensor.shape.size(), 1);
    for (size_t i = tensor.shape.size(); i-- > 1;) {
      (void)__builtin_mul_overflow(tensor.strides[i], tensor.shape[i], &tensor.strides[i - 1]);
    }
    tensor.offset = 0;
    tensor.storage = {std::max<int64_t>(count + bytes_.pick<int64_t>({0, 0, 0, 0, 0, 0, 1, -1}), 0)};
  }

  // The list of an operator, as the type has it.
  void give_list() {
    const size_t rank = call_.tensors[0].shape.size();
    const Shape& x = call_.tensors[0].shape;
    if (type_->has_axis) {
      const size_t length = std::min(call_.list.values.size(), rank);
      const auto begin = static_cast<int64_t>(rank - length);
      const int64_t axis = bytes_.pick<int64_t>({begin, begin, begin, begin - static_cast<int64_t>(rank), 100, -100});
      const bool fine = axis < static_cast<int64_t>(rank) && axis >= -static_cast<int64_t>(rank);
      if (!fine) broken_.insert(kAttribute);
      model_.list = {Handle::kAlive, Shape(x.begin() + (fine ? begin : 0), x.end())};
      for (const char* name : {"begin_norm_axis", "begin_params_axis"}) {
        expect("aclopSetAttrInt", aclopSetAttrInt(attr_, name, axis), {0});
      }
    } else if (call_.op == Op::kLayerNormBackward) {
      model_.list = {Handle::kAlive, call_.tensors[4].shape};  // the shape of gamma
    }
    call_.list = model_.list;
  }

  void describe(int i, bool is_input) {
    int& count = is_input ? input_count_ : output_count_;
    ++count;
    const bool is_list = i < 0;
    const bool absent = (is_list ? call_.list.handle : call_.tensors[i].handle) == Handle::kNull;
    if (absent && !has(type_->optional, i)) broken_.insert(kNull);
    if (is_list) return describe_list(absent);
    TensorArgument& tensor = call_.tensors[i];
    const auto dtype = absent ? ACL_DT_UNDEFINED : static_cast<aclDataType>(tensor.dtype);
    descs_.push_back(aclCreateTensorDesc(dtype, static_cast<int>(tensor.shape.size()), tensor.shape.data(),
                                         static_cast<aclFormat>(tensor.format)));
    const auto size = static_cast<size_t>(tensor.storage[0] * element_size(tensor.dtype));
    buffers_.push_back(aclCreateDataBuffer(tensor.data, size));
    if (bytes_.one_in(16)) {
      aclSetTensorDescName(descs_.back(), "of none");
      broken_.insert(is_input ? kInput : kOutput);
    }
    if (!is_input || absent || !bytes_.one_in(6)) return;
    expect("aclSetTensorPlaceMent", aclSetTensorPlaceMent(descs_.back(), ACL_MEMTYPE_HOST), {0});
    const int64_t elements = count_of(tensor.shape);
    if (tensor.data == nullptr || elements <= 0 || size == 0 || elements > tensor.storage[0]) return;
    if (static_cast<size_t>(elements * element_size(tensor.dtype)) > tensor.room) return;
    // The call takes a copy, which shares nothing with any other tensor.
    TensorArgument& copy = model_.tensors[i];
    copy.data = reinterpret_cast<char*>(static_cast<intptr_t>(i + 1) << 40);
    copy.room = SIZE_MAX, copy.storage = copy.shape;
  }

  void describe_list(bool absent) {
    const Shape& values = call_.list.values;
    const auto count = static_cast<int64_t>(values.size());
    descs_.push_back(aclCreateTensorDesc(absent ? ACL_DT_UNDEFINED : ACL_INT64, 1, &count, ACL_FORMAT_ND));
    auto* const data = const_cast<int64_t*>(values.data());
    const size_t size = values.size() * sizeof(int64_t);
    buffers_.push_back(aclCreateDataBuffer(data, size));
    if (bytes_.below(2) != 0) {
      expect("aclSetTensorConst", aclSetTensorConst(descs_.back(), data, size), {0});
    } else if (bytes_.one_in(8)) {  // numbers in the memory of a device are not known
      if (!absent) broken_.insert(kInput);
    } else {
      expect("aclSetTensorPlaceMent", aclSetTensorPlaceMent(descs_.back(), ACL_MEMTYPE_HOST), {0});
    }
  }

  void set_attributes() {
    const auto real = [this](const char* name, double value) {
      expect("aclopSetAttrFloat", aclopSetAttrFloat(attr_, name, static_cast<float>(value)), {0});
    };
    const auto integer = [this](const char* name, int64_t value) {
      expect("aclopSetAttrInt", aclopSetAttrInt(attr_, name, value), {0});
    };
    const auto flag = [this](const char* name, bool value) {
      expect("aclopSetAttrBool", aclopSetAttrBool(attr_, name, value), {0});
    };
    const auto text = [this](const char* name) {
      if (call_.text != nullptr) expect("aclopSetAttrString", aclopSetAttrString(attr_, name, call_.text), {0});
    };
    switch (call_.op) {
      case Op::kOfTable:
        return;
      case Op::kRmsNorm:
      case Op::kLayerNorm:
        return real("epsilon", call_.epsilon);
      case Op::kRmsNormGrad:
        return;
      case Op::kLayerNormBackward: {
        if (type_->has_variance) return;
        std::vector<uint8_t> mask(call_.mask.values.begin(), call_.mask.values.end());
        const auto count = static_cast<int>(mask.size());
        expect("aclopSetAttrListBool", aclopSetAttrListBool(attr_, "output_mask", count, mask.data()), {0});
        const bool all = call_.mask.values == Shape{1, 1, 1};
        if (!all && call_.product != Product::kHost && call_.product != Product::kAscend950) broken_.insert(kAttribute);
        return;
      }
      case Op::kGroupNormSwish:
        real("eps", call_.epsilon), flag("activate_swish", call_.flags[0]);
        return integer("num_groups", call_.groups), text("data_format"), real("swish_scale", call_.scale);
      case Op::kGroupNormSwishGrad:
        flag("dgamma_is_require", call_.flags[0]), flag("dbeta_is_require", call_.flags[1]);
        return integer("num_groups", call_.groups), text("data_format"), real("swish_scale", call_.scale);
      case Op::kNsaCompress:
      case Op::kNsaCompressGrad:
        integer("compressBlockSize", call_.block), integer("compressStride", call_.stride);
        return integer("actSeqLenType", call_.lengths_type), text("layoutOptional");
      case Op::kSoftmax:
      case Op::kSoftmaxBackward:
        return real("scale", call_.scale), flag("fixed_triu_mask", call_.flags[0]);
    }
  }

  // What only a call by name can have wrong.
  void spoil(bool stream_alive) {
    if (!stream_alive) broken_.insert(kStale);
    switch (bytes_.below(24)) {
      case 10:
        name_ = bytes_.pick<const char*>({nullptr, "", "rmsnorm", "aclnnRmsNorm", "RmsNorm\xff"});
        return broken_.insert(name_ == nullptr ? kInvalid : kUnknown);
      case 11:
        input_count_ = bytes_.pick<int>({-1, 0, INT32_MIN});
        return broken_.insert(input_count_ < 0 ? kInvalid : kInput);
      case 12:
        output_count_ = bytes_.pick<int>({-1, has(type_->optional, type_->outputs.begin()[0]) ? -1 : 0, INT32_MIN});
        return broken_.insert(output_count_ < 0 ? kInvalid : kOutput);
      case 13:
        null_descs_ = true;
        return broken_.insert(kInvalid);
      case 14:
        engine_ = static_cast<aclopEngineType>(bytes_.pick<int>({1, 2, 3, -1}));
        if (static_cast<unsigned>(engine_) > 2) broken_.insert(kInvalid);
        return;
      case 15:
        compile_ = static_cast<aclopCompileType>(bytes_.pick<int>({1, 2, -1}));
        return broken_.insert(compile_ == ACL_COMPILE_UNREGISTERED ? kNoFeature : kNoApi);
      case 16:  // a description, or a buffer, that is none
        aclDestroyTensorDesc(descs_[bytes_.below(static_cast<int64_t>(descs_.size()))]);
        return broken_.insert(kNotAlive);
      case 17: {
        const auto i = static_cast<size_t>(bytes_.below(static_cast<int64_t>(buffers_.size())));
        expect("aclDestroyDataBuffer", aclDestroyDataBuffer(buffers_[i]), {0});
        buffers_[i] = nullptr;
        return broken_.insert(kInvalid);
      }
      case 18:
        aclopDestroyAttr(attr_);
        return broken_.insert(kNotAlive);
      case 19:  // of another kind than any operator wants under this name
        for (const char* name : {"epsilon", "eps", "num_groups", "scale", "compressStride"}) {
          expect("aclopSetAttrListFloat", aclopSetAttrListFloat(attr_, name, 0, nullptr), {0});
        }
        return broken_.insert(kAttribute);
      case 20:
        expect("aclopSetAttrInt", aclopSetAttrInt(attr_, bytes_.below(2) != 0 ? "" : "of none", 1), {0});
        return broken_.insert(kAttribute);
      case 21:  // frameworks' own, which are not looked at
        return expect("aclopSetAttrDataType", aclopSetAttrDataType(attr_, "_mine", ACL_FLOAT), {0});
      case 22:
        expect("aclopSetAttrInt", aclopSetAttrInt(attr_, nullptr, 1), {kInvalid});
        return expect("aclopSetAttrString", aclopSetAttrString(attr_, "data_format", nullptr), {kInvalid});
      default:
        return;
    }
  }

  void execute(aclrtStream stream, uint32_t seed) {
    Codes expected = broken_;
    for (int code : first_phase(model_)) {
      if (code != 0 || broken_.empty()) expected.insert(code);
    }
    if (is_too_much(call_) && expected.has(0)) return;
    const bool missing = addresses_missing(call_);
    const bool second = bytes_.one_in(3);
    // Elements may lie beyond the memory of what the contract refuses.
    const bool may_pass = expected.has(0);
    if (may_pass) memory_.fill(call_, seed);
    const Call none;
    Results results(may_pass ? call_ : none, memory_, name_ != nullptr ? name_ : "a call without a name");
    aclTensorDesc** const descs = null_descs_ ? nullptr : descs_.data();
    aclTensorDesc** const output_descs = descs_.data() + type_->inputs.size();
    aclDataBuffer** const outputs = buffers_.data() + type_->inputs.size();
    const int status = second
                           ? aclopCompileAndExecuteV2(name_, input_count_, descs, buffers_.data(), output_count_,
                                                      output_descs, outputs, attr_, engine_, compile_, nullptr, stream)
                           : aclopCompileAndExecute(name_, input_count_, descs, buffers_.data(), output_count_,
                                                    output_descs, outputs, attr_, engine_, compile_, nullptr, stream);
    if (missing && expected.has(0)) expected = with_missing_address(expected);
    // Where a dimension is negative, the shape follows from the inputs; it may be empty, which Ascend's products
    // refuse.
    if (second && has_negative_output()) {
      for (int code : {0, kNotAlive, kNoAddress, kEmpty}) expected.insert(code);
    }
    expect(type_->name, status, expected);
    if (status == 0) expect("aclrtSynchronizeStream", aclrtSynchronizeStream(stream), {0});
    if (may_pass || status != 0) results.compare(status == 0);
  }

  static Codes with_missing_address(const Codes& before) {
    Codes codes{kNoAddress};
    for (int code : before) {
      if (code != 0) codes.insert(code);
    }
    return codes;
  }

  bool has_negative_output() const {
    for (int i : type_->outputs) {
      for (int64_t dim : call_.tensors[i].shape) {
        if (dim < 0) return true;
      }
    }
    return false;
  }
};

}  // namespace

void call_by_name(Bytes& bytes, aclrtStream stream, bool stream_alive) {
  ByName(bytes, make_call(bytes)).run(stream, stream_alive);
}

}  // namespace fuzz
