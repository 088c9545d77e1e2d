// PyTorch's own operators for layer norm and RMS norm on the CPU, computed by the engine: kernels for PyTorch's stable
// C interface. native/torch has the same for one release of PyTorch, where calls take less time
// (docs/pytorch-speed.md).
//
// Autograd stays PyTorch's, and what is not served here is computed by operators that descend.torch.stable defines.
#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/engine.h"
#include "bindings/python.h"
#include "bindings/stable_tensors.h"

namespace descend::python {
namespace {

using namespace stable_torch;

bool is_narrow(Dtype dtype) { return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16; }

// Whether the engine takes a parameter or a statistic of this dtype beside such an input.
bool may_have(Dtype parameter, Dtype input) {
  return parameter == input || (parameter == Dtype::kFloat && is_narrow(input));
}

bool ends_with(const Input& input, const Numbers& shape) {
  return input.served && shape.fits && shape.count > 0 && shape.count <= input.shape.size() &&
         std::equal(shape.values.begin(), shape.values.begin() + shape.count, input.shape.end() - shape.count);
}

bool is_of(const Input& parameter, const Numbers& shape) {
  return parameter.served && parameter.shape.size() == shape.count && ends_with(parameter, shape);
}

class EngineCall {
 public:
  EngineCall(const char* name, Memory memory)
      : executor_(the_engine().begin(*the_engine().find_operator(name))),
        call_(the_engine().call(executor_)),
        memory_(memory) {
    static std::atomic<uint32_t> threads = 0;
    uint32_t now = 0;
    check_torch(torch().torch_get_num_threads(&now));
    if (threads.exchange(now) != now) the_engine().set_num_threads(static_cast<int>(now));
  }

  Argument& operator[](std::string_view name) {
    const auto& parameters = call_.op->parameters;
    size_t i = 0;
    while (parameters.at(i).python != name) ++i;
    Argument& argument = call_[static_cast<int>(i)];
    argument.state = Argument::State::kGiven;
    return argument;
  }

  void give(std::string_view name, const Input& input) {
    Tensor& tensor = (*this)[name].tensor;
    tensor.dtype = input.dtype;
    tensor.shape = input.shape;
    tensor.strides = input.strides;
    tensor.format = Format::kND;
    the_engine().set_memory(tensor, input.data);
  }

  Result make(std::string_view name, const Dims& shape, Dtype dtype) {
    Result result(shape, dtype, memory_);
    Tensor& tensor = (*this)[name].tensor;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.strides = contiguous_strides(shape);
    tensor.format = Format::kND;
    the_engine().set_memory(tensor, result.data());
    return result;
  }

  bool run() { return the_engine().prepare(executor_).ok() && the_engine().run(executor_).ok(); }

