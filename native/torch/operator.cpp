#include "torch/operator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <sstream>
#include <string>

#include "runtime/pages.h"

namespace descend::pytorch {
namespace {

const Engine* engine = nullptr;
std::atomic<int> threads = 0;
std::atomic<bool> forked = false;  // PyTorch's threads stay behind in the parent

// Whether this process was forked and has run no other program since, as Linux knows.
bool is_forked() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;  // state, parent, group, session, terminal, its group
  for (int i = 0; i < 6; ++i) fields >> skipped;
  unsigned long flags = 0;
  fields >> flags;
  constexpr unsigned long kForkedNoExec = 0x40;
  return (flags & kForkedNoExec) != 0;
}

#ifdef _OPENMP
constexpr bool kHasThreads = true;
#else
constexpr bool kHasThreads = false;  // at::parallel_for is a loop then
#endif

void team(int count, void (*work)(void* context), void* context) {
  at::parallel_for(0, count, 1, [&](int64_t, int64_t) { work(context); });
}

// While it lives, this thread's regions run on PyTorch's threads, which may still be awake from the operator before.
class OnTorchThreads {
 public:
  OnTorchThreads() : before_(engine->set_team(kHasThreads && !forked ? team : nullptr)) {}
  ~OnTorchThreads() { engine->set_team(before_); }
  OnTorchThreads(const OnTorchThreads&) = delete;
  OnTorchThreads& operator=(const OnTorchThreads&) = delete;

 private:
  Team before_;
};

Dtype engine_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Dtype::kFloat;
    case at::kHalf:
      return Dtype::kFloat16;
    case at::kBFloat16:
      return Dtype::kBfloat16;
    case at::kDouble:
      return Dtype::kDouble;
    case at::kBool:
      return Dtype::kBool;
    default:
      return Dtype::kUndefined;  // no operator takes the others
  }
}

at::ScalarType torch_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return at::kHalf;
    case Dtype::kBfloat16:
      return at::kBFloat16;
    case Dtype::kDouble:
      return at::kDouble;
    default:
      return at::kFloat;
  }
}

bool import_tensor(const char* name, Tensor& tensor, const at::Tensor& source) {
  if (!source.device().is_cpu() || source.layout() != at::kStrided || source.is_neg()) return false;
  tensor.dtype = engine_dtype(source.scalar_type());
  if (tensor.dtype == Dtype::kUndefined) return false;
  tensor.shape.assign(source.sizes().data(), source.sizes().size());
  tensor.strides.assign(source.strides().data(), source.strides().size());
  tensor.format = Format::kND;
  const size_t needed =
      at::detail::computeStorageNbytes(source.sizes(), source.strides(), source.itemsize(), source.storage_offset());
  TORCH_CHECK_VALUE(source.numel() == 0 || (source.storage().nbytes() >= needed && source.storage().data() != nullptr),
                    name,
                    " is a view of a storage that is freed, or smaller than the view: ", source.storage().nbytes(),
                    " bytes, but must have ", needed, ".");
  engine->set_memory(tensor, source.data_ptr());
  return true;
}

bool import_attribute(Argument& argument, Kind kind, const c10::IValue& value) {
  switch (kind) {
    case Kind::kInt:
      if (!value.isInt()) return false;
      argument.integer = value.toInt();
      return true;
    case Kind::kFloat:
      if (!value.isDouble()) return false;
      argument.real = value.toDouble();
      return true;
    case Kind::kBool:
      if (!value.isBool()) return false;
      argument.flag = value.toBool();
      return true;
    case Kind::kString:
      if (!value.isString()) return false;
      argument.text = value.toStringRef();
      return true;
    case Kind::kIntArray: {
      if (!value.isIntList()) return false;
      const std::vector<int64_t> numbers = value.toIntVector();
      argument.list.assign(numbers.data(), numbers.size());
      return true;
    }
    case Kind::kBoolArray: {
      if (!value.isBoolList()) return false;
      const c10::List<bool> list = value.toBoolList();
      const std::vector<int64_t> flags(list.begin(), list.end());
      argument.list.assign(flags.data(), flags.size());
      return true;
    }
    case Kind::kTensor:
      break;
  }
  return false;
}

