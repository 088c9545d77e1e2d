// The part of PyTorch's stable C interface that is used here (torch/csrc/stable/c/shim.h and torch/csrc/inductor/
// aoti_torch/c/shim.h). It is the same from release 2.13 on, so that what uses it needs no headers of PyTorch, and
// serves all later releases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace descend::stable_torch {

struct TensorObject;
struct ListObject;
struct LibraryObject;
using Handle = TensorObject*;
using List = ListObject*;

// An argument or a result of a kernel: a number, a handle, or, where the schema has an optional, null or a pointer to
// another one.
using Value = uint64_t;
using Kernel = void (*)(Value* stack, uint64_t arguments, uint64_t results);
using Error = int32_t;  // 0: none

inline constexpr uint64_t kRelease = (uint64_t{2} << 56) | (uint64_t{13} << 48);  // the oldest one

struct Functions {
  uint64_t (*aoti_torch_abi_version)();
  int32_t (*aoti_torch_device_type_cpu)();
  int32_t (*aoti_torch_layout_strided)();
  int32_t (*aoti_torch_dtype_float32)();
  int32_t (*aoti_torch_dtype_float64)();
  int32_t (*aoti_torch_dtype_float16)();
  int32_t (*aoti_torch_dtype_bfloat16)();

  Error (*aoti_torch_get_dim)(Handle, int64_t*);
  Error (*aoti_torch_get_sizes)(Handle, int64_t**);
  Error (*aoti_torch_get_strides)(Handle, int64_t**);
  Error (*aoti_torch_get_dtype)(Handle, int32_t*);
  Error (*aoti_torch_get_device_type)(Handle, int32_t*);
  Error (*aoti_torch_get_layout)(Handle, int32_t*);
  Error (*aoti_torch_get_storage_size)(Handle, int64_t*);
  Error (*aoti_torch_get_storage_offset)(Handle, int64_t*);
  Error (*aoti_torch_is_defined)(Handle, bool*);
  Error (*torch_get_const_data_ptr)(Handle, const void**);
  Error (*torch_get_mutable_data_ptr)(Handle, void**);
  Error (*aoti_torch_empty_strided)(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                    int32_t device_type, int32_t device_index, Handle*);
  Error (*torch_from_blob)(void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int64_t offset,
                           int32_t dtype, int32_t device_type, int32_t device_index, Handle*, int32_t layout,
                           const uint8_t* metadata, int64_t metadata_size, void (*deleter)(void* data, void* context),
                           void* context);
  Error (*aoti_torch_new_uninitialized_tensor)(Handle*);  // one that is not defined
  Error (*aoti_torch_delete_tensor_object)(Handle);

  Error (*torch_list_size)(List, size_t*);
  Error (*torch_list_get_item)(List, size_t, Value*);
  Error (*torch_delete_list)(List);
  Error (*torch_delete_stable_ivalue)(Value*);

  Error (*torch_call_dispatcher)(const char* name, const char* overload, Value* stack, uint64_t release);
  Error (*aoti_torch_library_init_impl)(const char* name_space, const char* key, const char* file, uint32_t line,
                                        LibraryObject**);
  Error (*torch_library_impl)(LibraryObject*, const char* name, Kernel, uint64_t release);
  Error (*aoti_torch_delete_library_object)(LibraryObject*);
  Error (*torch_get_num_threads)(uint32_t*);
  const char* (*torch_exception_get_what_without_backtrace)();
};

// Finds them by `address`, which gives 0 for a name that is not there. Returns whether PyTorch has all of them. A
// release before kRelease is one that has not.
bool load(const std::function<std::uintptr_t(const char* name)>& address);

// Null before load() has found all.
const Functions* functions();

}  // namespace descend::stable_torch
