// The Python module descend._npu: registers PyTorch's CPU kernels for those operators of torch_npu's device that
// Descend does not compute itself.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "npu/generator.h"
#include "npu/gradients.h"
#include "npu/record.h"
#include "npu/registration.h"
#include "npu/torch_npu.h"

namespace py = pybind11;

PYBIND11_MODULE(_npu, module) {
  using namespace descend::npu;
  module.doc() = "PyTorch's CPU kernels for device npu. Use descend.npu instead.";
  module.def(
      "serve",
      [](const std::string& name, const std::string& key,
         const std::tuple<bool, bool, std::optional<uint32_t>, bool, bool, bool, bool>& special) {
        const auto& [mixes_devices, indexes, first_kept, asks_for_grad, float16_in_float32, mixes_floats,
                     float64_alone] = special;
        serve(name, key,
              {mixes_devices, indexes, first_kept.value_or(UINT32_MAX), asks_for_grad, float16_in_float32, mixes_floats,
               float64_alone});
      },
      py::arg("name"), py::arg("key"), py::arg("special"),
      "Makes PyTorch's CPU kernel compute an operator on the memory of the device's tensors.");
  module.def("borrow", borrow, py::arg("name"), py::arg("key"), py::arg("owner"),
             "Makes the kernel of dispatch key `owner` compute an operator for `key`, too, with the device's tensors.");
  module.def(
      "draw",
      [] {
        const Draw drawn = draw();
        return py::make_tuple(drawn.seed, drawn.offset);
      },
      "A seed and an offset from the current device's default generator. Advances its offset.");
  module.def(
      "wait_for_graphs",
      [](int8_t device) {
        const py::gil_scoped_release without_gil;
        wait_for_graphs({c10::DeviceType::PrivateUse1, device});
      },
      py::arg("device"), "Waits until PyTorch's thread for a device's gradients has freed the graphs it has computed.");
  module.def("record", record, py::arg("on"), "Starts or stops recording calls. Starting clears the record.");
  module.def(
      "recorded",
      [] {
        py::list all;
        for (const Recorded& each : recorded()) {
          all.append(py::make_tuple(each.op, each.tensors, each.others, each.calls, each.errors, each.nanoseconds));
        }
        return all;
      },
      "The record: operator, tensors (name, dtype, shape), whether it sums further kinds, calls, errors, nanoseconds.");
}
