#include "bindings/stable_torch.h"

#include <type_traits>

namespace descend::stable_torch {
namespace {

Functions found;
bool complete = false;

}  // namespace

bool load(const std::function<std::uintptr_t(const char* name)>& address) {
  if (complete) return true;
  bool all = true;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address(name));
    all = all && function != nullptr;
  };
#define FIND(name) find(#name, found.name)
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
  FIND(torch_from_blob);
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
  complete = all && found.aoti_torch_abi_version() >= kRelease;
  return complete;
}

const Functions* functions() { return complete ? &found : nullptr; }

}  // namespace descend::stable_torch