// The engine's warm pages as PyTorch's storages know memory: a storage that has an allocator can be resized.
class Pages : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(bytes);
    void* memory = block->memory;
    return {memory, block.release(), [](void* owned) { delete static_cast<Block*>(owned); }, c10::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    explicit Block(size_t size) : bytes(size), memory(engine->take_pages(size)) {
      if (memory == nullptr) throw std::bad_alloc();
    }
    ~Block() { engine->give_pages(memory, bytes); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    size_t bytes;
    void* memory;
  };
};

// Large results take the engine's warm pages, small ones PyTorch's own memory.
at::Tensor allocate(Tensor& tensor) {
  static Pages& pages = *new Pages;  // results may outlive all else
  const at::IntArrayRef sizes(tensor.shape.data(), tensor.shape.size());
  const at::ScalarType dtype = torch_dtype(tensor.dtype);
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  at::Tensor result;
  if (bytes < kPageResult) {
    try {
      result = at::detail::empty_cpu(sizes, dtype);
    } catch (const c10::Error&) {
      throw std::bad_alloc();
    }
  } else {
    constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
    result = at::detail::empty_generic(sizes, &pages, kCpu, dtype, std::nullopt);
  }
  tensor.data = result.data_ptr();
  return result;
}

}  // namespace

void set_engine(const Engine* lent) {
  engine = lent;
  forked = is_forked();
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  threads = at::get_num_threads();
}

void follow_threads() {
  const int now = at::get_num_threads();
  if (threads.exchange(now) != now) engine->set_num_threads(now);
}

TorchOperator::TorchOperator(const char* name) : definition_(engine->find_operator(name)) {
  TORCH_CHECK(definition_ != nullptr, "the engine has no operator ", name);
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(("descend::" + std::string(name)).c_str(), "");
  const auto count = static_cast<int>(definition_->parameters.size());
  for (const c10::Argument& argument : handle.schema().arguments()) {
    int i = 0;
    while (i < count && argument.name() != definition_->parameters[i].python) ++i;
    TORCH_CHECK(i < count, name, " has no parameter ", argument.name());
    parameters_.push_back(i);
  }
  for (int i = 0; i < count; ++i) {
    if (definition_->parameters[i].role == Role::kOutput) outputs_.push_back(i);
  }
}

bool TorchOperator::import(Call& call, at::ArrayRef<c10::IValue> arguments) const {
  for (size_t k = 0; k < arguments.size(); ++k) {
    const c10::IValue& value = arguments[k];
    Argument& argument = call[parameters_[k]];
    const Parameter& parameter = definition_->parameters[parameters_[k]];
    if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) continue;  // begin() left all null
    argument.state = Argument::State::kGiven;
    if (parameter.kind == Kind::kTensor
            ? !value.isTensor() || !import_tensor(parameter.python, argument.tensor, value.toTensor())
            : !import_attribute(argument, parameter.kind, value)) {
      return false;
    }
  }
  return true;
}

std::optional<std::vector<at::Tensor>> TorchOperator::run(at::ArrayRef<c10::IValue> arguments) const {
  follow_threads();
  try {
    Executor& executor = engine->begin(*definition_);
    Call& call = engine->call(executor);
    if (!import(call, arguments) || !engine->prepare(executor).ok()) return std::nullopt;
    std::vector<at::Tensor> results(outputs_.size());
    for (size_t k = 0; k < outputs_.size(); ++k) {
      if (is_used(call, outputs_[k])) results[k] = allocate(call[outputs_[k]].tensor);
    }
    const OnTorchThreads lent;
    if (!engine->run(executor).ok()) return std::nullopt;
    return results;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace descend::pytorch
