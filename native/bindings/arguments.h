// The arguments of one call, from Python's objects.
#pragma once

#include <exception>
#include <optional>
#include <vector>

#include "bindings/arrays.h"
#include "operators/operator.h"

namespace descend::python {

struct Integer {
  int64_t value;
  bool fits;  // into 64 bits
};
// Python's integers, NumPy's, those of 0-d arrays; nothing for booleans and all else.
std::optional<Integer> as_integer(PyObject* object);

struct Real {
  double value;
  bool fits;  // into a double
};
// Python's numbers, NumPy's, those of 0-d arrays; nothing for booleans, strings and all else.
std::optional<Real> as_real(PyObject* object);

// Fills a call. An array that cannot be read, or a number that does not fit, is remembered with its reason and judged
// with the call: before the dtypes, and not at all where the call ignores that parameter.
class Reader {
 public:
  explicit Reader(Call& call) : call_(call) {}

  // As read_array and read_metadata.
  Family array(int i, PyObject* object, Use use, std::vector<nb::object>& keep);
  void metadata(int i, PyObject* object, std::vector<nb::object>& keep);
  // Throws for an object of a wrong type.
  void attribute(int i, PyObject* object);

  bool all_read() const { return first_unread() == nullptr; }

  // Throws where an array is PyTorch's and PyTorch is tracing, which would keep the results as constants.
  void refuse_trace() const {
    if (read_torch_) check_untraced(call_);
  }

  // `prepared` is what phase 1 says of the call as far as it could be read. Returns or throws what the whole call gets.
  Status judge(Status prepared) const;

 private:
  struct Unread {
    int parameter;
    std::exception_ptr why;  // an Error or a StatusError
  };

  bool is_output(int i) const { return call_.op->parameters[i].role == Role::kOutput; }
  void remember(int i);                // to be called inside catch
  const Unread* first_unread() const;  // of those that the call does not ignore; null if there is none

  Call& call_;
  bool read_torch_ = false;
  std::vector<Unread> unread_;
};

}  // namespace descend::python
