// Functional calls without Python, for descend._torch and for XLA's programs. There is one engine in a process.
#pragma once

#include <cstddef>

#include "operators/operator.h"
#include "runtime/parallel.h"

namespace descend {

class Executor;

// Two modules of one build share this table through a capsule.
struct Engine {
  static constexpr const char* kCapsule = "descend._native._engine";

  const Operator* (*find_operator)(const char* name);  // null if there is none

  // A functional call: begin, fill in the arguments, prepare (infers and checks), give the outputs memory, run. Each
  // thread has one call at a time. run throws std::bad_alloc if there is no memory for the workspace.
  Executor& (*begin)(const Operator& op);
  Call& (*call)(Executor& executor);
  Status (*prepare)(Executor& executor);
  Status (*run)(Executor& executor);

  // Sets memory, offset and storage of a tensor that has dtype, shape and strides.
  void (*set_memory)(Tensor& tensor, void* first_element);

  void* (*take_pages)(size_t bytes);  // null when there is no memory
  void (*give_pages)(void* pages, size_t bytes);

  void (*set_num_threads)(int count);
  Team (*set_team)(Team team);
};

namespace python {
const Engine& the_engine();  // within descend._native
}

}  // namespace descend
