#include "bindings/arrays.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "runtime/pages.h"

namespace descend::python {
namespace {

int bfloat16_number = -1;
PyObject* bfloat16_descr = nullptr;
PyObject* masked_array_type = nullptr;

[[noreturn]] void refuse(const Call& call, int i, const std::string& why) {
  throw StatusError{call.fail(Code::kParamInvalid, call.name(i), " ", why)};
}

[[noreturn]] void refuse_type(const Call& call, int i, PyObject* object) {
  throw Error{PyExc_TypeError, concat(call.operator_name(), ": ", call.name(i), " is ", what_is(object),
                                      ", but must be an array (NumPy, PyTorch, or anything with DLPack).")};
}

// What an object's own code raised while it was read, in one sentence; interrupts and the like go through. To be called
// inside catch (nb::python_error&).
[[noreturn]] void refuse_unreadable(const Call& call, int i, PyObject* object, const nb::python_error& error) {
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
  if (is_deleted(object)) refuse(call, i, concat("is ", what_is(object), ", whose memory was freed or donated."));
  const nb::object message = nb::steal(PyObject_Str(error.value().ptr()));
  if (!message.is_valid()) PyErr_Clear();
  const std::string text = message.is_valid() ? utf8(message.ptr()) : std::string();
  // The first line: C++ libraries append their stack.
  std::string_view reason(text);
  reason = reason.substr(0, reason.find('\n'));
  while (!reason.empty() && (reason.back() == '.' || reason.back() == ' ')) reason.remove_suffix(1);
  if (reason.empty()) reason = reinterpret_cast<PyTypeObject*>(error.type().ptr())->tp_name;
  refuse(call, i, concat("is ", what_is(object), " that cannot be read: ", reason, "."));
}

// A storage and an offset that the strides of a tensor without memory fit into, as far as 64 bits reach.
void spread_storage(Tensor& tensor) {
  __int128 low = 0, high = 0;
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape[i] < 1) {
      tensor.storage_shape = {0};
      return;
    }
    (tensor.strides[i] < 0 ? low : high) += static_cast<__int128>(tensor.shape[i] - 1) * tensor.strides[i];
  }
  constexpr __int128 kMost = std::numeric_limits<int64_t>::max();
  tensor.offset = static_cast<int64_t>(std::min(-low, kMost));
  tensor.storage_shape = {static_cast<int64_t>(std::min(high - low + 1, kMost))};
}

Dtype numpy_dtype(int number) {
  switch (number) {
    case NPY_FLOAT:
      return Dtype::kFloat;
    case NPY_HALF:
      return Dtype::kFloat16;
    case NPY_DOUBLE:
      return Dtype::kDouble;
    case NPY_BOOL:
      return Dtype::kBool;
    case NPY_INT8:
      return Dtype::kInt8;
    case NPY_INT16:
      return Dtype::kInt16;
    case NPY_INT32:
      return Dtype::kInt32;
    case NPY_INT64:
      return Dtype::kInt64;
    case NPY_UINT8:
      return Dtype::kUint8;
    case NPY_UINT16:
      return Dtype::kUint16;
    case NPY_UINT32:
      return Dtype::kUint32;
    case NPY_UINT64:
      return Dtype::kUint64;
    case NPY_COMPLEX64:
      return Dtype::kComplex64;
    case NPY_COMPLEX128:
      return Dtype::kComplex128;
    default:
      return number == bfloat16_number ? Dtype::kBfloat16 : Dtype::kUndefined;
  }
}

void import_numpy(Call& call, int i, PyArrayObject* array, bool output) {
  Tensor& tensor = call[i].tensor;
  tensor.dtype = numpy_dtype(PyArray_TYPE(array));
  if (tensor.dtype == Dtype::kUndefined) {
    refuse(call, i,
           "has dtype " + utf8(nb::str(nb::handle(reinterpret_cast<PyObject*>(PyArray_DESCR(array)))).ptr()) +
               ", which no operator takes.");
  }
  if (!PyArray_CheckExact(reinterpret_cast<PyObject*>(array)) &&
      PyObject_IsInstance(reinterpret_cast<PyObject*>(array), masked_array_type) == 1) {
    refuse(call, i, "is a masked array, whose mask would be ignored; pass its data.");
  }
  if (PyArray_ISBYTESWAPPED(array)) refuse(call, i, "is byte-swapped; convert it to the machine's byte order first.");
  if (output && !PyArray_ISWRITEABLE(array)) refuse(call, i, "is read-only, but an output is written to.");
  const int rank = PyArray_NDIM(array);
  const int64_t size = dtype_size(tensor.dtype);
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  tensor.shape.assign(reinterpret_cast<const int64_t*>(PyArray_DIMS(array)), rank);
  tensor.strides.assign(reinterpret_cast<const int64_t*>(PyArray_STRIDES(array)), rank);
  for (int64_t& stride : std::span(tensor.strides.data(), rank)) {
    if (stride % size != 0) refuse(call, i, "has strides that are not multiples of its element size.");
    stride /= size;
  }
  tensor.format = Format::kND;
  set_memory(tensor, PyArray_DATA(array));
}

