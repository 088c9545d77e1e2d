// The operators as Python functions: the functional API and the two phases.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "bindings/arguments.h"
#include "bindings/arrays.h"
#include "bindings/runtime.h"
#include "operators/executor.h"
#include "operators/portability.h"
#include "operators/registry.h"

namespace descend::python {
namespace {

// A kernel that touches less keeps the GIL: releasing it would take longer than the kernel.
constexpr int64_t kGilBytes = 64 * 1024;

int parameter_count(const Operator& op) { return static_cast<int>(op.parameters.size()); }

// A thread's executors for an operator, while one call uses them. A call within that call (by an array's own Python
// code) gets others.
class Borrowed {
 public:
  explicit Borrowed(const Operator& op) : op_(op), executors_(std::move(Executors::idle(op))) {
    if (executors_ == nullptr) executors_ = std::make_unique<Executors>();
  }
  ~Borrowed() { Executors::idle(op_) = std::move(executors_); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Executors* operator->() { return executors_.get(); }

 private:
  const Operator& op_;
  std::unique_ptr<Executors> executors_;
};

const Operator& operator_of(PyObject* self) {
  return *static_cast<const Operator*>(PyCapsule_GetPointer(self, nullptr));
}

// Runs body(op) for one of an operator's functions; see guarded.
template <class Body>
PyObject* guarded_call(PyObject* self, Body body) {
  return guarded([&]() -> PyObject* {
    const Operator& op = operator_of(self);
    try {
      return body(op);
    } catch (const std::bad_alloc&) {
      throw StatusError{no_memory(op.name, "the call")};
    }
  });
}

// The arrays given as out=: one for each output, invalid if none was given, and Ellipsis where the result is not
// wanted. They are held, since a list may change during the call.
using GivenOutputs = std::array<nb::object, kMaxParameters>;
GivenOutputs given_outputs(const Call& call, PyObject* out, size_t count) {
  GivenOutputs arrays{};
  if (out == Py_None) return arrays;
  if (!PyTuple_Check(out) && !PyList_Check(out)) {
    if (count == 1) {
      arrays[0] = nb::borrow(out);
      return arrays;
    }
    throw Error{PyExc_TypeError, concat(call.operator_name(), ": out is ", what_is(out), ", but must be a tuple of ",
                                        count, " arrays, None for one that is to be allocated.")};
  }
  const auto given = static_cast<size_t>(length(out));
  if (given != count) {
    throw Error{PyExc_ValueError,
                concat(call.operator_name(), ": out has length ", given, ", but must have length ", count, ".")};
  }
  for (size_t k = 0; k < count; ++k) {
    PyObject* array = item(out, static_cast<Py_ssize_t>(k));
    if (array != Py_None) arrays[k] = nb::borrow(array);
  }
  return arrays;
}

// f(*inputs and attributes in the order of the parameters, out)
PyObject* call_functional(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded_call(self, [&](const Operator& op) -> PyObject* {
    Borrowed executors(op);
    Executor& executor = executors->reset(op, Product::kHost, Naming::kPython);
    Call& call = executor.call();
    Reader reader(call);

    std::vector<nb::object> keep;
    std::optional<Family> family;
    PyObject* first = nullptr;
    std::array<int, kMaxParameters> outputs;
    size_t output_count = 0;
    Py_ssize_t next = 0;
    for (int i = 0; i < parameter_count(op); ++i) {
      const Parameter& parameter = op.parameters[i];
      if (parameter.role == Role::kOutput) {
        outputs[output_count++] = i;
        continue;
      }
      if (next >= count) throw Error{PyExc_TypeError, concat(op.name, ": too few arguments.")};
      PyObject* object = args[next++];
      if (parameter.kind != Kind::kTensor) {
        reader.attribute(i, object);
      } else if (object != Py_None) {
        const Family found = reader.array(i, object, Use::kNow, keep);
        if (!family) {
          family = found;
          first = object;
        }
      }
    }
    if (next + 1 != count) throw Error{PyExc_TypeError, concat(op.name, ": the wrong number of arguments.")};

    const GivenOutputs given = given_outputs(call, args[next], output_count);
    std::array<Family, kMaxParameters> given_families;
    const auto is_left_out = [&](size_t k) { return given[k].ptr() == Py_Ellipsis; };
    for (size_t k = 0; k < output_count; ++k) {
      if (!given[k].is_valid() || is_left_out(k)) continue;
      given_families[k] = reader.array(outputs[k], given[k].ptr(), Use::kNow, keep);
    }
    reader.refuse_trace();
    op.infer(call);
    const auto inferred = reader.all_read() ? Argument::State::kGiven : Argument::State::kUnread;
    for (size_t k = 0; k < output_count; ++k) {
      if (is_left_out(k)) call[outputs[k]].state = Argument::State::kNull;
      if (!given[k].is_valid()) {
        call[outputs[k]].state = inferred;
        call[outputs[k]].tensor.data = nullptr;
      }
    }
    check(reader.status_or_throw(executors->prepare()));

    std::vector<Result> results;
    results.reserve(output_count);
    const auto wanted = [&](size_t k) { return !is_left_out(k) && is_used(call, outputs[k]); };
    for (size_t k = 0; k < output_count; ++k) {
      results.emplace_back(family.value_or(Family::kNumpy), first);
      if (given[k].is_valid() || !wanted(k)) continue;
      Tensor& tensor = call[outputs[k]].tensor;
      if (!results[k].allocate(&tensor)) {
        throw StatusError{no_memory(
            op.name, concat(call.name(outputs[k]), ", ", tensor.elements() * dtype_size(tensor.dtype), " bytes"))};
      }
    }
    try {
      if (executor.plan().bytes() < kGilBytes) {
        check(executor.run_now());
      } else {
        check(without_gil([&] { return executor.run_now(); }));
      }
    } catch (const std::bad_alloc&) {
      throw StatusError{no_memory(op.name, concat("the workspace, ", executor.workspace_bytes(), " bytes"))};
    }

    const auto finish = [&](size_t k) -> nb::object {
      if (!wanted(k)) return nb::none();
      if (!given[k].is_valid()) return results[k].finish();
      mark_written(given[k].ptr(), given_families[k]);
      return given[k];
    };
    if (output_count == 1) return finish(0).release().ptr();
    nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(output_count)));
    for (size_t k = 0; k < output_count; ++k) {
      (void)PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(k), finish(k).release().ptr());
    }
    return tuple.release().ptr();
  });
}

