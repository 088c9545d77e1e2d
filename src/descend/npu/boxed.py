"""The kernels of device npu in Python, for where ``descend._npu`` (native/npu) was not built for the PyTorch at hand.

They are registered operator by operator: a boxed fallback would not be reached, as torch_npu has kernels of its own.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from descend._registered_kernel import registered_kernel
from descend.npu import rules
from descend.npu.composed.random import splitmix64
from descend.npu.crossing import Crossing
from descend.npu.record import recording

_C: Any = torch._C
_CPU = torch.device("cpu")
AUTOCAST = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU) | _C.DispatchKeySet(_C.DispatchKey.AutocastPrivateUse1)
_NARROW = (torch.float16, torch.bfloat16)
_REFUSALS = (
    *("not implemented for 'Half'", "not implemented for 'BFloat16'", "Low precision dtypes not supported"),
    "Unsupported datatype for add_relu",
)
_REFUSALS_OF_INDICES = (
    *("Expected dtype int64 for index", "Expected a long tensor for index", "expected scalar type Long but found Int"),
    "expected target dtype to be Long or Byte, but got Int",
)
_REFUSALS_OF_MIXTURES = (
    *("to have the same dtype", "must have the same dtype", "Input dtypes must be the same"),
    *(f"expected scalar type {dtype} but found" for dtype in ("Float", "BFloat16", "Half")),
)
_ORDINARY = rules.Special()
_STEP = 4  # torch_npu's offsets are multiples of it
_libraries: dict[tuple[str, str], torch.library.Library] = {}  # one that is destroyed removes its kernel
_local = threading.local()


def serve(name: str, key: str, special: rules.Special) -> None:
    """Has the CPU's kernel compute an operator on the memory of the device's tensors."""
    kernel = Kernel(name, special)
    theirs = registered_kernel(rules.operator(name), key) if special.float64_alone else None
    if theirs is not None:
        implement(name, _of_float64(kernel, theirs), key, with_keyset=True)
    elif not (kernel.is_view and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)):  # torch_npu's view is one
        implement(name, kernel, key)


def complete() -> None:
    """Registers what this form alone needs."""
    empty = registered_kernel(torch.ops.aten.empty.memory_format, "PrivateUse1")
    if empty is not None:
        implement("aten::empty.memory_format", _empty_or(empty), "PrivateUse1", with_keyset=True)


def borrow(name: str, key: str, owner: str) -> None:
    """Has the kernel of another dispatch key called with the device's tensors."""
    kernel = registered_kernel(rules.operator(name), owner)
    if kernel is not None:
        implement(name, kernel, key, with_keyset=True)


def implement(name: str, kernel: Callable[..., Any], key: str, with_keyset: bool = False) -> None:
    """Registers a kernel for the device, in the place of the one that was registered here before."""
    _libraries.pop((name, key), None)
    library = torch.library.Library(name.partition("::")[0], "IMPL")
    library.impl(name.partition("::")[2], kernel, key, with_keyset=with_keyset)
    _libraries[name, key] = library


def on_cpu(tensor: Tensor) -> Tensor:
    """The tensor as a tensor of the CPU, in the same memory."""
    return Crossing().enter(tensor)


def draw(generator: torch.Generator | None = None) -> tuple[int, int]:
    """A seed and an offset from a generator, or the current device's default one, which moves on."""
    if generator is None:
        generator = _npu().default_generators[_npu().current_device()]
    offset = generator.get_offset()
    generator.set_offset(offset + _STEP)
    return generator.initial_seed(), offset // _STEP


def wait_for_graphs(device: int) -> None:
    """Waits until PyTorch's thread for the gradients of a device has freed the graphs that it computed before."""
    with torch.enable_grad():
        x = torch.empty(1, device=f"npu:{device}", requires_grad=True)
        y, dy = x.view(1), torch.empty(1, device=x.device)
        # Not y.backward(): it gives the thread Python's context, and torch.autograd.grad a result, to free at its end.
        engine: Any = torch.autograd.Variable._execution_engine
        engine.run_backward((y,), (dy,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    for each in (x, y, dy):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))  # it is never freed, so not by that thread


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]