Dtype dlpack_dtype(const dlpack::DataType& type) {
  if (type.lanes != 1) return Dtype::kUndefined;
  switch (type.code) {
    case dlpack::kFloat:
      return type.bits == 32   ? Dtype::kFloat
             : type.bits == 16 ? Dtype::kFloat16
             : type.bits == 64 ? Dtype::kDouble
                               : Dtype::kUndefined;
    case dlpack::kBfloat:
      return type.bits == 16 ? Dtype::kBfloat16 : Dtype::kUndefined;
    case dlpack::kBool:
      return type.bits == 8 ? Dtype::kBool : Dtype::kUndefined;
    case dlpack::kInt:
      return type.bits == 64   ? Dtype::kInt64
             : type.bits == 32 ? Dtype::kInt32
             : type.bits == 16 ? Dtype::kInt16
             : type.bits == 8  ? Dtype::kInt8
                               : Dtype::kUndefined;
    case dlpack::kUint:
      return type.bits == 8    ? Dtype::kUint8
             : type.bits == 16 ? Dtype::kUint16
             : type.bits == 32 ? Dtype::kUint32
             : type.bits == 64 ? Dtype::kUint64
                               : Dtype::kUndefined;
    case dlpack::kComplex:
      return type.bits == 64    ? Dtype::kComplex64
             : type.bits == 128 ? Dtype::kComplex128
             : type.bits == 32  ? Dtype::kComplex32
                                : Dtype::kUndefined;
    default:
      return Dtype::kUndefined;
  }
}

void import_dltensor(Call& call, int i, PyObject* object, const dlpack::Tensor& source) {
  const int32_t device = source.device.type;
  if (device != dlpack::kCpu && device != dlpack::kCudaHost && device != dlpack::kRocmHost) {
    refuse(call, i, concat("lies on a device (DLPack type ", device, "), but this build computes on the CPU."));
  }
  Tensor& tensor = call[i].tensor;
  tensor.dtype = dlpack_dtype(source.dtype);
  if (tensor.dtype == Dtype::kUndefined) {
    refuse(call, i, concat("is ", what_is(object), " whose dtype no operator takes."));
  }
  tensor.shape.assign(source.shape, source.ndim);
  if (source.strides != nullptr) {
    tensor.strides.assign(source.strides, source.ndim);
  } else {
    tensor.strides = contiguous_strides(tensor.shape);
  }
  tensor.format = Format::kND;
  if (source.data == nullptr && !tensor.empty()) {
    refuse(call, i, concat("is ", what_is(object), " without memory of its own."));
  }
  set_memory(tensor, static_cast<char*>(source.data) + source.byte_offset);
}

// The exchange interface of a type, if it has one. Types are few and live long: the latest are remembered.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type;
    const dlpack::ExchangeApi* api;
  };
  static std::array<Known, 8> known{};
  static size_t next = 0;
  for (const Known& entry : known) {
    if (entry.type == type) return entry.api;
  }
  const nb::object capsule =
      nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__dlpack_c_exchange_api__", nb::none());
  const dlpack::ExchangeApi* api = nullptr;
  if (!capsule.is_none()) {
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) {
      PyErr_Clear();
    } else if (api->version.major != 1) {
      api = nullptr;
    }
  }
  Py_INCREF(type);  // its address must not be reused while it is remembered
  Known& entry = known[next++ % known.size()];
  Py_XDECREF(std::exchange(entry, Known{type, api}).type);
  return api;
}

struct Torch {
  nb::object tensor_type;
  nb::object is_grad_enabled;
  nb::object increment_version;
  nb::object forward_ad;
  nb::object tracing_state;  // of torch.jit.trace
  nb::object python_dispatch;
  nb::object dispatch_mode;  // of a key; that of make_fx is proxy_key
  nb::object proxy_key;
};

