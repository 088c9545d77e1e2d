#include "bindings/engine.h"

#include <memory>

#include "bindings/python.h"
#include "bindings/tensor_memory.h"
#include "operators/executor.h"
#include "operators/registry.h"
#include "runtime/pages.h"

namespace descend::python {
namespace {

Executor& begin(const Operator& op) {
  std::unique_ptr<Executors>& executors = Executors::idle(op);
  if (executors == nullptr) executors = std::make_unique<Executors>();
  return executors->reset(op, Product::kHost, Naming::kPython);
}

Status prepare(Executor& executor) {
  Call& call = executor.call();
  call.op->infer(call);
  for (size_t i = 0; i < call.op->parameters.size(); ++i) {
    if (call.op->parameters[i].role == Role::kOutput) call[static_cast<int>(i)].state = Argument::State::kGiven;
  }
  return Executors::idle(*call.op)->prepare();
}

constexpr Engine kEngine{
    .find_operator = [](const char* name) { return find_operator(name); },
    .begin = begin,
    .call = [](Executor& executor) -> Call& { return executor.call(); },
    .prepare = prepare,
    .run = [](Executor& executor) { return executor.run_now(); },
    .set_memory = set_memory,
    .take_pages = take_pages,
    .give_pages = give_pages,
    .set_num_threads = set_num_threads,
    .set_team = set_team,
};

}  // namespace

const Engine& the_engine() { return kEngine; }

void bind_engine(nb::module_& module) { module.attr("_engine") = nb::capsule(&kEngine, Engine::kCapsule); }

}  // namespace descend::python
