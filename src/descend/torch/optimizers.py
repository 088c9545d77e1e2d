"""`AdamW`, in the place of ``torch.optim.AdamW``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, cast

import torch
from torch import Tensor

from descend.torch.apply_adam_w_v2 import update

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW`` in one pass over memory: one call of ``apply_adam_w_v2_`` for each parameter.

    Arguments, defaults, parameter groups and state dicts are those of ``torch.optim.AdamW``; either loads what the
    other saved. ``moments`` is new: the dtype of the state, by default that of each parameter. With
    ``moments=torch.float32`` the moments of 16-bit parameters are as exact as the arithmetic. ``foreach`` and ``fused``
    are not read: there is one way. ``capturable`` has the steps counted on the parameters' device. Raises ValueError
    for arguments that PyTorch refuses, and for ``differentiable``.
    """

    def __init__(self, params: Any, lr: float | Tensor = 1e-3, *args: Any, **named: Any) -> None:
        self._moments: torch.dtype | None = named.pop("moments", None)
        named.pop("foreach", None)
        named.pop("fused", None)  # or GradScaler would leave it to the step to unscale gradients
        super().__init__(params, lr, *args, **named)
        self._refuse()

    def _refuse(self) -> None:
        if any(group["differentiable"] for group in self.param_groups):
            raise ValueError("descend.torch.AdamW: differentiable is True, but must be False: the step is in place.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As PyTorch's, which calls it after loading, too."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__dict__.setdefault("_moments", None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's, but moments keep the digits that their dtype here has."""
        super().load_state_dict(state_dict)
        self._refuse()
        if self._moments is None:
            return
        places = [place for group in state_dict["param_groups"] for place in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for place, p in zip(places, parameters, strict=True):
            for name, value in state_dict["state"].get(place, {}).items():
                if name in _MOMENTS:
                    self.state[p][name] = value.to(p.device, self._dtype(p), copy=True)

    def _dtype(self, p: Tensor) -> torch.dtype:
        return p.dtype if self._moments is None or p.is_complex() else self._moments

    def _state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        state = cast("dict[str, Tensor]", self.state[p])
        if not state:
            exact = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
            state["step"] = torch.zeros((), dtype=exact, device=p.device if group["capturable"] else "cpu")
            for name in _MOMENTS[: 3 if group["amsgrad"] else 2]:
                state[name] = torch.zeros_like(p, dtype=self._dtype(p), memory_format=torch.preserve_format)
        return state

    def _init_group(self, group: dict[str, Any], params: list[Tensor], *lists: list[Tensor]) -> Any:
        """Fills the lists, as PyTorch's does, which torch.compile calls instead of compiling it."""
        for p in group["params"]:
            if p.grad is not None:
                self._state(p, group)
        return super()._init_group(group, params, *lists)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters that have a gradient; returns what ``closure`` does, which is called before."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        run = torch.ops.descend.apply_adam_w_v2_ if torch.compiler.is_compiling() else update
        for group in self.param_groups:
            numbers = [float(n) for n in (group["lr"], *group["betas"], group["weight_decay"], group["eps"])]
            params: list[Tensor] = []
            grads: list[Tensor] = []
            first: list[Tensor] = []
            second: list[Tensor] = []
            most: list[Tensor] = []
            counts: list[Tensor] = []
            self._init_group(group, params, grads, first, second, most, counts)
            # A count that is there twice, as of a parameter that is given twice, goes on between its two updates.
            apart = torch.compiler.is_compiling() or len(set(map(id, counts))) == len(counts)
            done = 0
            try:
                for p, *state, count in zip(params, first, second, most or repeat(None), grads, counts, strict=False):
                    tensors = [p, *state]
                    if hasattr(p, "to_local") or p.is_complex():
                        tensors = [_plain(t, p) for t in tensors]
                    step = count if p.is_cpu else count.to(p.device)
                    run(*tensors, step, *numbers, group["amsgrad"], group["maximize"])
                    if apart:
                        done += 1
                    else:
                        count += 1
            finally:
                if done:  # all at once, and a tensor of 1: one by one, or the number 1, takes a fifth of a short step
                    torch._foreach_add_(counts[:done], torch.ones((), device=counts[0].device), alpha=1.0)
        return loss


def _plain(tensor: Any, p: Any) -> Any:
    """What the kernel changes where p is a DTensor, this process's part, or where it is complex, its parts."""
    if tensor is None:
        return None
    if hasattr(tensor, "to_local"):
        if tensor.placements != p.placements:
            tensor = tensor.redistribute(placements=p.placements)
        tensor = tensor.to_local()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
