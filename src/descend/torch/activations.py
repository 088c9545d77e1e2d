"""GELU, by erf or by tanh: PyTorch's module, and classes that call themselves GELU and compute either."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from descend.torch.annotated import with_types
from descend.torch.forms import Form, is_taken, mix
from descend.torch.gelu_v2 import gelu_v2
from descend.torch.probing import obstacle, run, same, same_gradients, undisturbed

_PROBED = (torch.float32, torch.bfloat16, torch.float16)
_APPROXIMATE = {"erf": 0, "tanh": 1}
_OF_TORCH = {"none": "erf", "tanh": "tanh"}  # nn.GELU's approximate


_SMALLEST = 1 << 13
"""From so many elements on the operator is as fast as PyTorch's GELU, which is one kernel, too."""
_SMALLEST_COMPILED = 1 << 16
"""The same for what ``torch.compile`` makes of any GELU."""


class Curve(NamedTuple):
    """Which of the two forms of GELU a module has, and from how many elements on the operator computes it."""

    by: str
    smallest: int


class Gelu(Form):
    """GELU, rounded once."""

    title = "gelu_v2, by {by}"

    @with_types
    def forward(self, *input: Tensor, **named: Tensor) -> Tensor:
        """GELU of the one input; what the operator does not take is computed by the module's class."""
        if not isinstance(self, Gelu):  # unpatched, but someone keeps the forward that it had
            return type(self).forward(self, *input, **named)
        if isinstance(input, Proxy):  # the root of torch.fx's symbolic_trace
            input, named = (input[0],), {}
        if len(input) == 1 and not named:
            approximate = _APPROXIMATE.get(self._by())
            if approximate is not None and self._is_taken(input[0]):
                return gelu_v2(input[0], approximate)
        result: Tensor = super().forward(*input, **named)  # type: ignore[misc]
        return result

    def _is_taken(self, x: Any) -> bool:
        """Whether the operator takes the input, and is not slower there: not on CUDA, where one kernel is as good."""
        smallest = _SMALLEST_COMPILED if torch.compiler.is_compiling() else self._parts.smallest
        return is_taken(x, {}) and x.device.type in ("cpu", "meta") and x.numel() >= smallest

    def _by(self) -> str:
        """The form; of PyTorch's module what it says now."""
        return _OF_TORCH.get(self.approximate, "") if isinstance(self, nn.GELU) else self._parts.by


# --- what is recognised --------------------------------------------------------------------------------------------


def judge(module: nn.Module) -> type[nn.Module] | str | None:
    """The class that a GELU is to have, or why it is left alone; None for what is none."""
    kind = type(module)
    standard = isinstance(module, nn.GELU) and kind.forward is nn.GELU.forward
    if not standard and ("gelu" not in kind.__name__.lower() or kind.__module__.startswith("torch.nn.")):
        return None
    if module._modules or module._parameters or module._buffers:
        return None
    reason = obstacle(module)
    if reason is not None:
        return reason
    by = _OF_TORCH.get(str(module.approximate)) if standard else None
    curve = Curve(by, _SMALLEST) if by else _recognise(module)
    return "it is neither GELU by erf nor GELU by tanh" if curve is None else mix(kind, Gelu, curve)


def _recognise(module: nn.Module) -> Curve | None:
    """The form of GELU that a module has which is not PyTorch's."""
    try:
        _, *inputs = inspect.signature(type(module).forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if len(inputs) != 1 or inputs[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return None
    with undisturbed():
        probes = list(_probes())
        for by in _APPROXIMATE:
            if all(_agree(module, by, *probe) for probe in probes):
                y = run(module, type(module), probes[0][1])
                return Curve(by, _SMALLEST if type(y.grad_fn).__name__ == "GeluBackward0" else 0)
    return None


def _probes() -> Iterator[tuple[bool, Tensor]]:
    """Training mode and input of the probes: float32 of several sizes, then each dtype with infinities and NaN."""
    random = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=random, device="cpu", dtype=torch.float32)

    for leading, scale in (((7,), 1.0), ((2, 5), 1e-3), ((2, 3, 5), 30.0), ((2, 5), 1e6)):
        yield True, (normal(*leading, 48) * scale).requires_grad_()
    scales = torch.tensor([1.0, 1e-3, 10.0, math.inf, math.nan], device="cpu")[:, None]
    for dtype in _PROBED:
        yield False, (normal(5, 48) * scales).to(dtype).requires_grad_()


def _agree(module: nn.Module, by: str, training: bool, x: Tensor) -> bool:
    """Whether the class gives this form: in float32 with its gradient; in 16 bits it may round more often."""
    try:
        y = run(module, type(module), x, training=training)
        if y.dtype is not x.dtype or y.shape != x.shape or x._version:
            return False
        if training:
            ours, unit = gelu_v2(x, _APPROXIMATE[by]), torch.finfo(x.dtype).eps
            return same(ours, y, unit) and same_gradients(ours, y, [x], unit)
    except Exception:  # whatever the class raises, and where it gives what is no tensor
        return False
    wide = x.detach().double()
    exact, given = gelu_v2(wide, _APPROXIMATE[by]), y.detach().double()
    near = (given - exact).abs() <= 4 * torch.finfo(x.dtype).eps * wide.abs()
    lost = given.isnan() & ~wide.isfinite()  # PyTorch's GELU by erf of infinity is NaN in some dtypes
    return bool((near | (given == exact) | lost).all())
