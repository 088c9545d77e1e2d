"""Gated MLPs, ``down(silu(gate(x)) * up(x))``: the maps stay modules, and what is between them is one operator."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from descend.torch.annotated import with_types
from descend.torch.forms import Form, hooked, is_taken, mix
from descend.torch.probing import attributes, obstacle, out_of_reach, run, same, same_gradients, undisturbed
from descend.torch.releases import has_any_global_hook
from descend.torch.swi_glu import swi_glu

_COLUMNS = 48  # of each factor in a probe
_PROBED = (torch.float32, torch.bfloat16, torch.float16)


class Maps(NamedTuple):
    """The names of what plays which part in a gated MLP, and the class of its activation, if that is a module."""

    input: str
    first: tuple[str, ...]
    """The maps of the input, in the order of their calls: two, or one that gives both factors, the gate's first."""
    gate: str
    down: str
    activation: str | None
    activation_kind: type[nn.Module] | None


class GatedMlp(Form):
    """A gated MLP with SiLU, which with the product is one operator, rounded once."""

    title = "swi_glu"
    _modules: dict[str, nn.Module]

    @with_types
    def forward(self, *input: Tensor, **named: Tensor) -> Tensor:
        """Maps, gates and maps; what the operator does not take is computed by the module's class."""
        if not isinstance(self, GatedMlp):  # unpatched, but someone keeps the forward that it had
            return type(self).forward(self, *input, **named)
        if isinstance(input, Proxy):  # the root of torch.fx's symbolic_trace
            input, named = (input[0],), {}
        given = input or tuple(value for name, value in named.items() if name == self._parts.input)
        if len(input) + len(named) == len(given) == 1 and is_taken(given[0], {}) and self._is_as_it_was():
            return self._map(given[0])
        result: Tensor = super().forward(*input, **named)  # type: ignore[misc]
        return result

    def _is_as_it_was(self) -> bool:
        """Whether nothing waits for a call of the activation, or has changed it."""
        name, kind = self._parts.activation, self._parts.activation_kind
        if name is None:
            return True
        activation: Any = self._modules.get(name)
        changed = type(activation) is not kind or "forward" in vars(activation) or hooked(activation)
        return not (changed or has_any_global_hook())

    def _map(self, x: Tensor) -> Tensor:
        parts, maps = self._parts, self._modules
        found = {name: maps[name](x) for name in parts.first}
        gate = found.pop(parts.gate)
        gated = _of_halves(gate) if not found else _of_two(gate, *found.values())
        result: Tensor = maps[parts.down](gated)
        return result


def _of_halves(both: Tensor) -> Tensor:
    if is_taken(both, {}) and both.dim() and both.shape[-1] % 2 == 0:
        return swi_glu(both)
    gate, up = both.chunk(2, -1)
    return nn.functional.silu(gate) * up


def _of_two(gate: Tensor, up: Tensor) -> Tensor:
    """The halves lie one after the other, so that each is contiguous, and so is its gradient.

    Where no gradient will be asked for, bringing them together takes longer than the operator saves. What
    ``torch.jit.trace`` records does not depend on that.
    """
    alike = is_taken(gate, {}) and is_taken(up, {}) and gate.shape == up.shape and gate.dtype is up.dtype
    trained = torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad)
    if alike and gate.dim() < 8 and (trained or torch._C._get_tracing_state()):
        return swi_glu(torch.stack((gate, up)), 0).squeeze(0)
    return nn.functional.silu(gate) * up


# --- what is recognised --------------------------------------------------------------------------------------------


