#include "bindings/runtime.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "bindings/arguments.h"
#include "bindings/buffer.h"
#include "kernels/limits/arithmetic.h"
#include "kernels/limits/triad.h"
#include "kernels/simd/element.h"
#include "kernels/simd/isa.h"
#include "runtime/handover.h"
#include "runtime/memory.h"
#include "runtime/pages.h"
#include "runtime/parallel.h"
#include "runtime/product.h"

namespace descend::python {
namespace {

// Reads an argument as a count, from 0 on.
int64_t count_of(nb::handle object, const char* name, int64_t most = std::numeric_limits<int64_t>::max()) {
  const auto number = as_integer(object.ptr());
  if (!number) {
    throw Error{PyExc_TypeError, concat(name, " is ", what_is(object.ptr()), ", but must be an integer.")};
  }
  if (!number->fits || number->value < 0 || number->value > most) {
    throw Error{PyExc_ValueError,
                concat(name, " is ", utf8(nb::str(object).ptr()), ", but must be between 0 and ", most, ".")};
  }
  return number->value;
}

// Reads a timeout in seconds; empty for None, which is no limit.
std::optional<double> seconds_of(nb::handle timeout) {
  if (timeout.is_none()) return std::nullopt;
  const auto seconds = as_real(timeout.ptr());
  if (!seconds) {
    throw Error{PyExc_TypeError,
                concat("timeout is ", what_is(timeout.ptr()), ", but must be a number of seconds or None.")};
  }
  if (!seconds->fits) {
    throw Error{PyExc_ValueError, "timeout does not fit into a floating-point number."};
  }
  if (std::isnan(seconds->value)) {
    throw Error{PyExc_ValueError, "timeout is NaN, but must be a number of seconds."};
  }
  return seconds->value;
}

// While a thread waits for a stream, it checks for Ctrl-C this often.
constexpr std::chrono::milliseconds kSignalInterval(50);

// Device memory with Python's buffer protocol.
struct Buffer {
  void* pointer = nullptr;
  size_t bytes = 0;

