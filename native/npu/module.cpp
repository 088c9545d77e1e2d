// The Python module descend._npu: registers PyTorch's CPU kernels for those operators of torch_npu's device that
// Descend does not compute itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "npu/collectives.h"
#include "npu/crossing.h"
#include "npu/generator.h"
#include "npu/record.h"
#include "npu/registration.h"
#include "npu/torch_npu.h"

namespace py = pybind11;

PYBIND11_MODULE(_npu, module) {
  using namespace descend::npu;
  module.doc() = "PyTorch's CPU kernels for device npu. Use descend.npu instead.";
  module.attr("built_for") = DESCEND_TORCH_VERSION;
  module.def("register_kernels", register_kernels,
             "Puts the CPU's kernels in the place of torch_npu's; returns how many operators that are.");
  module.def("register_collectives", register_collectives,
             "Has collectives of the device's tensors computed by the process group's backend for the CPU.");
  module.def(
      "on_cpu", [](const at::Tensor& tensor) { return Crossing().enter(tensor); }, py::arg("tensor"),
      "The tensor as a tensor of the CPU, in the same memory.");
  module.def("serve", serve, py::arg("name"),
             "Puts the CPU's kernel of an operator of any namespace in the place of what the device has.");
  module.def(
      "draw",
      [] {
        const Draw drawn = draw();
        return py::make_tuple(drawn.seed, drawn.offset);
      },
      "A seed and an offset from the current device's default generator, which moves on.");
  module.def("record", record, py::arg("on"), "Whether calls are recorded from now on.");
  module.def(
      "recorded",
      [] {
        py::list all;
        for (const Recorded& each : recorded()) {
          all.append(py::make_tuple(each.op, each.arguments, each.calls, each.seconds));
        }
        return all;
      },
      "What was recorded: (operator, its tensors, calls, seconds).");
}
