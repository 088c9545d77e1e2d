#include "torch/engine_call.h"

#include <ATen/EmptyTensor.h>
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
std::atomic<bool> forked = false;  // a forked process does not have PyTorch's threads

// Whether this process was forked and has not called exec since. Linux has a flag for that.
bool is_forked() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;  // state, ppid, pgrp, session, tty_nr, tpgid
  for (int i = 0; i < 6; ++i) fields >> skipped;
  unsigned long flags = 0;
  fields >> flags;
  constexpr unsigned long kForkedNoExec = 0x40;
  return (flags & kForkedNoExec) != 0;
}

#ifdef _OPENMP
constexpr bool kHasThreads = true;
#else
constexpr bool kHasThreads = false;  // at::parallel_for then runs in the calling thread
#endif

void team(int count, void (*work)(void* context), void* context) {
  at::parallel_for(0, count, 1, [&](int64_t, int64_t) { work(context); });
}

// While it lives, this thread's parallel work runs on PyTorch's threads. They may still be spinning after the operator
// before, so that they need no wake-up.
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
    case at::kInt:
      return Dtype::kInt32;
    case at::kLong:
      return Dtype::kInt64;
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

// Gives the engine's pages to PyTorch's storages. It is an allocator, since a storage can be resized only if it has an
// allocator.
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

}  // namespace

void set_engine(const Engine* table) {
  engine = table;
  forked = is_forked();
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  threads = at::get_num_threads();
}

void follow_threads() {
  const int now = at::get_num_threads();
  if (threads.exchange(now) != now) engine->set_num_threads(now);
}

const Operator& find_operator(const char* name) {
  const Operator* op = engine->find_operator(name);
  TORCH_CHECK(op != nullptr, "the engine has no operator ", name);
  return *op;
}

int find_parameter(const Operator& op, std::string_view name) {
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    if (op.parameters[i].python == name) return static_cast<int>(i);
  }
  TORCH_CHECK(false, op.name, " has no parameter ", name);
}

at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype) {
  static Pages& pages = *new Pages;  // never destroyed: results may be freed when the process ends
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  if (bytes >= kPageResult) {
    constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
    return at::detail::empty_generic(sizes, &pages, kCpu, dtype, std::nullopt);
  }
  try {
    return at::detail::empty_cpu(sizes, dtype);
  } catch (const c10::Error&) {
    throw std::bad_alloc();
  }
}

EngineCall::EngineCall(const Operator& op) : executor_(engine->begin(op)), call_(engine->call(executor_)) {
  follow_threads();
}

bool EngineCall::give(int parameter, const at::Tensor& source) {
  if (!source.device().is_cpu() || source.layout() != at::kStrided || source.is_neg()) return false;
  call_[parameter].state = Argument::State::kGiven;
  Tensor& tensor = call_[parameter].tensor;
  tensor.dtype = engine_dtype(source.scalar_type());
  if (tensor.dtype == Dtype::kUndefined) return false;
  tensor.shape.assign(source.sizes().data(), source.sizes().size());
  tensor.strides.assign(source.strides().data(), source.strides().size());
  tensor.format = Format::kND;
  const size_t needed =
      at::detail::computeStorageNbytes(source.sizes(), source.strides(), source.itemsize(), source.storage_offset());
  const at::Storage& storage = source.storage();
  TORCH_CHECK_VALUE(source.numel() == 0 || (storage.nbytes() >= needed && storage.data() != nullptr),
                    call_.op->parameters[parameter].python,
                    " is a view of a storage that is freed, or smaller than the view: ", storage.nbytes(),
                    " bytes, but must have ", needed, ".");
  // Not mutable_data_ptr(): that would copy a lazily cloned tensor.
  engine->set_memory(tensor, const_cast<void*>(source.const_data_ptr()));
  return true;
}

void EngineCall::give_constant(int parameter, at::ScalarType dtype, at::IntArrayRef sizes, const void* number) {
  call_[parameter].state = Argument::State::kGiven;
  Tensor& tensor = call_[parameter].tensor;
  tensor.dtype = engine_dtype(dtype);
  tensor.shape.assign(sizes.data(), sizes.size());
  tensor.strides = tensor.shape;
  std::fill(tensor.strides.data(), tensor.strides.data() + tensor.strides.size(), 0);
  tensor.format = Format::kND;
  engine->set_memory(tensor, const_cast<void*>(number));
}

void EngineCall::give(int parameter, double number) {
  call_[parameter].state = Argument::State::kGiven;
  call_[parameter].real = number;
}

void EngineCall::give(int parameter, at::IntArrayRef list) {
  call_[parameter].state = Argument::State::kGiven;
  call_[parameter].list.assign(list.data(), list.size());
}

bool EngineCall::prepare() { return engine->prepare(executor_).ok(); }

at::Tensor EngineCall::allocate_result(int parameter) {
  Tensor& tensor = call_[parameter].tensor;
  at::Tensor result = allocate(at::IntArrayRef(tensor.shape.data(), tensor.shape.size()), torch_dtype(tensor.dtype));
  tensor.data = result.data_ptr();
  return result;
}

bool EngineCall::run() {
  const OnTorchThreads on_torch_threads;
  return engine->run(executor_).ok();
}

}  // namespace descend::pytorch