  explicit Buffer(size_t size) : bytes(size) {
    if (size > 0) check(allocate(size, &pointer));
  }
  ~Buffer() {
    if (pointer != nullptr) (void)release(pointer);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

int get_buffer(PyObject* object, Py_buffer* view, int flags) {
  if (!nb::inst_ready(object)) {  // created by __new__ without __init__
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "This Buffer has no memory: acl.malloc() makes one.");
    return -1;
  }
  Buffer* self = nb::inst_ptr<Buffer>(nb::handle(object));
  static char nothing[1];
  return PyBuffer_FillInfo(view, object, self->pointer ? self->pointer : nothing, static_cast<Py_ssize_t>(self->bytes),
                           0, flags);
}

// Whether a buffer can be written to, its bytes lie one after the other, and all that it says goes together: extensions
// in C may say anything. Scratch must not overwrite references: an array of objects has an 'O' in its format.
bool is_plain(const Py_buffer& view) {
  constexpr int kMostDimensions = 64;
  if (view.readonly != 0 || view.len < 0 || (view.buf == nullptr && view.len > 0)) return false;
  if (view.suboffsets != nullptr || (view.format != nullptr && std::strchr(view.format, 'O') != nullptr)) return false;
  if (view.shape == nullptr) return view.strides == nullptr;
  if (view.ndim < 0 || view.ndim > kMostDimensions) return false;
  Py_ssize_t bytes = view.itemsize;
  for (int i = view.ndim; i-- > 0;) {
    const bool jumps = view.strides != nullptr && view.shape[i] != 1 && view.strides[i] != bytes;
    if (view.shape[i] < 0 || (jumps && view.len > 0)) return false;
    if (__builtin_mul_overflow(bytes, view.shape[i], &bytes)) return false;
  }
  return bytes == view.len;
}

// What PyObject_GetBuffer gave, until it is released.
struct BufferView {
  Py_buffer view{};
  ~BufferView() { PyBuffer_Release(&view); }
};

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

nb::dict info_dict() {
  nb::dict result;
  result["version"] = DESCEND_VERSION;
  result["isa"] = kernels::isa_name();
  result["isas"] = kernels::isa_names();
  result["threads"] = num_threads();
  result["cached_bytes"] = cached_page_bytes();
  result["allocated_bytes"] = allocated_bytes();
  return result;
}

}  // namespace

PythonStream::~PythonStream() {
  if (stream->idle()) return;
  without_gil([&] {
    stream.reset();  // waits for the work in it, which may use what is held
    return true;
  });
}

void PythonStream::hold(const std::vector<nb::object>& arrays, nb::object workspace) {
  if (stream->idle()) return release();
  held.insert(held.end(), arrays.begin(), arrays.end());
  held.push_back(std::move(workspace));
}

void PythonStream::release() {
  // Moved out first, since an array's own Python code may use this stream again while it is released.
  std::vector<nb::object> done = std::exchange(held, {});
  done.clear();
  report_left_exception();
}

void PythonStream::synchronize(std::optional<double> seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLongest = 1e9;  // seconds; a longer timeout counts as none
  const bool limited = seconds && *seconds < kLongest;
  const Clock::time_point deadline =
      limited ? Clock::now() +
                    std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(*seconds, 0.0)))
              : Clock::time_point::max();
  const std::shared_ptr<Stream> kept = stream;
  for (;;) {
    const Clock::duration slice =
        std::clamp<Clock::duration>(deadline - Clock::now(), Clock::duration::zero(), kSignalInterval);
    Status status = without_gil([&] { return kept->synchronize(slice); });
    if (status.code != Code::kStreamSyncTimeout) {
      if (kept->idle()) release();
      return check(std::move(status));
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (limited && Clock::now() >= deadline) {
      throw StatusError{failure(Code::kStreamSyncTimeout, "the stream still had work after ", *seconds, " s.")};
    }
  }
}

PythonStream& default_stream() {
  static auto* stream = new PythonStream();  // lives until the process ends
  return *stream;
}

WorkspaceView view_workspace(const char* operator_name, PyObject* object) {
  if (object == Py_None) return {};
  Buffer* buffer = nullptr;
  if (nb::try_cast(nb::handle(object), buffer) && buffer != nullptr) {
    return {buffer->pointer, buffer->bytes, nb::borrow(object)};
  }
  // As long as the view exists, a bytearray cannot be resized. A memoryview would believe what the exporter says.
  auto held = std::make_unique<BufferView>();
  Py_buffer& view = held->view;
  if (PyObject_GetBuffer(object, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    view.obj = nullptr;  // there is nothing to release
  }
  if (view.obj == nullptr || !is_plain(view)) {
    throw Error{PyExc_TypeError,
                concat(operator_name, ": workspace is ", what_is(object),
                       ", but must be None, an acl.Buffer or another writable, contiguous buffer without objects.")};
  }
  const nb::capsule keep(held.get(), [](void* p) noexcept { delete static_cast<BufferView*>(p); });
  (void)held.release();
  return {view.buf, static_cast<size_t>(view.len), keep};
}

void bind_runtime(nb::module_& module) {
  nb::class_<Buffer>(module, "Buffer", nb::type_slots(buffer_slots), "Memory from acl.malloc; freed with the object.")
      .def_prop_ro(
          "size", [](const Buffer& self) { return self.bytes; }, "Bytes.")
      .def_prop_ro(
          "address", [](const Buffer& self) { return reinterpret_cast<uintptr_t>(self.pointer); }, "Where it lies.")
      .def("__len__", [](const Buffer& self) { return self.bytes; });
  module.def(
      "malloc", [](nb::handle size) { return new Buffer(static_cast<size_t>(count_of(size, "size"))); },
      nb::arg("size").none(), nb::sig("def malloc(size: int) -> Buffer"), nb::rv_policy::take_ownership,
      "Allocates device memory; 0 bytes give an empty buffer.");

  nb::class_<PythonStream>(module, "Stream", "An in-order queue of work; different streams run side by side.")
      .def(nb::init<>())
      .def(
          "synchronize", [](PythonStream& self, nb::handle timeout) { self.synchronize(seconds_of(timeout)); },
          nb::arg("timeout") = nb::none(), nb::sig("def synchronize(self, timeout: float | None = None) -> None"),
          "Waits for all work submitted so far, `timeout` seconds at most, and raises what failed in it, once.")
      .def("query", [](const PythonStream& self) { return self.stream->idle(); }, "Whether all work is done.");
  module.def(
      "synchronize_default_stream", [] { default_stream().synchronize(std::nullopt); },
      "Waits for the work put on the default stream, the one that None stands for.");
  // Called at exit, so that work in flight ends while its arrays still exist.
  module.def(
      "wait_for_all_streams",
      [] {
        const nb::gil_scoped_release released;
        wait_for_all_streams();
      },
      "Waits for the work in flight on every stream.");

  module.def(
      "set_product", [](nb::handle name) { check(set_product(text_argument("name", name))); }, nb::arg("name").none(),
      nb::sig("def set_product(name: str) -> None"),
      "The product that two-phase calls are checked against, for the process.");
  module.def(
      "get_product",
      [] {
        Product product;
        check(current_product(&product));
        return info(product).name;
      },
      "The product of this thread's two-phase calls.");
  module.def(
      "override_product",
      [](nb::handle name) {
        Product product;
        check(find_product(text_argument("name", name), &product));
        return override_thread_product(static_cast<int>(product));
      },
      nb::arg("name").none(), nb::sig("def override_product(name: str) -> int"),
      "Overrides the product for this thread; returns what restore_product takes.");
  module.def(
      "restore_product", [](int previous) { (void)override_thread_product(previous); }, nb::arg("previous"),
      "Undoes override_product.");

  module.def(
      "set_num_threads",
      [](nb::handle count) {
        set_num_threads(static_cast<int>(count_of(count, "the number of threads", std::numeric_limits<int>::max())));
      },
      nb::arg("count").none(), nb::sig("def set_num_threads(count: int) -> None"),
      "Threads that one call may use, 1024 at most; 0 returns to the default: what the environment variable "
      "DESCEND_NUM_THREADS says, or else one a core, but no more than OMP_NUM_THREADS.");
  module.def("get_num_threads", num_threads, "Threads that one call may use.");
  module.def("empty_cache", trim_pages, "Gives the warm pages kept for results back to the system.");
  module.def(
      "set_cache_limit",
      [](nb::handle bytes) { return set_page_cache_limit(static_cast<size_t>(count_of(bytes, "bytes"))); },
      nb::arg("bytes").none(), nb::sig("def set_cache_limit(bytes: int) -> None"),
      "How much memory results may keep warm.");
  module.def("info", info_dict, "Version, instruction set, threads, memory.");
  module.def(
      "triad",
      [](size_t bytes, int threads, double seconds) {
        const nb::gil_scoped_release released;
        return kernels::triad(bytes, threads, seconds);
      },
      nb::arg("bytes"), nb::arg("threads"), nb::arg("seconds"),
      "The memory limit: bytes a second of two reads and one write, `bytes` in all, the better of plain and "
      "non-temporal stores, measured for about `seconds`.");
  module.def(
      "handover",
      [](double seconds) {
        const nb::gil_scoped_release released;
        return handover_seconds(seconds);
      },
      nb::arg("seconds"),
      "How far two processors are apart: seconds in which a cache line comes from one to the other, at best, measured "
      "for about `seconds`; 0 where two threads did not run side by side.");
  module.def(
      "group_norm_swish_grad_arithmetic",
      [](bool brain, int64_t elements, int threads, double seconds) {
        const nb::gil_scoped_release released;
        const auto type = brain ? kernels::Element::kBfloat16 : kernels::Element::kFloat16;
        return kernels::group_norm_swish_grad_arithmetic(type, elements, threads, seconds);
      },
      nb::arg("brain"), nb::arg("elements"), nb::arg("threads"), nb::arg("seconds"),
      "The arithmetic limit of group_norm_swish_grad in float16 or bfloat16: seconds for `elements` elements that lie "
      "in first-level caches, measured for about `seconds`.");
}

}  // namespace descend::python
