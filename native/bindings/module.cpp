// The Python module descend._native.
#include <nanobind/nanobind.h>

#include <exception>

#include "bindings/arrays.h"
#include "bindings/python.h"

namespace descend::python {

void bind_calls(nb::module_& module);         // the operators: functional and two-phase
void bind_engine(nb::module_& module);        // what descend._torch shares
void bind_runtime(nb::module_& module);       // streams, memory, products, threads
void bind_tables(nb::module_& module);        // the contracts as data
void bind_xla(nb::module_& module);           // what descend.jax registers with XLA
void bind_stable_norms(nb::module_& module);  // what descend.torch.enable uses where descend._torch is not built

}  // namespace descend::python

NB_MODULE(_native, module) {
  using namespace descend::python;
  module.doc() = "The engine of descend. Use the package's own modules instead.";
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error&) {
      set_python_error();
    } catch (const StatusError&) {
      set_python_error();
    }
  });
  module.def("set_exception_factory", set_exception_factory, nb::arg("factory"),
             "What turns a status into an exception: called with status, name and sentence.");
  module.def(
      "what_is", [](nb::handle object) { return text(what_is(object.ptr())); }, nb::arg("object").none(),
      nb::sig("def what_is(object: object) -> str"), "What a sentence calls an object: 'an int', 'a list', 'None'.");
  nb::set_leak_warnings(false);  // work in flight when the process ends keeps its arrays
  bind_arrays(module);
  bind_calls(module);
  bind_engine(module);
  bind_runtime(module);
  bind_tables(module);
  bind_xla(module);
  bind_stable_norms(module);
}