// PyTorch's pieces, if it has been imported; never imports it.
const Torch* torch() {
  static Torch* loaded = nullptr;
  if (loaded == nullptr) {
    PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (module == nullptr || !PyObject_HasAttrString(module, "autograd")) return nullptr;
    const nb::handle handle(module);
    const nb::object autograd = handle.attr("autograd");
    const nb::object native = handle.attr("_C");
    loaded = new Torch{handle.attr("Tensor"),
                       handle.attr("is_grad_enabled"),
                       autograd.attr("graph").attr("increment_version"),
                       autograd.attr("forward_ad"),
                       native.attr("_get_tracing_state"),
                       handle.attr("utils").attr("_python_dispatch"),
                       native.attr("_get_dispatch_mode"),
                       native.attr("_TorchDispatchModeKey").attr("PROXY")};
  }
  return loaded;
}

bool is_torch(PyObject* object) {
  const Torch* t = torch();
  return t != nullptr && PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(t->tensor_type.ptr()));
}

bool truth(const nb::object& value) { return value.ptr() == Py_True; }

// Whether this is a kernel's call, below PyTorch's autograd: who called it deals with tangents, which there cannot even
// be asked for.
bool below_autograd() {
  const nb::module_ library = nb::module_::import_("torch._C");
  const nb::object autograd = library.attr("DispatchKey").attr("AutogradFunctionality");
  return truth(library.attr("_dispatch_tls_is_dispatch_key_excluded")(autograd));
}

// Only within a level can a tensor have one, and to ask for the level costs next to nothing.
bool has_tangent(PyObject* object) {
  static PyObject* const names = PyModule_GetDict(torch()->forward_ad.ptr());
  static PyObject* const current_level = PyUnicode_InternFromString("_current_level");
  static PyObject* const outside = PyLong_FromLong(-1);  // the same object everywhere, as all small numbers are
  PyObject* const level = PyDict_GetItemWithError(names, current_level);
  if (level == outside || level == nullptr || below_autograd()) return false;
  return !torch()->forward_ad.attr("unpack_dual")(nb::handle(object)).attr("tangent").is_none();
}

// What a call would lose of a PyTorch tensor.
void check_recorded(const Call& call, int i, PyObject* object) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  const nb::object wants_grad = nb::steal(PyObject_GetAttr(object, requires_grad));
  if (truth(wants_grad) && truth(torch()->is_grad_enabled())) {
    refuse(call, i,
           "requires gradients, which this call would not record; call it under torch.no_grad(), or detach() it.");
  }
  if (has_tangent(object)) {
    refuse(call, i, "has a forward-mode tangent, which this call would not carry on; detach() it.");
  }
}

// What DLPack does not tell of a PyTorch tensor.
void check_torch(const Call& call, int i, PyObject* object) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  check_recorded(call, i, object);
  if (truth(nb::steal(PyObject_CallMethodNoArgs(object, is_neg)))) {
    refuse(call, i, "is a lazily negated tensor; call resolve_neg() first.");
  }
}

void import_exchange(Call& call, int i, PyObject* object, const dlpack::ExchangeApi& api,
                     std::vector<nb::object>& keep) {
  if (api.borrow_from_object != nullptr) {
    dlpack::Tensor borrowed;
    if (api.borrow_from_object(object, &borrowed) != 0) throw nb::python_error();
    return import_dltensor(call, i, object, borrowed);
  }
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (api.managed_from_object(object, &managed) != 0) throw nb::python_error();
  keep.push_back(nb::capsule(managed, [](void* p) noexcept {
    auto* tensor = static_cast<dlpack::ManagedTensorVersioned*>(p);
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  }));
  import_dltensor(call, i, object, managed->tensor);
}

