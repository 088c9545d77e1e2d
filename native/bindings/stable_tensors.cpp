#include "bindings/stable_tensors.h"

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "runtime/pages.h"
#include "runtime/status.h"

namespace descend::stable_torch {
namespace {

// Throws PyTorch's sentence, which a kernel in Python may have raised: then its name stands before, and its stack
// after.
[[noreturn]] void throw_torch_error() {
  std::string_view text(torch().torch_exception_get_what_without_backtrace());
  text = text.substr(0, text.find("\n\nAt:\n"));
  constexpr std::string_view kError = "Error: ";
  const size_t name = text.find(kError);
  if (name < text.find(' ')) text.remove_prefix(name + kError.size());
  throw std::runtime_error(std::string(text));
}

Dtype dtype_of(int32_t number) {
  static const int32_t kSingle = torch().aoti_torch_dtype_float32(), kWide = torch().aoti_torch_dtype_float64(),
                       kHalf = torch().aoti_torch_dtype_float16(), kBrain = torch().aoti_torch_dtype_bfloat16();
  return number == kSingle  ? Dtype::kFloat
         : number == kWide  ? Dtype::kDouble
         : number == kHalf  ? Dtype::kFloat16
         : number == kBrain ? Dtype::kBfloat16
                            : Dtype::kUndefined;
}

int32_t number_of(Dtype dtype) {
  return dtype == Dtype::kDouble     ? torch().aoti_torch_dtype_float64()
         : dtype == Dtype::kFloat16  ? torch().aoti_torch_dtype_float16()
         : dtype == Dtype::kBfloat16 ? torch().aoti_torch_dtype_bfloat16()
                                     : torch().aoti_torch_dtype_float32();
}

bool is_defined(Handle handle) {
  bool defined = false;
  check_torch(torch().aoti_torch_is_defined(handle, &defined));
  return defined;
}

// The deleter of memory that is kept.
void give_back(void* memory, void* bytes) { give_pages(memory, reinterpret_cast<uintptr_t>(bytes)); }

}  // namespace

void check_torch(Error error) {
  if (error != 0) throw_torch_error();
}

Input::Input(const char* name, Handle handle) {
  if (!is_defined(handle)) return;
  int32_t number = 0, device = 0, layout = 0;
  check_torch(torch().aoti_torch_get_dtype(handle, &number));
  check_torch(torch().aoti_torch_get_device_type(handle, &device));
  check_torch(torch().aoti_torch_get_layout(handle, &layout));
  dtype = dtype_of(number);
  int64_t rank = 0;
  check_torch(torch().aoti_torch_get_dim(handle, &rank));
  if (dtype == Dtype::kUndefined || device != torch().aoti_torch_device_type_cpu() ||
      layout != torch().aoti_torch_layout_strided() || rank > static_cast<int64_t>(Tensor::kMaxRank)) {
    return;
  }
  int64_t *sizes = nullptr, *steps = nullptr, bytes = 0, offset = 0;
  check_torch(torch().aoti_torch_get_sizes(handle, &sizes));
  check_torch(torch().aoti_torch_get_strides(handle, &steps));
  check_torch(torch().aoti_torch_get_storage_size(handle, &bytes));
  check_torch(torch().aoti_torch_get_storage_offset(handle, &offset));
  shape.assign(sizes, rank);
  strides.assign(steps, rank);
  int64_t last = offset;
  for (int64_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0) return;
    last += (sizes[i] - 1) * steps[i];
  }
  const void* first = nullptr;
  check_torch(torch().torch_get_const_data_ptr(handle, &first));
  if (first == nullptr || bytes < (last + 1) * dtype_size(dtype)) {
    throw std::runtime_error(concat(name, " is a view of a storage that is freed, or smaller than the view: ", bytes,
                                    " bytes, but must have ", (last + 1) * dtype_size(dtype), "."));
  }
  data = const_cast<void*>(first);
  served = true;
}

Numbers::Numbers(Value argument) {
  const List list = as<List>(argument);
  check_torch(torch().torch_list_size(list, &count));
  fits = count <= kMost;
  for (size_t i = 0; fits && i < count; ++i) {
    Value item = 0;
    check_torch(torch().torch_list_get_item(list, i, &item));
    values[i] = as<int64_t>(item);
  }
}

// PyTorch's gradients call a parameter that is not given a tensor that is not defined.
std::optional<Input> optional_input(const char* name, Value argument) {
  if (argument == 0) return std::nullopt;
  const Handle handle = as<Handle>(*as<Value*>(argument));
  return is_defined(handle) ? std::optional<Input>(Input(name, handle)) : std::nullopt;
}

Result::Result() { check_torch(torch().aoti_torch_new_uninitialized_tensor(&handle_)); }

Result::Result(const Dims& shape, Dtype dtype, Memory memory) {
  const Tensor tensor = contiguous_tensor(dtype, shape);
  const auto rank = static_cast<int64_t>(tensor.rank());
  const auto bytes = static_cast<size_t>(tensor.elements() * dtype_size(dtype));
  const int32_t cpu = torch().aoti_torch_device_type_cpu();
  if (memory == Memory::kKept && bytes >= kPageResult) {
    void* const pages = take_pages(bytes);
    if (pages == nullptr) throw std::bad_alloc();
    check_torch(torch().torch_from_blob(pages, rank, shape.begin(), tensor.strides.begin(), 0, number_of(dtype), cpu,
                                        -1, &handle_, torch().aoti_torch_layout_strided(), nullptr, 0, give_back,
                                        reinterpret_cast<void*>(uintptr_t{bytes})));
    return;
  }
  check_torch(torch().aoti_torch_empty_strided(rank, shape.begin(), tensor.strides.begin(), number_of(dtype), cpu, 0,
                                               &handle_));
  if (bytes >= kPageResult) prefer_huge_pages(data(), bytes);
}

void* Result::data() const {
  void* memory = nullptr;
  check_torch(torch().torch_get_mutable_data_ptr(handle_, &memory));
  return memory;
}

}  // namespace descend::stable_torch
