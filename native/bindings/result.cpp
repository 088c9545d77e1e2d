#include "bindings/result.h"

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "bindings/dlpack_arrays.h"
#include "bindings/numpy_arrays.h"
#include "runtime/pages.h"

namespace descend::python {
namespace {

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

// Null if there is no memory.
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

// What from_dlpack() of any library takes: an object with the methods of DLPack.
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
    // A consumer that names no version is older than DLPack 1.0.
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

}  // namespace

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
    const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(like_));
    if (api != nullptr && api->object_from_managed != nullptr) {
      void* object = nullptr;
      if (api->object_from_managed(std::exchange(managed_, nullptr), &object) != 0) throw_python_error();
      return nb::steal(static_cast<PyObject*>(object));
    }
  }
  const nb::object producer = nb::cast(new Producer(std::exchange(managed_, nullptr)), nb::rv_policy::take_ownership);
  const nb::handle like(like_);
  if (family_ == Family::kTorch) {
    // Not torch.from_dlpack(): torch_npu replaces it by one that asks for the memory twice.
    return nb::module_::import_("torch._C").attr("_from_dlpack")(producer.attr("__dlpack__")());
  }
  if (nb::hasattr(like, "__array_namespace__")) return like.attr("__array_namespace__")().attr("from_dlpack")(producer);
  // A library without __array_namespace__ gets a NumPy array.
  return nb::module_::import_("numpy").attr("from_dlpack")(producer);
}

void bind_results(nb::module_& module) {
  nb::class_<Producer>(module, "Producer", "A result on its way to another library: the DLPack protocol.")
      .def("__dlpack_device__", [](const Producer&) { return nb::make_tuple(static_cast<int>(dlpack::kCpu), 0); })
      .def("__dlpack__",
           [](Producer& self, const nb::args&, const nb::kwargs& options) { return self.capsule(options); });
}

}  // namespace descend::python