 private:
  Executor& executor_;
  Call& call_;
  Memory memory_;
};

using Results = std::optional<std::vector<Result>>;

Results collect(Result first, Result second) {
  std::vector<Result> results;
  results.push_back(std::move(first));
  results.push_back(std::move(second));
  return results;
}

Dims statistics_shape(const Input& input, const Numbers& shape) {
  Dims dims = input.shape;
  std::fill_n(dims.data() + dims.size() - shape.count, shape.count, 1);
  return dims;
}

Dims dims_of(const Numbers& shape) {
  Dims dims;
  dims.assign(shape.values.data(), shape.count);
  return dims;
}

// The number one in a dtype, for a weight of RMS norm that is not given.
Input ones(const Input& like, const Numbers& shape) {
  static float single = 1;
  static double wide = 1;
  static uint16_t half = 0x3c00, brain = 0x3f80;
  Input one = like;
  one.shape = dims_of(shape);
  one.strides = one.shape;
  std::fill_n(one.strides.data(), one.strides.size(), 0);
  one.data = like.dtype == Dtype::kDouble     ? static_cast<void*>(&wide)
             : like.dtype == Dtype::kFloat16  ? static_cast<void*>(&half)
             : like.dtype == Dtype::kBfloat16 ? static_cast<void*>(&brain)
                                              : static_cast<void*>(&single);
  return one;
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps)
Results layer_norm(const Value* stack) {
  const Input input("input", as<Handle>(stack[0]));
  const Numbers shape(stack[1]);
  if (!ends_with(input, shape)) return std::nullopt;
  Dtype parameters = Dtype::kUndefined;
  std::array<std::optional<Input>, 2> given{optional_input("weight", stack[2]), optional_input("bias", stack[3])};
  for (const auto& parameter : given) {
    if (!parameter) continue;
    if (parameters != Dtype::kUndefined && parameter->dtype != parameters) return std::nullopt;
    parameters = parameter->dtype;
    if (!may_have(parameters, input.dtype) || !is_of(*parameter, shape)) return std::nullopt;
  }
  const Dtype statistics = parameters == Dtype::kUndefined ? input.dtype : parameters;
  EngineCall call("layer_norm", Memory::kPytorchs);
  call.give("input", input);
  call["normalized_shape"].list = dims_of(shape);
  call["eps"].real = as<double>(stack[4]);
  if (given[0]) call.give("weight", *given[0]);
  if (given[1]) call.give("bias", *given[1]);
  const Dims rows = statistics_shape(input, shape);
  Results results = collect(call.make("out", input.shape, input.dtype), call.make("mean_out", rows, statistics));
  results->push_back(call.make("rstd_out", rows, statistics));
  return call.run() ? std::move(results) : std::nullopt;
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
Results layer_norm_backward(const Value* stack) {
  const Input grad_out("grad_out", as<Handle>(stack[0])), input("input", as<Handle>(stack[1]));
  const Numbers shape(stack[2]);
  const Input mean("mean", as<Handle>(stack[3])), rstd("rstd", as<Handle>(stack[4]));
  const Numbers mask(stack[7]);
  if (!ends_with(input, shape) || !grad_out.is_like(input) || !mean.served || !rstd.is_like(mean) ||
      !may_have(mean.dtype, input.dtype)) {
    return std::nullopt;
  }
  std::array<std::optional<Input>, 2> given{optional_input("weight", stack[5]), optional_input("bias", stack[6])};
  for (size_t k = 0; k < given.size(); ++k) {
    if (!given[k] && mask.values[k + 1] != 0) return std::nullopt;
    if (given[k] && (!may_have(given[k]->dtype, input.dtype) || !is_of(*given[k], shape))) return std::nullopt;
  }
  EngineCall call("layer_norm_backward", Memory::kKept);
  call.give("grad_out", grad_out);
  call.give("input", input);
  call["normalized_shape"].list = dims_of(shape);
  call.give("mean", mean);
  call.give("rstd", rstd);
  if (given[0]) call.give("weight", *given[0]);
  call["output_mask"].list.assign(mask.values.data(), mask.count);
  const auto parameter = [&](const char* name, size_t k) {
    return mask.values[k + 1] != 0 ? call.make(name, dims_of(shape), given[k]->dtype) : Result();
  };
  Result dx = mask.values[0] != 0 ? call.make("grad_input_out", input.shape, input.dtype) : Result();
  Results results = collect(std::move(dx), parameter("grad_weight_out", 0));
  results->push_back(parameter("grad_bias_out", 1));
  return call.run() ? std::move(results) : std::nullopt;
}

// Whether PyTorch's result could be channels-last. The engine's never is. True for all that PyTorch takes for
// channels-last, and for some more: with several channels their stride is then smaller than the last axis's, with one
// channel it may be the same.
bool may_be_channels_last(const Input& input) {
  const uint64_t rank = input.shape.size();
  if (rank != 4 && rank != 5) return false;
  const int64_t channel = input.strides[1], last = input.strides[rank - 1];
  return channel < last || (channel == last && input.shape[1] == 1);
}

// The same rule as in native/torch/norms.cpp and descend.torch.stable, which ask PyTorch for the memory format.
bool serves_rms_norm(const Input& input, const Numbers& shape, const std::optional<Input>& weight) {
  return ends_with(input, shape) && !may_be_channels_last(input) &&
         (!weight || (may_have(weight->dtype, input.dtype) && is_of(*weight, shape)));
}

// _fused_rms_norm(input, normalized_shape, weight?, eps?)
Results rms_norm(const Value* stack) {
  const Input input("input", as<Handle>(stack[0]));
  const Numbers shape(stack[1]);
  const std::optional<Input> weight = optional_input("weight", stack[2]);
  if (!serves_rms_norm(input, shape, weight)) return std::nullopt;
  const Dtype wide = is_narrow(input.dtype) ? Dtype::kFloat : input.dtype;
  const double least =
      wide == Dtype::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  EngineCall call("rms_norm", Memory::kPytorchs);
  call.give("x", input);
  call.give("gamma", weight ? *weight : ones(input, shape));
  call["epsilon"].real = stack[3] == 0 ? least : as<double>(*as<Value*>(stack[3]));
  Results results = collect(call.make("y_out", input.shape, input.dtype),
                            call.make("rstd_out", statistics_shape(input, shape), wide));
  return call.run() ? std::move(results) : std::nullopt;
}

// _fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight?, output_mask)
Results rms_norm_backward(const Value* stack) {
  const Input grad_out("grad_out", as<Handle>(stack[0])), input("input", as<Handle>(stack[1]));
  const Numbers shape(stack[2]);
  const Input rstd("rstd", as<Handle>(stack[3]));
  const std::optional<Input> weight = optional_input("weight", stack[4]);
  const Numbers mask(stack[5]);
  if (!serves_rms_norm(input, shape, weight) || !grad_out.is_like(input) || !rstd.served ||
      !may_have(rstd.dtype, input.dtype) || (mask.values[1] != 0 && !weight)) {
    return std::nullopt;
  }
  EngineCall call("rms_norm_grad", Memory::kKept);
  call.give("dy", grad_out);
  call.give("x", input);
  call.give("rstd", rstd);
  call.give("gamma", weight ? *weight : ones(input, shape));
  Results results = collect(call.make("dx_out", input.shape, input.dtype),
                            call.make("dgamma_out", dims_of(shape), weight ? weight->dtype : input.dtype));
  if (!call.run()) return std::nullopt;
  for (size_t k = 0; k < 2; ++k) {  // the engine always computes both
    if (mask.values[k] == 0) (*results)[k] = Result();
  }
  return results;
}

enum class Kind { kTensor, kOptional, kOptionalNumber, kList, kNumber };

// What a kernel owns once it has computed: it frees its arguments.
void free_argument(Kind kind, Value value) {
  if (kind == Kind::kTensor) check_torch(torch().aoti_torch_delete_tensor_object(as<Handle>(value)));
  if (kind == Kind::kList) check_torch(torch().torch_delete_list(as<List>(value)));
  if (value == 0 || (kind != Kind::kOptional && kind != Kind::kOptionalNumber)) return;
  Value* const inner = as<Value*>(value);
  if (kind == Kind::kOptional) check_torch(torch().aoti_torch_delete_tensor_object(as<Handle>(*inner)));
  check_torch(torch().torch_delete_stable_ivalue(inner));
}

struct Norm {
  const char* name;
  const char* otherwise;  // the operator that computes what is not served here
  Results (*compute)(const Value* stack);
  std::vector<Kind> arguments;
};

const std::array<Norm, 4>& norms() {
  using enum Kind;
  static const std::array<Norm, 4> all{
      {{"native_layer_norm",
        "descend::pytorchs_native_layer_norm",
        layer_norm,
        {kTensor, kList, kOptional, kOptional, kNumber}},
       {"native_layer_norm_backward",
        "descend::pytorchs_native_layer_norm_backward",
        layer_norm_backward,
        {kTensor, kTensor, kList, kTensor, kTensor, kOptional, kOptional, kList}},
       {"_fused_rms_norm", "descend::pytorchs_fused_rms_norm", rms_norm, {kTensor, kList, kOptional, kOptionalNumber}},
       {"_fused_rms_norm_backward",
        "descend::pytorchs_fused_rms_norm_backward",
        rms_norm_backward,
        {kTensor, kTensor, kList, kTensor, kOptional, kList}}}};
  return all;
}

void free_arguments(const Norm& norm, const Value* stack) {
  for (size_t i = 0; i < norm.arguments.size(); ++i) free_argument(norm.arguments[i], stack[i]);
}

// Empty if the engine does not compute the call, or has no memory for it.
Results compute(const Norm& norm, const Value* stack) {
  try {
    return norm.compute(stack);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  } catch (...) {
    free_arguments(norm, stack);
    throw;
  }
}

// Whether the kernels compute. Else they leave each call to PyTorch, but for the gradient that it does not have.
std::atomic<bool> computes = false;
constexpr size_t kForGood = 3;  // the index of that

// Threads that have called a kernel and are still there.
std::atomic<int> callers = 0;
struct Caller {
  Caller() { ++callers; }
  ~Caller() { --callers; }
};
void count_thread() {
  thread_local const Caller here;
  (void)here;
}

template <size_t kIndex>
void kernel(Value* stack, uint64_t, uint64_t) {
  count_thread();
  const Norm& norm = norms()[kIndex];
  Results results = computes || kIndex == kForGood ? compute(norm, stack) : std::nullopt;
  if (!results) return check_torch(torch().torch_call_dispatcher(norm.otherwise, "", stack, kRelease));
  free_arguments(norm, stack);
  for (size_t k = 0; k < results->size(); ++k) stack[k] = (*results)[k].release();
}

constexpr std::array<Kernel, 4> kKernels{kernel<0>, kernel<1>, kernel<2>, kernel<3>};

// Registers the kernels [first, first + count) for PyTorch's operators on the CPU. They are removed when it is
// destroyed.
class StableNorms {
 public:
  explicit StableNorms(size_t first, size_t count) {
    check_torch(torch().aoti_torch_library_init_impl("aten", "CPU", __FILE__, __LINE__, &library_));
    for (size_t i = first; i < first + count; ++i) {
      check_torch(torch().torch_library_impl(library_, norms()[i].name, kKernels[i], kRelease));
    }
  }
  StableNorms(const StableNorms&) = delete;
  StableNorms& operator=(const StableNorms&) = delete;
  ~StableNorms() { (void)torch().aoti_torch_delete_library_object(library_); }

 private:
  LibraryObject* library_ = nullptr;
};

}  // namespace

void bind_stable_norms(nb::module_& module) {
  module.def(
      "load_stable_torch",
      [](const nb::callable& address) {
        return stable_torch::load([&](const char* name) { return nb::cast<std::uintptr_t>(address(name)); });
      },
      nb::arg("address"),
      "Finds the C functions of PyTorch's stable interface: `address(name)` gives one's address, or 0. Returns whether "
      "all are there that `override_norms` needs.");
  module.def(
      "override_norms",
      [](bool on) {
        if (functions() == nullptr) {
          throw std::runtime_error("PyTorch's stable interface was not found: call load_stable_torch first.");
        }
        static StableNorms* libraries = nullptr;
        // A gradient may be computed when all is off again.
        static StableNorms* const for_good = new StableNorms(kForGood, 1);
        (void)for_good;
        if (on == (libraries != nullptr)) return;
        if (on) {
          libraries = new StableNorms(0, kForGood);
        } else {
          delete std::exchange(libraries, nullptr);
        }
      },
      nb::arg("on"), nb::call_guard<nb::gil_scoped_release>(),
      "Registers the engine's kernels for PyTorch's norms by its stable C interface, or removes them, which is safe "
      "while no other thread calls one. Raises RuntimeError before load_stable_torch has found it.");
  module.def(
      "compute_norms",
      [](bool on) {
        computes = on;
        count_thread();
        return callers == 1;
      },
      nb::arg("on"),
      "Has these kernels compute, or leave each call to PyTorch. Returns whether no other thread that is still there "
      "has called one.");
  module.def("count_thread", count_thread, "Counts this thread among those that have called one of these kernels.");
}

}  // namespace descend::python