void import_protocol(Call& call, int i, PyObject* object, bool output, std::vector<nb::object>& keep) {
  const nb::handle array(object);
  const std::string type = type_name(object);
  if (PyType_Check(object) || !nb::hasattr(array, "__dlpack__")) refuse_type(call, i, object);
  // JAX arrays are immutable, yet arrive as writable.
  if (output && (type.starts_with("jax") || type.find(".jax") != std::string::npos)) {
    refuse(call, i, "is a JAX array, which is immutable, but an output is written to.");
  }
  nb::object capsule;
  try {
    if (nb::hasattr(array, "__dlpack_device__")) {
      int device;
      if (!nb::try_cast(nb::object(array.attr("__dlpack_device__")()[0]), device)) {
        refuse(call, i, concat("is ", what_is(object), " whose __dlpack_device__() gave no number."));
      }
      if (device != dlpack::kCpu && device != dlpack::kCudaHost && device != dlpack::kRocmHost) {
        refuse(call, i, concat("lies on a device (DLPack type ", device, "), but this build computes on the CPU."));
      }
    }
    try {
      capsule = array.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;  // an old producer that knows no max_version
      capsule = array.attr("__dlpack__")();
    }
  } catch (nb::python_error& error) {
    refuse_unreadable(call, i, object, error);
  }
  // The capsule stays ours and unconsumed: its own destructor frees the tensor.
  keep.push_back(capsule);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* managed =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1) refuse(call, i, "comes with an unknown version of DLPack.");
    if (output && (managed->flags & dlpack::kReadOnly)) refuse(call, i, "is read-only, but an output is written to.");
    if (output && (managed->flags & dlpack::kCopied)) {
      refuse(call, i, "comes as a copy of itself, but an output is written to in place.");
    }
    return import_dltensor(call, i, object, managed->tensor);
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    refuse(
        call, i,
        concat("is ", what_is(object), " whose __dlpack__() gave no capsule of DLPack, or one that was used already."));
  }
  const auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  import_dltensor(call, i, object, managed->tensor);
}

dlpack::DataType dlpack_type(Dtype dtype) {
  const auto bits = static_cast<uint8_t>(8 * dtype_size(dtype));
  if (dtype == Dtype::kBfloat16) return {dlpack::kBfloat, bits, 1};
  return {dlpack::kFloat, bits, 1};
}

// A result's memory and description in one block.
struct Owned {
  dlpack::ManagedTensorVersioned managed{};
  Dims shape;
  Dims strides;
  size_t bytes = 0;
};

void delete_owned(dlpack::ManagedTensorVersioned* managed) {
  auto* owned = static_cast<Owned*>(managed->context);
  if (owned->bytes >= kPageResult) {
    give_pages(managed->tensor.data, owned->bytes);
  } else {
    std::free(managed->tensor.data);
  }
  delete owned;
}

// Null when there is no memory.
dlpack::ManagedTensorVersioned* new_owned(const Tensor& tensor) {
  auto owned = std::make_unique<Owned>();
  owned->shape = tensor.shape;
  owned->strides = tensor.strides;
  owned->bytes = static_cast<size_t>(tensor.elements() * dtype_size(tensor.dtype));
  constexpr size_t kAlignment = 64;
  void* data = owned->bytes >= kPageResult
                   ? take_pages(owned->bytes)
                   : std::aligned_alloc(kAlignment, (owned->bytes / kAlignment + 1) * kAlignment);
  if (data == nullptr) return nullptr;
  dlpack::ManagedTensorVersioned& managed = owned->managed;
  managed.version = {1, 0};
  managed.context = owned.get();
  managed.deleter = delete_owned;
  managed.tensor = {data,
                    {dlpack::kCpu, 0},
                    static_cast<int32_t>(tensor.rank()),
                    dlpack_type(tensor.dtype),
                    owned->shape.data(),
                    owned->strides.data(),
                    0};
  return &owned.release()->managed;
}

// What from_dlpack() of any library reads.
class Producer {
 public:
  explicit Producer(dlpack::ManagedTensorVersioned* managed) : managed_(managed) {}
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  ~Producer() {
    if (managed_ != nullptr) managed_->deleter(managed_);
  }

  nb::object capsule(const nb::kwargs& options) {
    if (managed_ == nullptr) throw nb::buffer_error("the tensor has been consumed already");
    // A consumer that names no version is one from before versions.
    if (options.contains("max_version") && !nb::object(options["max_version"]).is_none()) {
      return make(std::exchange(managed_, nullptr), "dltensor_versioned");
    }
    auto* old = new dlpack::ManagedTensor{managed_->tensor, managed_, [](dlpack::ManagedTensor* self) {
                                            auto* inner = static_cast<dlpack::ManagedTensorVersioned*>(self->context);
                                            inner->deleter(inner);
                                            delete self;
                                          }};
    managed_ = nullptr;
    return make(old, "dltensor");
  }