// Raises a count as long as it lives.
class Counted {
 public:
  explicit Counted(int& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int& count_;
};

// An executor as a Python object: the engine's executor, and the arrays that it works on.
struct PythonExecutor {
  std::shared_ptr<Executor> executor = std::make_shared<Executor>();
  std::vector<nb::object> keep;  // first each parameter's array, then for each what read_array() said to keep
  std::vector<Family> families;
  int launching = 0;                 // launches in progress that have released the GIL
  std::vector<nb::object> replaced;  // arrays replaced during such launches, which may still use them

  // Takes another array for parameter i. Empties `left`.
  void replace(int i, PyObject* array, Family family, std::vector<nb::object>& left) {
    nb::object read = left.empty() ? nb::object() : std::move(left.back());
    left.clear();
    families[i] = family;
    // The old arrays are released last, since their own Python code may use this executor again.
    const std::array<nb::object, 2> old{std::exchange(keep[i], nb::borrow(array)),
                                        std::exchange(keep[families.size() + i], std::move(read))};
    if (launching > 0) replaced.insert(replaced.end(), old.begin(), old.end());
  }
};

// (size, executor) = f(*parameters in the documents' order)
PyObject* call_get_workspace_size(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded_call(self, [&](const Operator& op) -> PyObject* {
    if (count != parameter_count(op)) {
      throw Error{PyExc_TypeError, concat(op.name, "_get_workspace_size: the wrong number of arguments.")};
    }
    auto made = std::make_unique<PythonExecutor>();
    made->executor->reset(op, Product::kHost, Naming::kPython);
    Call& call = made->executor->call();
    if (Status status = current_product(&call.product); !status.ok()) {
      throw StatusError{call.fail(status.code, status.sentence)};
    }
    made->keep.resize(2 * count);
    made->families.resize(count, Family::kNumpy);
    Reader reader(call);
    std::vector<nb::object> left;
    for (int i = 0; i < count; ++i) {
      if (op.parameters[i].kind != Kind::kTensor) {
        reader.attribute(i, args[i]);
      } else if (args[i] != Py_None) {
        const Family family = reader.array(i, args[i], Use::kLater, left);
        made->replace(i, args[i], family, left);
      }
    }
    reader.refuse_trace();
    check(reader.status_or_throw(made->executor->prepare()));
    const nb::object size = nb::cast(made->executor->workspace_bytes());
    const nb::object executor = nb::cast(made.release(), nb::rv_policy::take_ownership);
    return nb::make_tuple(size, executor).release().ptr();
  });
}

// f(workspace, size, executor, stream)
PyObject* call_launch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded_call(self, [&](const Operator& op) -> PyObject* {
    const auto bad = [&](const char* name, PyObject* object, const char* expected) -> Error {
      return {PyExc_TypeError, concat(op.name, ": ", name, " is ", what_is(object), ", but must be ", expected, ".")};
    };
    if (count != 4) throw Error{PyExc_TypeError, concat(op.name, ": takes workspace, size, executor and stream.")};
    const WorkspaceView workspace = view_workspace(op.name, args[0]);
    const auto size = as_integer(args[1]);
    if (!size) throw bad("workspace_size", args[1], "an integer");
    if (args[2] == Py_None) {
      throw StatusError{failure(Code::kParamNullptr, op.name, ": executor is None, but must be given.")};
    }
    PythonExecutor* executor = nullptr;
    if (!nb::try_cast(nb::handle(args[2]), executor) || executor == nullptr) {
      throw bad("executor", args[2], "what the first phase returned");
    }
    PythonStream* stream = nullptr;
    if (args[3] == Py_None) {
      stream = &default_stream();
    } else if (!nb::try_cast(nb::handle(args[3]), stream) || stream == nullptr) {
      throw StatusError{
          failure(Code::kRuntimeError, op.name, ": stream is ", what_is(args[3]), ", but must be an acl.Stream.")};
    }
    if (!size->fits) {
      throw StatusError{failure(Code::kParamInvalid, op.name, ": workspace_size does not fit into 64 bits.")};
    }
    const auto given = static_cast<uint64_t>(std::max<int64_t>(size->value, 0));
    if (workspace.pointer != nullptr && workspace.bytes < given) {
      throw StatusError{failure(Code::kParamInvalid, op.name, ": the workspace is said to have ", given,
                                " bytes, but has ", workspace.bytes, ".")};
    }
    Executor& engine = *executor->executor;
    for (int i = 0; i < static_cast<int>(executor->families.size()); ++i) {
      if (executor->families[i] != Family::kTorch || is_still(engine.call()[i].tensor, executor->keep[i].ptr()))
        continue;
      throw StatusError{engine.call().fail(Code::kParamInvalid, engine.call().name(i),
                                           " has other memory than in the first phase; give it to set_tensor().")};
    }
    Status status;
    if (engine.plan().bytes() < kGilBytes) {
      status = engine.launch(op, workspace.pointer, given, stream->stream.get());
    } else {
      const Counted under_way(executor->launching);
      status = without_gil([&] { return engine.launch(op, workspace.pointer, given, stream->stream.get()); });
    }
    const std::vector<nb::object> replaced =
        executor->launching == 0 ? std::exchange(executor->replaced, {}) : executor->replaced;
    check(std::move(status));
    for (int i = 0; i < parameter_count(op); ++i) {
      if (op.parameters[i].role == Role::kOutput && executor->keep[i].is_valid() && is_used(engine.call(), i)) {
        mark_written(executor->keep[i].ptr(), executor->families[i]);
      }
    }
    if (!replaced.empty()) stream->hold(replaced, nb::none());
    stream->hold(executor->keep, workspace.keep);
    Py_RETURN_NONE;
  });
}

