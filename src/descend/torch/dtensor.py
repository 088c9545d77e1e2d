"""The operators on DTensors: each process computes its part of a call, from what it holds.

Of the ways to split a call (`descend.torch.sharding`), and that of not splitting it, the one is taken, for each
dimension of the mesh, for which the fewest bytes have to be moved; then what lies otherwise is redistributed.

The rules are registered by ``torch.library.register_torch_dispatch``. DTensor's own ``register_sharding`` would have
calls share decisions, and the shapes of results, that differ in nothing but a list (``act_seq_len``), and can not
change an argument, as group norm over some of the groups must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from descend.torch.library import LIBRARY, Operator
from descend.torch.sharding import RULES, Split

_WHOLE = Split()


class _Spec(NamedTuple):
    """All of a tensor, without its values, and how it is placed on the mesh."""

    shape: torch.Size
    dtype: torch.dtype
    placements: tuple[Placement, ...]

    def without_data(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta")


class _Plan(NamedTuple):
    """How a call is split: where its tensors lie, and what is left of an integer. None: what is neither."""

    args: tuple[_Spec | int | None, ...]
    results: tuple[_Spec | None, ...]
    gradients: tuple[_Spec | None, ...]


def call(operator: Operator, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """The operator's results on DTensors, as DTensors.

    Raises what the operator raises for the whole tensors, before anything is moved, and so in all processes. Raises
    ValueError where DTensors are on several meshes, TypeError where a tensor is none.
    """
    with torch.no_grad():
        mesh, whole, plan = _prepare(operator, args, named)
        parts = None
        if mesh.get_coordinate() is not None:
            parts = _tuple(operator.overload(*map(_part, whole, plan.args), **named))
        results = _assemble(parts, plan.results, mesh)
        return results if len(results) > 1 else results[0]


def pull_back(
    operator: Operator,
    function: Callable[[Sequence[Any], Sequence[Tensor | None]], Sequence[Tensor | None]],
    args: Sequence[Any],
    named: dict[str, Any],
    cotangents: Sequence[Tensor | None],
) -> Sequence[Tensor | None]:
    """The gradients of a call on DTensors; ``function(args, cotangents)`` has those of the call on plain tensors.

    Differentiating them raises NotImplementedError.
    """

    def run() -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            mesh, whole, plan = _prepare(operator, args, named)
            parts = None
            if mesh.get_coordinate() is not None:
                given = [
                    None if r is None or c is None else _part(c, r._replace(placements=_reduced(r.placements)))
                    for c, r in zip(cotangents, plan.results, strict=True)
                ]
                parts = function(list(map(_part, whole, plan.args)), given)
            return _assemble(parts, plan.gradients, mesh)

    if not torch.is_grad_enabled():
        return run()
    gradients: tuple[Tensor | None, ...] = _Last.apply(operator.name, run, *args, *cotangents)  # type: ignore[no-untyped-call]
    return gradients


class _Last(torch.autograd.Function):
    """What ``run`` returns, as a function of tensors that has no derivative."""

    @staticmethod
    def forward(ctx: Any, name: str, run: Callable[[], tuple[Tensor | None, ...]], *_: Any) -> Any:
        ctx.name = name
        return run()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{ctx.name}: there are no third derivatives of DTensors.")


# --- how a call is split -------------------------------------------------------------------------------------------


def _prepare(operator: Operator, args: Sequence[Any], named: dict[str, Any]) -> tuple[DeviceMesh, Sequence[Any], _Plan]:
    """The mesh, the arguments, none left out and their tensors DTensors, and the plan."""
    meshes = [a.device_mesh for a in args if isinstance(a, DTensor)]
    mesh = meshes[0]
    if any(m != mesh for m in meshes):
        raise ValueError(f"{operator.name}: all DTensors must be on one mesh, but there are {meshes}.")
    whole = [_distributed(operator, a, mesh) for a in operator.complete(args)]
    key = operator, mesh.shape, tuple(map(_hashable, whole)), tuple(named.items())
    try:
        plan = _plan(*key)
    except TypeError:  # sizes that are symbols can not be looked up
        plan = _plan.__wrapped__(*key)
    return mesh, whole, plan


def _distributed(operator: Operator, arg: Any, mesh: DeviceMesh) -> Any:
    """The argument; a plain tensor is taken for replicated where DTensor's own operators do so."""
    if not isinstance(arg, Tensor) or isinstance(arg, DTensor):
        return arg
    if arg.numel() != 1 and not DTensor._op_dispatcher._allow_implicit_replication:
        raise TypeError(
            f"{operator.name}: where one tensor is a DTensor all must be, but that of shape {list(arg.shape)} is not; "
            "distribute_tensor makes it one, implicit_replication takes it for the same in all processes."
        )
    return DTensor.from_local(arg, mesh, [Replicate()] * mesh.ndim)


def _hashable(arg: Any) -> Any:
    if isinstance(arg, DTensor):
        return _Spec(arg.shape, arg.dtype, arg.placements)
    return tuple(arg) if isinstance(arg, (list, tuple)) else arg


