#include "bindings/stable_torch.h"

#include <dlfcn.h>

namespace descend::stable_torch {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function, bool& all) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  all = all && function != nullptr;
}

const Functions* load() {
  // PyTorch's modules have loaded it, or there is none.
  void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  static Functions f;
  bool all = true;
#define FIND(name) find(library, #name, f.name, all)
  FIND(aoti_torch_abi_version);
  FIND(aoti_torch_device_type_cpu);
  FIND(aoti_torch_layout_strided);
  FIND(aoti_torch_dtype_float32);
  FIND(aoti_torch_dtype_float64);
  FIND(aoti_torch_dtype_float16);
  FIND(aoti_torch_dtype_bfloat16);
  FIND(aoti_torch_get_dim);
  FIND(aoti_torch_get_sizes);
  FIND(aoti_torch_get_strides);
  FIND(aoti_torch_get_dtype);
  FIND(aoti_torch_get_device_type);
  FIND(aoti_torch_get_layout);
  FIND(aoti_torch_get_storage_size);
  FIND(aoti_torch_get_storage_offset);
  FIND(aoti_torch_is_defined);
  FIND(torch_get_const_data_ptr);
  FIND(torch_get_mutable_data_ptr);
  FIND(aoti_torch_empty_strided);
  FIND(aoti_torch_new_uninitialized_tensor);
  FIND(aoti_torch_delete_tensor_object);
  FIND(torch_list_size);
  FIND(torch_list_get_item);
  FIND(torch_delete_list);
  FIND(torch_delete_stable_ivalue);
  FIND(torch_call_dispatcher);
  FIND(aoti_torch_library_init_impl);
  FIND(torch_library_impl);
  FIND(aoti_torch_delete_library_object);
  FIND(torch_get_num_threads);
  FIND(torch_exception_get_what_without_backtrace);
#undef FIND
  return all && f.aoti_torch_abi_version() >= kRelease ? &f : nullptr;
}

}  // namespace

const Functions* functions() {
  static const Functions* const found = load();
  return found;
}

}  // namespace descend::stable_torch
