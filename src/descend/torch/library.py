"""The engine's operators in PyTorch's dispatcher: schemas, kernels, derivatives, batching.

Schemas, defaults and the CPU kernels come from the engine's tables and functions; an operator's own file adds what the
results look like without data, how it is differentiated, and how a batch of calls becomes one.

======================  ===================================================================================
dispatch key            what runs there
======================  ===================================================================================
``CPU``                 the engine's function, ``descend.<name>``
``AutogradCPU``         for plain tensors ``descend._torch``, where it is built: C++, no Python in a step
``CUDA``                the kernels in Triton, `descend.triton`; an error where Triton is missing
``Meta``, fake tensors  `Operator.fake`, which checks the contract where all sizes are known
``Autograd``            `Operator.differentiable`
``FuncTorchBatched``    `Operator.batched`: ``torch.func.vmap``
``Python``: DTensor     `descend.torch.dtensor`, by the operator's rule (`descend.torch.sharding.sharded`)
======================  ===================================================================================

With ``descend._torch`` (native/torch; `registration` says whether it is there) the kernels of ``CPU`` are in C++ as
well, and leave whatever is out of the ordinary, errors included, to those in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, peek_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

import descend
from descend import _cuda, _torch_module, portability
from descend._device_call import refuse_gradients
from descend._torch_dtypes import DTYPES
from descend.contract import OPERATORS, Parameter
from descend.errors import from_status
from descend.torch.releases import any_requires_grad, apply_at_one_level, is_fx_tracing

Kernel = Callable[..., Any]
Rule = Callable[..., tuple[Any, Any]]

LIBRARY = torch.library.Library("descend", "DEF")

_KINDS = {
    "tensor": "Tensor",
    "int_array": "SymInt[]",
    "bool_array": "bool[]",
    "int": "SymInt",
    "float": "float",
    "bool": "bool",
    "str": "str",
}


_native: Any
_native, _why_not = _torch_module.load("descend._torch")
_registration = f"Python: {_why_not}" if _native is None else "C++"


def registration() -> str:
    """How the operators are registered: ``C++``, or ``Python`` and why."""
    return _registration


def leave_to_python(on: bool = True) -> None:
    """Leaves plain CPU tensors to the kernels in Python, too, or to those in C++ again, where they are built."""
    global _registration
    if _native is not None:
        _native.enable(not on)
        _registration = "Python: as asked" if on else "C++"


_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_LEVELS = torch._C.DispatchKey.FuncTorchDynamicLayerBackMode
_PLAIN = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU) | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)


def recording() -> bool:
    """Whether a graph is being made that may be differentiated, as by ``make_fx`` and ``torch.export``.

    What ``torch.compile`` makes is not: it takes all gradients while it traces.
    """
    if not is_fx_tracing():
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is None


def traced_before_dispatch() -> bool:
    """Whether operators are being recorded as they are called: ``make_fx(pre_dispatch=True)``, ``torch.export``."""
    included: bool = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch)
    return included


def statistics_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a mean or rstd that the engine allocates: float64 for float64 input, else float32."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def constant(value: float, shape: Sequence[int], x: Tensor) -> Tensor:
    """A tensor of one value that takes no memory, of the dtype and on the device of ``x``."""
    return x.new_full((), value).expand(shape)


def constant_sizes(sizes: Sequence[int] | None) -> Sequence[int] | None:
    """The sizes; those that ``torch.jit.trace`` has made tensors as the numbers that they are in this run."""
    return list(map(int, sizes)) if sizes is not None and torch._C._get_tracing_state() else sizes


class _Threads:
    """PyTorch's number of threads, which the engine follows once it is changed."""

    def __init__(self) -> None:
        self._count = torch.get_num_threads()

    def follow(self) -> None:
        """Gives the engine as many threads as PyTorch, if PyTorch has another number than when last asked."""
        count = torch.get_num_threads()
        if count != self._count:
            self._count = count
            descend.set_num_threads(count)


follow_threads: Kernel = _Threads().follow if _native is None else _native.follow_threads