const Operator& by_name(const nb::str& name) {
  const std::string text = utf8(name.ptr());
  const Operator* op = find_operator(text);
  if (op == nullptr) throw Error{PyExc_KeyError, concat("there is no operator ", text, ".")};
  return *op;
}

// [(shape, dtype name), ...] = infer(name, *inputs and attributes): the results that a call would have.
nb::list infer_results(const nb::str& name, const nb::args& arguments) {
  const Operator& op = by_name(name);
  Call call;
  call.op = &op;
  call.naming = Naming::kPython;
  Reader reader(call);
  std::vector<nb::object> keep;
  size_t next = 0;
  for (int i = 0; i < parameter_count(op); ++i) {
    if (op.parameters[i].role == Role::kOutput) continue;
    if (next >= arguments.size()) throw Error{PyExc_TypeError, concat(op.name, ": too few arguments.")};
    const nb::object object = arguments[next++];
    if (op.parameters[i].kind != Kind::kTensor) {
      reader.attribute(i, object.ptr());
    } else if (!object.is_none()) {
      reader.metadata(i, object.ptr(), keep);
    }
  }
  (void)reader.status_or_throw({});
  op.infer(call);
  nb::list results;
  for (int i = 0; i < parameter_count(op); ++i) {
    if (op.parameters[i].role != Role::kOutput) continue;
    nb::list shape;
    for (int64_t dim : call[i].tensor.shape) shape.append(dim);
    results.append(nb::make_tuple(nb::tuple(shape), dtype_name(call[i].tensor.dtype)));
  }
  return results;
}