@lru_cache(maxsize=4096)
def _plan(
    operator: Operator, mesh: tuple[int, ...], args: tuple[Any, ...], named: tuple[tuple[str, Any], ...]
) -> _Plan:
    tensors = [a.without_data() if isinstance(a, _Spec) else a for a in args]
    results = _tuple(operator.without_data(*tensors, **dict(named)))
    ways = [_WHOLE, *RULES[operator](*tensors, **dict(named))]
    splits: list[Split] = []
    for dim, size in enumerate(mesh):
        possible = [way for way in ways if _is_possible(way, args, dim, size)]
        split = min(possible, key=lambda way: _bytes_moved(way, args, dim, size))  # of equal ones the first
        args = tuple(
            arg if isinstance(arg, _Spec) or split.arg(place) is None else arg // size for place, arg in enumerate(args)
        )
        splits.append(split)
    cuts = [[s.arg(place) for s in splits] for place in range(len(args))]
    return _Plan(
        tuple(
            _placed(a, c) if isinstance(a, _Spec) else None if c == [None] * len(mesh) else a
            for a, c in zip(args, cuts, strict=True)
        ),
        tuple(None if r is None else _placed(r, [s.result(place) for s in splits]) for place, r in enumerate(results)),
        tuple(
            _placed(a, [_gradient(s, place) for s in splits]) if isinstance(a, _Spec) else None
            for place, a in enumerate(args)
        ),
    )


def _gradient(split: Split, place: int) -> int | Literal["sum"] | None:
    """Where an argument's gradient is cut: it is a sum where each process has the argument but a part of the call."""
    cut = split.arg(place)
    return "sum" if cut is None and split is not _WHOLE else cut


def _is_possible(way: Split, args: Sequence[Any], dim: int, size: int) -> bool:
    """Whether integers can be divided; parts are left empty only where an argument lies so."""
    for place, arg in enumerate(args):
        cut = way.arg(place)
        if cut is None:
            continue
        if not isinstance(arg, _Spec):
            if arg % size:
                return False
        elif arg.shape[cut] < size and arg.placements[dim] != Shard(cut):
            return False
    return True


def _bytes_moved(way: Split, args: Sequence[Any], dim: int, size: int) -> int:
    """About how much a process receives for a way to split the call over a dimension of the mesh."""
    total = 0
    for place, arg in enumerate(args):
        if isinstance(arg, _Spec):
            now, cut = arg.placements[dim], way.arg(place)
            if now == _placement(cut) or isinstance(now, Replicate):
                continue
            whole = arg.shape.numel() * arg.dtype.itemsize
            if isinstance(now, Partial):
                whole *= 2 if cut is None else 1
            elif cut is not None:
                whole //= size
            total += 1 + whole  # rather nothing than an empty tensor
    return total


def _reduced(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    return tuple(Replicate() if isinstance(p, Partial) else p for p in placements)


def _placed(tensor: Tensor | _Spec, cuts: Iterable[int | Literal["sum"] | None]) -> _Spec:
    return _Spec(tensor.shape, tensor.dtype, tuple(map(_placement, cuts)))


def _placement(cut: int | Literal["sum"] | None) -> Placement:
    if cut is None:
        return Replicate()
    return Partial() if cut == "sum" else Shard(cut)


# --- from wholes to parts and back ---------------------------------------------------------------------------------


def _part(whole: Any, plan: _Spec | int | None) -> Any:
    """This process's part of a tensor; an integer's is in the plan; there are none of anything else."""
    if not isinstance(plan, _Spec):
        return whole if plan is None else plan
    if any(type(p) not in (Shard, Replicate, Partial) for p in whole.placements):  # what PyTorch has for its own use
        whole = whole.redistribute(placements=[Replicate()] * len(plan.placements))
    if whole.placements != plan.placements:
        whole = whole.redistribute(placements=plan.placements)
    return whole.to_local()


def _assemble(
    parts: Sequence[Tensor | None] | None, plan: Sequence[_Spec | None], mesh: DeviceMesh
) -> tuple[Tensor | None, ...]:
    """The wholes of which this process has these parts; no parts: it is not of the mesh."""
    if parts is None:
        parts = [None if p is None else torch.empty(0, dtype=p.dtype, device=mesh.device_type) for p in plan]
    return tuple(
        None
        if part is None or p is None
        else DTensor.from_local(part.contiguous(), mesh, p.placements, shape=p.shape, stride=p.without_data().stride())
        for part, p in zip(parts, plan, strict=True)
    )


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _register(operator: Operator) -> None:
    def dispatch(cls: Any, overload: Any, types: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return call(operator, args, named)

    torch.library.register_torch_dispatch(f"descend::{operator.name}", DTensor, dispatch, lib=LIBRARY)


def _complete_dtensor() -> None:
    """Gives DTensor what PyTorch 2.7 lacks: a tensor without its tangent or its history lies as it does with them."""
    strategies: dict[Any, Any] = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    aten = torch.ops.aten
    if aten.detach.default in strategies:
        for operator in (aten.alias.default, aten.detach_.default):
            strategies.setdefault(operator, strategies[aten.detach.default])


for _operator in RULES:
    _register(_operator)
_complete_dtensor()