class Operator:
    """One operator of the engine, defined in the dispatcher's namespace ``descend``.

    ``overload`` is what PyTorch calls, ``torch.ops.descend.<name>.default``. Raises KeyError for an unknown name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._contract = OPERATORS[name]
        self._parameters = self._contract.functional_parameters
        self._numbers = [(i, p.python) for i, p in enumerate(self._parameters) if p.kind == "float"]
        self._defaults = tuple(portability.default(p) for p in self._parameters if not p.keyword_only)
        self._engine: Kernel = getattr(descend, name)
        self._on_cuda: Kernel | None = None
        LIBRARY.define(self._schema(), tags=torch.Tag.pt2_compliant_tag)
        if _native is None:
            LIBRARY.impl(name, self._run, "CPU")
        LIBRARY.impl(name, self._run_on_cuda, "CUDA")
        self.without_data: Kernel
        self.overload: Any = getattr(torch.ops.descend, name).default

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What `overload` gives, which takes a tensor's value for a number: gradients lost in this way are refused."""
        for place, name in self._numbers:
            if isinstance(args[place], Tensor):
                refuse_gradients(self.name, name, args[place])
        return self.overload(*args, **named)

    def _schema(self) -> str:
        parts: list[str] = []
        for p in self._parameters:
            if p.keyword_only and "*" not in parts:
                parts.append("*")
            parts.append(f"{_KINDS[p.kind]}{'?' * p.optional} {p.python}{_schema_default(p)}")
        results = ", ".join("Tensor" for _ in self._contract.outputs)
        return f"{self.name}({', '.join(parts)}) -> " + (f"({results})" if ", " in results else results)

    def _run(self, *args: Any, **named: Any) -> Any:
        follow_threads()
        return self._engine(*args, **named)

    def _run_on_cuda(self, *args: Any, **named: Any) -> Any:
        if self._on_cuda is None:
            self._on_cuda = _cuda.operator(self.name)
        return self._on_cuda(*args, **named)

    def complete(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The positional arguments, with defaults for those that are left out."""
        return (*args, *self._defaults[len(args) :])

    def fake(self, function: Kernel) -> Kernel:
        """Registers what makes results without data: shapes, strides, dtypes and device, as the engine's are.

        `without_data` is this function, which checks the contract before.
        """

        def checked(*args: Any, **named: Any) -> Any:
            self._check(args, named)
            return function(*args, **named)

        self.without_data = checked
        torch.library.register_fake(f"descend::{self.name}", checked, lib=LIBRARY)
        return function

    def _check(self, args: Sequence[Any], named: dict[str, Any]) -> None:
        """Raises what the engine would, from metadata alone; sizes that are symbols wait for the real call."""
        values = dict(zip((p.python for p in self._parameters), args, strict=False), **named)
        devices = {k: v.device for k, v in values.items() if isinstance(v, Tensor)}
        if len(set(devices.values())) > 1:
            where = ", ".join(f"{name} on {device}" for name, device in devices.items())
            sentence = f"{self.name}: all tensors must be on one device, but there are {where}."
            raise from_status(161002, "ACLNN_ERR_PARAM_INVALID", sentence)
        sizes = [s for v in values.values() if isinstance(v, Tensor) for s in v.shape]
        sizes += [s for v in values.values() for s in (v if isinstance(v, (list, tuple)) else [v])]
        if any(isinstance(size, torch.SymInt) for size in sizes):
            return
        plain = {k: _specification(v) if isinstance(v, Tensor) else v for k, v in values.items()}
        verdict = portability.verdict(self._contract, "host", plain)
        if verdict.status:
            raise from_status(verdict.status, verdict.name, verdict.sentence)

    def forward(self, keyset: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """What comes after autograd: the engine itself for plain CPU tensors, else the dispatcher's next kernel."""
        if keyset == _PLAIN:
            return self._run(*args, **named)  # one trip through the dispatcher less
        # Function.forward records no gradients and no tangents, but torch.func's outer levels do on the way down.
        outer = keyset.has(_LEVELS)
        gradients, tangents = torch.is_grad_enabled() or outer, torch._C._is_fwd_grad_enabled() or outer
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(gradients),
            forward_ad._set_fwd_grad_enabled(tangents),
        ):
            return self.overload.redispatch(keyset & _BELOW_AUTOGRAD, *args, **named)

    def differentiable(self, function: type[torch.autograd.Function], definition: Kernel) -> None:
        """Registers the derivatives: ``function`` in reverse, and those of ``definition`` in forward mode.

        ``function.forward`` gets (ctx, keyset, named, ...) and the operator's positional arguments, none left out;
        ``definition`` has the operator's signature and is composed of PyTorch's operators.
        """

        def autograd(keyset: Any, *args: Any, **named: Any) -> Any:
            gradients = torch.is_grad_enabled() and any_requires_grad(*args)
            if _in_forward_mode():
                duals = [_unpack(a) for a in args]
                if any(tangent is not None for _, tangent in duals):
                    with torch.set_grad_enabled(torch.is_grad_enabled() and not gradients):
                        results = self.overload(*(primal for primal, _ in duals), **named)
                    return _with_derivatives(results, definition(*map(_in_float64, args), **named), gradients)
            if gradients:
                return _apply(function, keyset, named, *self.complete(args))
            return self.forward(keyset, args, named)

        LIBRARY.impl(self.name, autograd, "Autograd", with_keyset=True)
        if _native is not None:
            from_raw = torch._C.DispatchKeySet.from_raw_repr
            _native.implement(self.name, self._run, lambda keys, *a, **named: autograd(from_raw(keys), *a, **named))

    def batched(self, rule: Rule) -> Rule:
        """Registers ``rule(size, dims, *args, **named)``, which makes one call of a batch of ``size`` calls.

        ``dims`` has the batch dimension of each positional argument, None where there is none; the rule returns the
        results and their batch dimensions.
        """

        def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any, **named: Any) -> tuple[Any, Any]:
            args = self.complete(args)
            dims = [d if isinstance(d, int) else None for d in in_dims]
            dims += [None] * (len(args) - len(dims))
            one = [_without_data(a, d) if isinstance(a, Tensor) else a for a, d in zip(args, dims, strict=True)]
            self._check(one, named)  # what no sample has room for, the batch may
            if info.batch_size:
                return rule(info.batch_size, dims, *args, **named)
            return self._no_calls(self.without_data(*one, **named), args)

        torch.library.register_vmap(f"descend::{self.name}", vmap, lib=LIBRARY)
        return rule

    def _no_calls(self, results: Any, args: Sequence[Any]) -> tuple[Any, Any]:
        """A batch of no calls: results of the shapes and dtypes of one, through which all gradients are 0."""
        floats = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
        nothing = torch.stack([a.flatten()[:0].sum(dtype=torch.float64) for a in floats]).sum()

        def empty(result: Tensor | None) -> Tensor | None:
            return None if result is None else nothing.to(result.dtype).expand(0, *result.shape).clone()

        if not isinstance(results, tuple):
            return empty(results), 0
        return tuple(map(empty, results)), tuple(None if r is None else 0 for r in results)


