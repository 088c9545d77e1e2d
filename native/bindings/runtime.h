// Streams and workspaces, as Python objects.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bindings/python.h"
#include "runtime/stream.h"

namespace descend::python {

struct PythonStream {
  std::shared_ptr<Stream> stream = std::make_shared<Stream>();
  std::vector<nb::object> held;  // the arrays and workspaces that work in flight uses

  ~PythonStream();
  void hold(const std::vector<nb::object>& arrays, nb::object workspace);
  void release();  // drops what is held; the stream must be idle
  void synchronize(std::optional<double> seconds);
};

// The stream that None stands for.
PythonStream& default_stream();

struct WorkspaceView {
  void* pointer = nullptr;
  size_t bytes = 0;
  nb::object keep = nb::none();  // while it lives, the memory stays where it is
};
// None, an acl.Buffer, or anything else with a writable buffer.
WorkspaceView view_workspace(const char* operator_name, PyObject* object);

}  // namespace descend::python
