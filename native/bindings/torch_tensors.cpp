#include "bindings/torch_tensors.h"

#include "bindings/refusal.h"

namespace descend::python {
namespace {

struct Torch {
  nb::object tensor_type;
  nb::object is_grad_enabled;
  nb::object increment_version;
  nb::object forward_ad;
  nb::object tracing_state;  // of torch.jit.trace
  nb::object python_dispatch;
  nb::object dispatch_mode;  // the mode of a key; make_fx uses proxy_key
  nb::object proxy_key;
};

// What is needed of PyTorch, if it has been imported. Never imports it.
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

bool truth(const nb::object& value) { return value.ptr() == Py_True; }

// Whether this call comes from a kernel, below PyTorch's autograd. Tangents cannot be read there; the kernel's caller
// handles them.
bool below_autograd() {
  const nb::module_ library = nb::module_::import_("torch._C");
  const nb::object autograd = library.attr("DispatchKey").attr("AutogradFunctionality");
  return truth(library.attr("_dispatch_tls_is_dispatch_key_excluded")(autograd));
}

// A tensor can have a tangent only within a level of forward mode. Reading the level takes very little time.
bool has_tangent(PyObject* object) {
  static PyObject* const names = PyModule_GetDict(torch()->forward_ad.ptr());
  static PyObject* const current_level = PyUnicode_InternFromString("_current_level");
  static PyObject* const outside = PyLong_FromLong(-1);  // small numbers are one object everywhere in CPython
  PyObject* const level = PyDict_GetItemWithError(names, current_level);
  if (level == outside || level == nullptr || below_autograd()) return false;
  return !torch()->forward_ad.attr("unpack_dual")(nb::handle(object)).attr("tangent").is_none();
}

// Throws if the call would lose a gradient or a tangent of a PyTorch tensor. `elsewhere` says who records gradients.
void check_recorded(const Call& call, int i, PyObject* object, const char* elsewhere) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  const nb::object wants_grad = nb::steal(PyObject_GetAttr(object, requires_grad));
  if (truth(wants_grad) && truth(torch()->is_grad_enabled())) {
    refuse(call, i,
           concat("requires gradients, which this call would not record; ", elsewhere,
                  "call it under torch.no_grad(), or detach() it."));
  }
  if (has_tangent(object)) {
    refuse(call, i, "has a forward-mode tangent, which this call would not carry on; detach() it.");
  }
}

}  // namespace

bool is_torch_type(PyTypeObject* type) {
  const Torch* t = torch();
  return t != nullptr && PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(t->tensor_type.ptr()));
}

bool is_torch(PyObject* object) { return is_torch_type(Py_TYPE(object)); }

void check_torch(const Call& call, int i, PyObject* object) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  check_recorded(call, i, object, "descend.torch's function of the same name does; else ");
  if (truth(nb::steal(PyObject_CallMethodObjArgs(object, is_neg, nullptr)))) {
    refuse(call, i, "is a lazily negated tensor; call resolve_neg() first.");
  }
}

void check_number(const Call& call, int i, PyObject* object) {
  if (is_torch(object)) check_recorded(call, i, object, "");
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

void mark_changed(PyObject* tensor) {
  try {
    torch()->increment_version(nb::handle(tensor));
  } catch (nb::python_error&) {
    // An inference tensor has no version.
  }
}

}  // namespace descend::python