def judge(module: nn.Module) -> type[nn.Module] | str | None:
    """The class that a gated MLP is to have, or why it is left alone; None for what is none."""
    kind = type(module)
    maps = {name: child for name, child in module._modules.items() if isinstance(child, nn.Linear)}
    others = {name: child for name, child in module._modules.items() if name not in maps and child is not None}
    if kind.__module__.startswith("torch.nn.") or not _fit(list(maps.values())) or len(others) > 1:
        return None
    if any(m._parameters or m._buffers for m in (module, *others.values())):
        return None
    if any(child._modules for child in others.values()):
        return None
    try:
        _, *inputs = inspect.signature(kind.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if len(inputs) != 1 or inputs[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return None
    with undisturbed():
        calls = [_call(module, list(maps), *probe) for probe in _probes()]
        if not calls[0].is_gated:
            return None
        reason = (
            obstacle(module)
            or out_of_reach({name: p for name, child in maps.items() for p in child.parameters()})
            or _number(module, *others.values())
        )
        if reason is not None:
            return reason
        (name, activation), *_ = [*others.items(), (None, None)]
        kinds = None if activation is None else type(activation)
        first = tuple(calls[0].names[:-1])
        for gate in first:
            parts = Maps(inputs[0].name, first, gate, calls[0].names[-1], name, kinds)
            swapped = mix(kind, GatedMlp, parts)
            if all(_agree(module, swapped, parts, call) for call in calls):
                return swapped
    return "it does not multiply silu of one map by another"


def _fit(maps: list[nn.Linear]) -> bool:
    """Whether one of the maps can have the product of the others', or of the other's halves."""
    sizes = [(m.in_features, m.out_features) for m in maps]
    if len(sizes) == 2:
        return any(a[1] == 2 * b[0] for a, b in itertools.permutations(sizes))
    return len(sizes) == 3 and any(a == b and a[1] == c[0] for a, b, c in itertools.permutations(sizes))


def _number(*modules: nn.Module) -> str | None:
    """Why it is left, if it has numbers that may not matter as they are: rates of dropout, limits, scales."""
    for module in modules:
        for name, value in attributes(module).items():
            if type(value) is float:
                return f"it has a number whose part is unknown: {name}"
    return None


class _Stand(nn.Module):
    """In the place of a map: tells the `_Call` of its calls, and returns what that says. It has no weight."""

    def __init__(self, name: str, call: _Call) -> None:
        super().__init__()
        self.name, self.call = name, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call.answer(self.name, x)


class _Call:
    """A call of a module's class with stand-ins in the places of its maps.

    Maps of the input give columns of it, the first ones first; a single one gives all. The map of anything else gives
    it backwards.
    """

    def __init__(self, names: list[str], training: bool, x: Tensor) -> None:
        self.maps, self.training, self.x = names, training, x
        self.names: list[str] = []
        self.inputs: list[Tensor] = []
        self.answers: list[Tensor] = []
        self.result: Any = None
        self.autocast = _autocast()

    def answer(self, name: str, x: Tensor) -> Tensor:
        """What the map of this name gives. Raises ValueError where the forward has changed what autocast does."""
        if _autocast() != self.autocast:
            raise ValueError("the forward has its own autocast")
        answer = self._columns(len(self.names)).clone() if x is self.x else x.flip(-1)
        self.names.append(name)
        self.inputs.append(x)
        self.answers.append(answer)
        return answer

    def _columns(self, place: int) -> Tensor:
        width = self.x.shape[-1] // (len(self.maps) - 1)
        return self.x[..., place * width : (place + 1) * width]

    @property
    def is_gated(self) -> bool:
        """Whether all maps were called once, all but the last on the input, and the last one's result is the result."""
        return (
            sorted(self.names) == sorted(self.maps)
            and all(x is self.x for x in self.inputs[:-1])
            and self.inputs[-1] is not self.x
            and self.result is self.answers[-1]
        )

    def product(self, gate: str) -> Tensor:
        """The product as PyTorch computes it: SiLU is rounded to the dtype first."""
        a, b = self.x.chunk(2, -1)
        if len(self.maps) == 3 and self.names.index(gate) == 1:
            a, b = b, a
        return nn.functional.silu(a) * b


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]


def _call(module: nn.Module, names: list[str], training: bool, x: Tensor, kind: type[nn.Module] | None = None) -> _Call:
    """The call, in training under autocast, which a forward may switch off."""
    with torch.autocast("cpu", enabled=training), torch.autocast("cuda", enabled=training):
        call = _Call(names, training, x)
        stands = {name: _Stand(name, call) for name in names}
        held = {"training": training, "_modules": {**module._modules, **stands}}
        try:
            call.result = run(module, kind or type(module), x, **held)
        except Exception:  # whatever the class raises
            call.names.clear()
    return call


def _probes() -> Iterator[tuple[bool, Tensor]]:
    """Training mode and input of the probes: float32 of several sizes, then each dtype with infinities and NaN."""
    random = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=random, device="cpu", dtype=torch.float32)

    for leading, scale in (((7,), 1.0), ((2, 5), 1e-3), ((2, 3, 5), 30.0), ((2, 5), 1e6)):
        yield True, (normal(*leading, 2 * _COLUMNS) * scale).requires_grad_()
    scales = torch.tensor([1.0, 1e-3, 10.0, math.inf, math.nan], device="cpu").repeat_interleave(5)[:, None]
    for dtype in _PROBED:
        yield False, (normal(25, 2 * _COLUMNS) * scales).to(dtype).requires_grad_()


def _agree(module: nn.Module, swapped: type[nn.Module], parts: Maps, call: _Call) -> bool:
    """Whether the class gives SwiGLU of these parts; in float32 the swapped class gives the same, and its gradients."""
    x = call.x
    unit = torch.finfo(x.dtype).eps
    if not call.is_gated or not same(call.inputs[-1], call.product(parts.gate), unit):
        return False
    if x.dtype is not torch.float32:
        return True
    ours = _call(module, call.maps, call.training, x, swapped)
    if not ours.is_gated or not same(ours.result, call.result, unit):
        return False
    try:
        return not x.isfinite().all() or same_gradients(ours.result, call.result, [x], unit)
    except Exception:  # a class whose result has no gradients, or computes anew for them
        return False