 private:
  template <class Managed>
  static nb::object make(Managed* managed, const char* name) {
    PyObject* capsule = PyCapsule_New(managed, name, [](PyObject* unconsumed) {
      const char* own_name = PyCapsule_GetName(unconsumed);
      if (std::string_view(own_name).starts_with("used_")) return;
      auto* tensor = static_cast<Managed*>(PyCapsule_GetPointer(unconsumed, own_name));
      tensor->deleter(tensor);
    });
    if (capsule == nullptr) {
      managed->deleter(managed);
      throw nb::python_error();
    }
    return nb::steal(capsule);
  }

  dlpack::ManagedTensorVersioned* managed_;
};

nb::object numpy_from_managed(dlpack::ManagedTensorVersioned* managed, Dtype dtype) {
  PyArray_Descr* descr;
  if (dtype == Dtype::kBfloat16) {
    descr = reinterpret_cast<PyArray_Descr*>(Py_NewRef(bfloat16_descr));
  } else {
    descr = PyArray_DescrFromType(dtype == Dtype::kFloat ? NPY_FLOAT : dtype == Dtype::kDouble ? NPY_DOUBLE : NPY_HALF);
  }
  nb::object base = nb::capsule(managed, [](void* p) noexcept {
    auto* tensor = static_cast<dlpack::ManagedTensorVersioned*>(p);
    tensor->deleter(tensor);
  });
  nb::object array = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, managed->tensor.ndim,
                                                    reinterpret_cast<const npy_intp*>(managed->tensor.shape), nullptr,
                                                    managed->tensor.data, NPY_ARRAY_CARRAY, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()), base.release().ptr()) != 0) {
    throw nb::python_error();
  }
  return array;
}

}  // namespace

void check_number(const Call& call, int i, PyObject* object) {
  if (is_torch(object)) check_recorded(call, i, object);
}

void check_untraced(const Call& call) {
  const Torch& t = *torch();
  static PyObject* const names = PyModule_GetDict(t.python_dispatch.ptr());
  static PyObject* const in_a_mode = PyUnicode_InternFromString("_is_in_torch_dispatch_mode");
  const bool by_make_fx =
      PyDict_GetItemWithError(names, in_a_mode) != Py_False && !t.dispatch_mode(t.proxy_key).is_none();
  if (!by_make_fx && t.tracing_state().is_none()) return;
  throw Error{PyExc_RuntimeError,
              concat(call.operator_name(),
                     ": PyTorch is tracing, and would keep the results as constants; call descend.torch's functions.")};
}

void set_memory(Tensor& tensor, void* first_element) {
  const int64_t size = dtype_size(tensor.dtype);
  int64_t low = 0, high = 0;
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape[i] == 0) {
      tensor.data = first_element;
      tensor.offset = 0;
      tensor.storage_shape = {0};
      return;
    }
    (tensor.strides[i] < 0 ? low : high) += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  tensor.data = static_cast<char*>(first_element) + low * size;
  tensor.offset = -low;
  tensor.storage_shape = {high - low + 1};
}

Family read_array(Call& call, int i, PyObject* object, bool output, Use use, std::vector<nb::object>& keep) {
  call[i].state = Argument::State::kGiven;
  if (PyArray_Check(object)) {
    import_numpy(call, i, reinterpret_cast<PyArrayObject*>(object), output);
    return Family::kNumpy;
  }
  const bool from_torch = is_torch(object);
  try {
    if (from_torch) check_torch(call, i, object);
    if (const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object))) {
      import_exchange(call, i, object, *api, keep);
    } else {
      import_protocol(call, i, object, output, keep);
    }
    // A tensor that is given other memory keeps none of what it had.
    if (from_torch && use == Use::kLater) keep.assign(1, nb::handle(object).attr("untyped_storage")());
  } catch (nb::python_error& error) {
    refuse_unreadable(call, i, object, error);
  }
  return from_torch ? Family::kTorch : Family::kOther;
}

bool is_still(const Tensor& tensor, PyObject* object) {
  const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object));
  if (api == nullptr || api->borrow_from_object == nullptr) return true;
  dlpack::Tensor now;
  if (api->borrow_from_object(object, &now) != 0) throw nb::python_error();
  const auto same = [&](const int64_t* numbers, const Dims& as) {
    return std::equal(as.begin(), as.end(), numbers, numbers + now.ndim);
  };
  const char* first = static_cast<const char*>(tensor.data) + tensor.offset * dtype_size(tensor.dtype);
  return static_cast<const char*>(now.data) + now.byte_offset == first && dlpack_dtype(now.dtype) == tensor.dtype &&
         same(now.shape, tensor.shape) && (now.strides == nullptr || same(now.strides, tensor.strides));
}