def _without_data(tensor: Tensor, batch: int | None) -> Tensor:
    """A sample of a batch, or what is no batch, without values."""
    shape = [size for dim, size in enumerate(tensor.shape) if dim != batch]
    return tensor.new_empty(shape, device="meta")


def _in_forward_mode() -> bool:
    """Whether there may be tangents at this level of torch.func's; where it has none, at any."""
    level = peek_interpreter_stack()
    if level is not None:
        return level.key() == TransformType.Jvp
    return forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() > 0  # compiled, the number stays


def _unpack(value: Any) -> tuple[Any, Tensor | None]:
    """The value without its tangent, and the tangent; PyTorch has but one level of them."""
    if isinstance(value, Tensor) and value.is_floating_point():
        primal, tangent = forward_ad.unpack_dual(value, level=0)
        return primal, tangent
    return value, None


def _in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply`` within a kernel: the dispatcher has dealt with all of torch.func's levels but this one."""
    if torch._C._are_functorch_transforms_active():
        with enable_single_level_autograd_function():
            return apply_at_one_level(function)(*args)
    return super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc]


class _Stand(torch.autograd.Function):
    """A result in the place of the same one in float64, whose gradients go there."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, exact: Tensor) -> Tensor:
        ctx.dtype = exact.dtype
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient.to(ctx.dtype)


def _with_derivatives(results: Any, duals: Any, gradients: bool) -> Any:
    """The results, with the tangents of the same results in float64 and, if asked for, their gradients.

    Gradients of these have tangents as well: what they are computed of is saved with its own.
    """
    if isinstance(results, tuple):
        return tuple(_with_derivatives(result, dual, gradients) for result, dual in zip(results, duals, strict=True))
    primal, tangent = _unpack(duals)
    if gradients and isinstance(primal, Tensor) and primal.requires_grad:
        results = _apply(_Stand, results, primal)
    return results if tangent is None else forward_ad.make_dual(results, tangent.to(results.dtype), level=0)


def _schema_default(parameter: Parameter) -> str:
    if parameter.default is None:
        return ""
    return "=" + parameter.default.replace("(", "[").replace(")", "]")


def _specification(tensor: Tensor) -> portability.TensorSpec:
    return portability.TensorSpec(tuple(tensor.shape), DTYPES.get(tensor.dtype, str(tensor.dtype)))