// What the first phase answers to a call of all parameters, in the documents' order, of which it reads metadata alone.
Status answer(Call& call, const nb::str& name, const nb::str& product_name, const nb::args& arguments) {
  const Operator& op = by_name(name);
  call.op = &op;
  check(find_product(utf8(product_name.ptr()), &call.product));
  call.naming = Naming::kPython;
  if (static_cast<int>(arguments.size()) != parameter_count(op)) {
    throw Error{PyExc_TypeError, concat(op.name, ": the wrong number of arguments.")};
  }
  Reader reader(call);
  std::vector<nb::object> keep;
  for (int i = 0; i < parameter_count(op); ++i) {
    const nb::object object = arguments[i];
    if (op.parameters[i].kind != Kind::kTensor) {
      reader.attribute(i, object.ptr());
    } else if (!object.is_none()) {
      reader.metadata(i, object.ptr(), keep);
    }
  }
  try {
    return reader.status_or_throw(verdict_on(call.product, call));
  } catch (const StatusError& error) {
    return error.status;
  }
}

// (status, name, sentence) = verdict(name, product, *parameters)
nb::tuple verdict(const nb::str& name, const nb::str& product, const nb::args& arguments) {
  Call call;
  const Status status = answer(call, name, product, arguments);
  if (status.ok()) return nb::make_tuple(0, "ACLNN_SUCCESS", "");
  return nb::make_tuple(static_cast<int>(status.code), code_name(status.code), status.sentence);
}

// The outputs that are given and that the call writes.
nb::tuple written_outputs(const Call& call) {
  nb::list names;
  for (int i = 0; i < parameter_count(*call.op); ++i) {
    const bool is_given = call[i].state != Argument::State::kNull;
    const Parameter& parameter = call.op->parameters[i];
    if (parameter.role == Role::kOutput && is_given && is_used(call, i)) names.append(parameter.python);
  }
  return nb::tuple(names);
}

nb::tuple computed(const nb::str& name, const nb::str& product, const nb::args& arguments) {
  Call call;
  check(answer(call, name, product, arguments));
  return written_outputs(call);
}

std::string dtype_of(nb::handle array) {
  // Only for the message of a refusal.
  static const Operator self = [] {
    Operator named{};
    named.name = "dtype_of";
    named.parameters.emplace_back().python = "array";
    return named;
  }();
  Call call;
  call.op = &self;
  call.naming = Naming::kPython;
  std::vector<nb::object> keep;
  read_metadata(call, 0, array.ptr(), false, keep);
  return dtype_name(call[0].tensor.dtype);
}

nb::tuple computed_outputs(const PythonExecutor& self) { return written_outputs(self.executor->call()); }