def _of_float64(kernel: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Calls whose first tensor is not float64 stay torch_npu's."""

    def call(keys: Any, first: Tensor, *args: Any, **named: Any) -> Any:
        if first.dtype is torch.float64:
            return kernel(first, *args, **named)
        return theirs(keys, first, *args, **named)

    return call


def _empty_or(theirs: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch_npu's knows no other memory format than the contiguous one."""

    def empty(
        keys: Any, size: Sequence[int], *, memory_format: torch.memory_format | None = None, **options: Any
    ) -> Tensor:
        if memory_format in (None, torch.contiguous_format):
            return theirs(keys, size, memory_format=memory_format, **options)
        strides = torch.empty(size, device="meta", memory_format=memory_format).stride()
        return torch.empty_strided(size, strides, dtype=options.get("dtype"), device=options.get("device"))

    return empty


class Kernel:
    """One operator's kernel: what each argument needs is read once from the operator's schema."""

    crossing = Crossing
    """How tensors become the CPU's."""

    def __init__(self, name: str, special: rules.Special = _ORDINARY) -> None:
        self._name = name
        self._operator = rules.operator(name)
        self.schema = schema = self._operator._schema
        self._arguments = [(i, a.name, *_kind(a)) for i, a in enumerate(schema.arguments) if _kind(a)[0]]
        writes = any(written for *_, written in self._arguments)
        views = any(result.alias_info is not None for result in schema.returns)
        base = rules.base(name)
        self.touches_memory = writes or not (views or base.startswith(("empty", "new_empty")))
        self.is_view = not self.touches_memory or torch.Tag.inplace_view in self._operator.tags
        self._special = special
        self._indices = [(i, a.name) for i, a in enumerate(schema.arguments) if rules.is_indices(a.name)]

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The call, with tensors of the device where the CPU's kernel has the CPU's."""
        given = {i: args[i] if i < len(args) else named.get(name) for i, name, *_ in self._arguments}
        common = self._common_device(given)
        asked = next((given[i] for i, _, kind, _ in self._arguments if kind == "device" and given[i]), None)
        device: torch.device = asked or common or torch.device("npu")
        if device.type == "npu" and device.index is None:
            device = torch.device("npu", _npu().current_device())
        if self.touches_memory and common is not None:
            _wait(common)
        if self.touches_memory and device.type == "npu" and device != common:
            _wait(device)
        call = functools.partial(self._compute, args=args, named=named, device=device, known=common or asked)
        with recording(self._name, ((name, given[i]) for i, name, *_ in self._arguments)):
            return self._in_some_way(call, given)

    def _in_some_way(self, call: Callable[..., Any], given: dict[int, Any]) -> Any:
        """The call; where that fails for how its arguments were given, with these in another form."""
        grow = numbers = False
        while True:
            try:
                return call(self.crossing(grow), given=given)
            except RuntimeError as error:
                if "instead found type" in str(error) and not numbers:  # PyTorch made a number of a tensor
                    given = {i: self._as_tensor(given[i], kind, given) for i, _, kind, _ in self._arguments}
                    numbers = True
                elif "not resizable" in str(error) and not grow:
                    grow = True
                else:
                    raise

    @staticmethod
    def _as_tensor(value: Any, kind: str | None, given: dict[int, Any]) -> Any:
        if kind != "tensor" or not isinstance(value, (bool, int, float, complex)):
            return value
        double = any(t.dtype in (torch.float64, torch.complex128) for t in tensors(list(given.values())))
        return torch.tensor(value, dtype=torch.float64 if double and isinstance(value, float) else None, device=_CPU)

    def _compute(
        self,
        crossing: Crossing,
        args: Sequence[Any],
        named: dict[str, Any],
        given: dict[int, Any],
        device: torch.device,
        known: torch.device | None,
    ) -> Any:
        arguments, options = list(args), dict(named)
        with (
            _C.DisableTorchFunction(),
            _C._AutoDispatchBelowADInplaceOrView(),
            _C._ExcludeDispatchKeyGuard(AUTOCAST),
        ):
            for i, name, kind, written in self._arguments:
                value: Any = given[i]
                if kind == "generator":
                    value = _generator(value, device, known)
                elif value is None:
                    continue
                elif kind == "device":
                    value = _CPU if value.type == "npu" else value
                elif kind == "tensor":
                    if not isinstance(value, Tensor):
                        continue  # a number, which PyTorch makes a tensor
                    value = crossing.enter(value, written)
                    if self._special.asks_for_grad and given[i].requires_grad:
                        value.requires_grad_()
                else:
                    value = changed(value, functools.partial(crossing.enter, written=written))
                if i < len(arguments):
                    arguments[i] = value
                elif value is not None:
                    options[name] = value
            result = self._call(arguments, options)
            for i, _, _, written in self._arguments:
                for tensor in tensors(given[i]) if written else ():
                    crossing.write_back(tensor, device)
            if device.type != "npu":
                return result
            if self._special.first_kept is not None:
                kept = result[self._special.first_kept :]
                return (*(crossing.leave(each, device) for each in result[: self._special.first_kept]), *kept)
            return changed(result, lambda tensor: crossing.leave(tensor, device))

    def _call(self, arguments: list[Any], options: dict[str, Any]) -> Any:
        """The CPU's kernel, called with other dtypes where it refuses these or is slow. As native/npu/widening.h."""
        if self._special.float16_in_float32 and _floating_dtypes(arguments, options) == {torch.float16}:
            return self._call_wide(arguments, options, torch.float16)
        try:
            return self._operator(*arguments, **options)
        except (RuntimeError, IndexError) as error:
            narrow = next((t.dtype for t in tensors((arguments, *options.values())) if t.dtype in _NARROW), None)
            if narrow and any(refusal in str(error) for refusal in _REFUSALS):
                return self._call_wide(arguments, options, narrow)
            mixed = self._special.mixes_floats and any(refusal in str(error) for refusal in _REFUSALS_OF_MIXTURES)
            if narrow and mixed and _floating_dtypes(arguments, options) <= {*_NARROW, torch.float32}:
                return self._call_wide(arguments, options, arguments[0].dtype)
            longer = any(refusal in str(error) for refusal in _REFUSALS_OF_INDICES)
            if not (longer and self._lengthen_indices(arguments, options)):
                raise
        return self._call(arguments, options)

    def _lengthen_indices(self, arguments: list[Any], options: dict[str, Any]) -> bool:
        """Has int64 in the place of int32; whether there was any."""
        found = False
        for i, name in self._indices:
            place: Any = arguments if i < len(arguments) else options
            key = i if place is arguments else name
            value = place[key] if place is arguments or name in options else None
            if isinstance(value, Tensor) and value.dtype is torch.int32:
                place[key], found = value.long(), True
        return found

    def _call_wide(self, arguments: list[Any], options: dict[str, Any], narrow: torch.dtype) -> Any:
        """The CPU's kernel with float32 for 16-bit dtypes, and its results rounded."""
        pairs: list[tuple[Tensor, Tensor]] = []

        def widen(tensor: Tensor) -> Tensor:
            if tensor.dtype not in _NARROW:
                return tensor
            if not any(each is tensor for each, _ in pairs):
                pairs.append((tensor, tensor.float()))
            return next(wide for each, wide in pairs if each is tensor)

        def narrowed(result: Tensor) -> Tensor:
            if any(result is tensor for tensor in tensors((arguments, *options.values()))):
                return result
            for tensor, wide in pairs:
                if result is wide:
                    return tensor
            return result.to(narrow) if result.dtype is torch.float32 else result

        wide = changed(arguments, widen)
        wide_options = {name: changed(value, widen) for name, value in options.items()}
        result = self._call(wide, wide_options)
        for i, name, _, written in self._arguments:
            given = tensors((arguments[i] if i < len(arguments) else options.get(name)) if written else ())
            for tensor in given:
                for each, written_wide in pairs:
                    if each is tensor:
                        tensor.resize_(written_wide.shape).copy_(written_wide)
        return changed(result, narrowed)

    def _common_device(self, given: dict[int, Any]) -> torch.device | None:
        """The device that all tensors are on. Tensors without dimensions may be on the CPU."""
        found = other = None
        for i, _, kind, written in self._arguments:
            for tensor in tensors(given[i]):
                device = tensor.device
                if device.type == "npu":
                    if found is not None and found != device and not self._special.mixes_devices:
                        self._refuse(found, device)
                    found = found or device
                elif self._special.indexes and kind == "tensors" and device.type == "cpu":
                    continue
                elif not self._special.mixes_devices and device.type != "meta" and (tensor.dim() != 0 or written):
                    other = other or device
        if found is not None and other is not None:
            self._refuse(found, other)
        return found

    def _refuse(self, one: torch.device, other: torch.device) -> None:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}! "
            f"({self._operator})"
        )


