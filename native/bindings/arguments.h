// The arguments of one call, read from Python objects.
#pragma once

#include <exception>
#include <optional>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/torch_tensors.h"
#include "operators/operator.h"

namespace descend::python {

struct Integer {
  int64_t value;
  bool fits;  // into 64 bits
};
// Reads an integer of Python, of NumPy or of a 0-d array. Empty for booleans and everything else.
std::optional<Integer> as_integer(PyObject* object);

struct Real {
  double value;
  bool fits;  // into a double
};
// Reads a number of Python, of NumPy or of a 0-d array. Empty for booleans, strings and everything else.
std::optional<Real> as_real(PyObject* object);

// Fills a call. If an array cannot be read, or a number does not fit, the reason is stored. Phase 1 reports it in its
// place in the order of the checks (before the dtypes), and not at all if the call ignores that parameter.
class Reader {
 public:
  explicit Reader(Call& call) : call_(call) {}

  // Reads as read_array() and read_metadata() do.
  Family array(int i, PyObject* object, Use use, std::vector<nb::object>& keep);
  void metadata(int i, PyObject* object, std::vector<nb::object>& keep);
  // Reads an attribute. Throws for an object of a wrong type.
  void attribute(int i, PyObject* object);

  bool all_read() const { return first_unread() == nullptr; }

  // Throws if an array is PyTorch's and PyTorch is tracing: the trace would keep the results as constants.
  void refuse_trace() const {
    if (read_torch_) check_untraced(call_);
  }

  // `prepared` is the status of phase 1, for the arguments that could be read. Returns it, or throws the stored reason.
  Status status_or_throw(Status prepared) const;

 private:
  struct Unread {
    int parameter;
    std::exception_ptr why;  // an Error or a StatusError
  };

  bool is_output(int i) const { return call_.op->parameters[i].role == Role::kOutput; }
  void remember(int i);                // to be called inside catch
  const Unread* first_unread() const;  // among parameters that the call does not ignore; null if there is none

  Call& call_;
  bool read_torch_ = false;
  std::vector<Unread> unread_;
};

}  // namespace descend::python