void set_tensor(PythonExecutor& self, nb::handle given_name, nb::handle array) {
  Executor& engine = *self.executor;
  const Operator& op = *engine.call().op;
  const std::string name = text_argument(concat(op.name, ": name"), given_name);
  for (int i = 0; i < parameter_count(op); ++i) {
    const Parameter& parameter = op.parameters[i];
    if (name != parameter.python || parameter.kind != Kind::kTensor) continue;
    // Read into a call of its own, so that the executor changes only if the array fits.
    Call described;
    described.op = &op;
    described.naming = Naming::kPython;
    std::vector<nb::object> left;
    const Family family = read_array(described, i, array.ptr(), parameter.role == Role::kOutput, Use::kLater, left);
    if (!engine.call().given(i)) {
      throw StatusError{engine.call().fail(Code::kParamInvalid, name,
                                           " was no tensor in the first phase, so that there is none to replace.")};
    }
    const Tensor& now = engine.call()[i].tensor;
    const Tensor& next = described[i].tensor;
    if (next.dtype != now.dtype || next.shape != now.shape || next.strides != now.strides ||
        next.offset != now.offset) {
      throw StatusError{engine.call().fail(Code::kParamInvalid, name, " must keep its dtype, ", dtype_name(now.dtype),
                                           ", its shape, ", to_string(now.shape), ", and its strides, ",
                                           to_string(now.strides), ".")};
    }
    engine.set_address(i, next.data);
    return self.replace(i, array.ptr(), family, left);
  }
  throw Error{PyExc_ValueError, concat(op.name, " has no tensor named ", name, ".")};
}

PyMethodDef functional_method{"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_functional)),
                              METH_FASTCALL, nullptr};
PyMethodDef phase1_method{"get_workspace_size",
                          reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_get_workspace_size)),
                          METH_FASTCALL, nullptr};
PyMethodDef phase2_method{"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_launch)), METH_FASTCALL,
                          nullptr};

nb::object method(PyMethodDef* definition, const Operator& op) {
  const nb::object self = nb::steal(PyCapsule_New(const_cast<Operator*>(&op), nullptr, nullptr));
  return nb::steal(PyCFunction_New(definition, self.ptr()));
}

}  // namespace

void bind_calls(nb::module_& module) {
  nb::class_<PythonExecutor>(module, "Executor", "A prepared call: what the first phase returns and the second runs.")
      .def(
          "set_repeatable", [](PythonExecutor& self) { self.executor->set_repeatable(); },
          "Lets the executor run any number of times; without it, it runs once.")
      .def("set_tensor", set_tensor, nb::arg("name").none(), nb::arg("array").none(),
           nb::sig("def set_tensor(self, name: str, array: object) -> None"),
           "Another array, of the same dtype, shape and strides, for the tensor of that name from the next run on.")
      .def_prop_ro(
          "operator", [](const PythonExecutor& self) { return self.executor->call().op->name; }, "The operator's name.")
      .def_prop_ro("computes", computed_outputs, "The names of the outputs that the second phase writes.")
      .def_prop_ro(
          "workspace_size", [](const PythonExecutor& self) { return self.executor->workspace_bytes(); },
          "Bytes of scratch that the second phase needs.")
      .def_prop_ro(
          "spent", [](const PythonExecutor& self) { return self.executor->spent(); },
          "Whether it has run and is not repeatable.")
      .def_prop_ro(
          "plan", [](const PythonExecutor& self) { return self.executor->plan().describe(); },
          "The steps that the second phase takes.");

  module.def("infer", infer_results, nb::arg("name"), nb::arg("arguments"),
             "Shapes and dtypes of the results of a functional call with these inputs and attributes.");
  module.def("dtype_of", dtype_of, nb::arg("array"), "The documents' name of an array's or TensorSpec's dtype.");
  module.def("verdict", verdict, nb::arg("name"), nb::arg("product"), nb::arg("arguments"),
             "Status, its name and a sentence that a product answers to a first phase with these parameters.");
  module.def("computed", computed, nb::arg("name"), nb::arg("product"), nb::arg("arguments"),
             "The names of the outputs that a call with these parameters writes.");
  module.def(
      "function", [](const nb::str& name) { return method(&functional_method, by_name(name)); }, nb::arg("name"),
      "The functional form: called with inputs and attributes in order, then out.");
  module.def(
      "phase1", [](const nb::str& name) { return method(&phase1_method, by_name(name)); }, nb::arg("name"),
      "The first phase: called with all parameters in order.");
  module.def(
      "phase2", [](const nb::str& name) { return method(&phase2_method, by_name(name)); }, nb::arg("name"),
      "The second phase: called with workspace, size, executor and stream.");
}

}  // namespace descend::python