void read_metadata(Call& call, int i, PyObject* object, bool output, std::vector<nb::object>& keep) {
  TensorSpec* spec = nullptr;
  if (nb::try_cast(nb::handle(object), spec) && spec != nullptr) {
    call[i].state = Argument::State::kGiven;
    call[i].tensor = spec->tensor;
  } else {
    (void)read_array(call, i, object, output, Use::kNow, keep);
  }
}

void mark_written(PyObject* object, Family family) {
  if (family != Family::kTorch) return;
  try {
    torch()->increment_version(nb::handle(object));
  } catch (nb::python_error&) {
    // An inference tensor keeps no version, and needs none.
  }
}

Result::Result(Result&& other) noexcept
    : family_(other.family_), like_(other.like_), managed_(std::exchange(other.managed_, nullptr)) {}

Result::~Result() {
  if (managed_ != nullptr) managed_->deleter(managed_);
}

bool Result::allocate(Tensor* tensor) {
  managed_ = new_owned(*tensor);
  if (managed_ == nullptr) return false;
  tensor->data = managed_->tensor.data;
  return true;
}

nb::object Result::finish() {
  const Dtype dtype = dlpack_dtype(managed_->tensor.dtype);
  if (family_ == Family::kNumpy) return numpy_from_managed(std::exchange(managed_, nullptr), dtype);
  if (family_ == Family::kTorch) {
    if (const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(like_))) {
      void* object = nullptr;
      if (api->object_from_managed(std::exchange(managed_, nullptr), &object) != 0) throw nb::python_error();
      return nb::steal(static_cast<PyObject*>(object));
    }
  }
  const nb::object producer = nb::cast(new Producer(std::exchange(managed_, nullptr)), nb::rv_policy::take_ownership);
  const nb::handle like(like_);
  if (family_ == Family::kTorch) return nb::module_::import_("torch").attr("from_dlpack")(producer);
  if (nb::hasattr(like, "__array_namespace__")) return like.attr("__array_namespace__")().attr("from_dlpack")(producer);
  // A producer of DLPack with no namespace to go back to gets NumPy.
  return nb::module_::import_("numpy").attr("from_dlpack")(producer);
}

void bind_arrays(nb::module_& module) {
  if (_import_array() < 0) throw nb::python_error();
  const nb::object bfloat16 =
      nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  bfloat16_number = reinterpret_cast<PyArray_Descr*>(bfloat16.ptr())->type_num;
  bfloat16_descr = nb::object(bfloat16).release().ptr();
  masked_array_type = nb::object(nb::module_::import_("numpy").attr("ma").attr("MaskedArray")).release().ptr();
  nb::class_<TensorSpec>(module, "TensorSpec", "A tensor without memory, for calls that read metadata only.")
      .def(
          "__init__",
          [](TensorSpec* self, const std::vector<int64_t>& shape, int dtype,
             const std::optional<std::vector<int64_t>>& strides, int format) {
            new (self) TensorSpec;
            Tensor& tensor = self->tensor;
            tensor.dtype = static_cast<Dtype>(dtype);
            tensor.format = static_cast<Format>(format);
            tensor.shape.assign(shape.data(), shape.size());
            tensor.strides = contiguous_strides(tensor.shape);
            tensor.storage_shape = tensor.shape;
            if (strides) {
              if (strides->size() != shape.size()) throw nb::value_error("strides and shape differ in length.");
              tensor.strides.assign(strides->data(), strides->size());
              spread_storage(tensor);
            }
          },
          nb::arg("shape"), nb::arg("dtype"), nb::arg("strides").none() = nb::none(), nb::arg("format") = 2,
          "shape, CANN's number of the dtype, strides in elements, CANN's number of the format.");
  nb::class_<Producer>(module, "Producer", "A result on its way to another library: the DLPack protocol.")
      .def("__dlpack_device__", [](const Producer&) { return nb::make_tuple(static_cast<int>(dlpack::kCpu), 0); })
      .def("__dlpack__",
           [](Producer& self, const nb::args&, const nb::kwargs& options) { return self.capsule(options); });
}

}  // namespace descend::python