def _kind(argument: Any) -> tuple[str | None, bool]:
    """What an argument of a schema is, and whether it is written."""
    names = {"Device": "device", "Generator": "generator", "Tensor": "tensor"}
    written = argument.alias_info is not None and argument.alias_info.is_write
    kind = str(argument.type)
    bare = kind.removeprefix("Optional[").rstrip("]")
    if "List[" in kind:
        return ("tensors" if "Tensor" in kind else None), written
    return names.get(bare), written


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a value, which may be a list (of lists) of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def _floating_dtypes(arguments: list[Any], options: dict[str, Any]) -> set[torch.dtype]:
    dtypes = {tensor.dtype for tensor in tensors((arguments, *options.values()))}
    return {dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value with other tensors: itself one, or a list or tuple (of lists) of them and of other things."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([changed(each, change) for each in value])
    return value


def _wait(device: torch.device) -> None:
    """Waits for the work in torch_npu's task queue and on the current stream of a device."""
    if _npu().current_device() != device.index:  # torch_npu makes the streams of a device only while it is current
        with _npu().device(device):
            return _wait(device)
    try:
        torch.accelerator.current_stream(device).synchronize()
    except RuntimeError as error:  # torch_npu does not wait for a stream that something else made
        if "External NPU stream" not in str(error):
            raise
        torch.accelerator.synchronize(device)


def _generator(given: torch.Generator | None, device: torch.device, known: torch.device | None) -> Any:
    """A CPU generator for one call: its numbers follow from seed and offset of the device's, which moves on."""
    if known is None and given is not None:
        raise RuntimeError(f"Expected a 'cpu' device type for generator but found '{given.device.type}'")
    if device.type != "npu":
        return given
    own = _npu().default_generators[device.index] if given is None else given
    if own.device.type != "npu":
        raise RuntimeError(f"Expected a 'npu' device type for generator but found '{own.device.type}'")
    if not hasattr(_local, "generator"):
        _local.generator = torch.Generator()
    return _local.generator.manual_seed(_cpu_seed(*draw(own)))


def _cpu_seed(seed: int, offset: int) -> int:
    """Of the 32 bits that the CPU generator uses: no two offsets give the same for one seed. As in native/npu."""
    return (splitmix64(seed + 0x9E3779B97F4A7C15) + offset * 0x9E3779B1) % 2**32
