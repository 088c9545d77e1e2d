"""Forms of RMS norms that a second input gates, before or after the norm: those of Qwen3-Next, Mamba 2 and the like.

The norm is the operator's; the gate's activation and the products are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from descend.torch.annotated import with_types
from descend.torch.forms import Norm, RMSNorm, is_taken
from descend.torch.library import constant
from descend.torch.rms_norm import rms_norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": nn.functional.silu, "sigmoid": torch.sigmoid}


class GatedRMSNorm(RMSNorm):
    """RMS norm of an input, times an activation of its gate, rounded once.

    ``_parts`` names the two inputs and the activation, and has the number of groups that a row is cut into, each of
    which has a norm of its own. All is computed in float32, in float64 for float64 input.
    """

    title = "rms_norm times {activation} of the gate"
    adds = ""
    _first: ClassVar[bool] = False
    """Whether the gate comes before the norm."""
    _rounded: ClassVar[bool] = False
    """Whether what is normalised is rounded to the input's dtype before the weight."""

    @with_types
    def forward(self, *input: Tensor, **named: Tensor) -> Tensor:
        """Normalises and gates; without a gate of the input's shape it is what the module's class computes."""
        if not isinstance(self, GatedRMSNorm):  # unpatched, but someone keeps the forward that it had
            return type(self).forward(self, *input, **named)
        if isinstance(input, Proxy):  # the root of torch.fx's symbolic_trace
            input, named = tuple(input[i] for i in range(len(self._parts.inputs))), {}
        given: dict[str, Any] = dict(zip(self._parts.inputs, input, strict=False), **named)
        inputs: list[Any] = [given.get(name) for name in self._parts.inputs]
        if len(input) + len(named) == 2 and self._takes(*inputs):
            return self._normalise_gated(*inputs)
        result: Tensor = super(Norm, self).forward(*input, **named)  # type: ignore[misc]
        return result

    def _takes(self, x: Any, gate: Any) -> bool:
        if not (is_taken(x, self._parameters) and is_taken(gate, self._parameters)) or x.shape != gate.shape:
            return False
        return x.dim() + (self._parts.groups > 1) <= 8 and x.shape[-1:] == self._gamma(x).shape

    def _normalise_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        factor = ACTIVATIONS[self._parts.activation](gate.to(wide))
        if self._first:
            y = self._weighted(x.to(wide) * factor, x.dtype)
            return y if self._rounded else y.to(x.dtype)
        return (self._weighted(x.to(wide), x.dtype) * factor).to(x.dtype)

    def _weighted(self, wide: Tensor, dtype: torch.dtype) -> Tensor:
        """Norm and weight of an input that had this dtype."""
        gamma, groups = self._gamma(wide), self._parts.groups
        rounds = self._rounded and dtype is not wide.dtype
        if groups == 1 and not rounds and torch.promote_types(wide.dtype, gamma.dtype) is wide.dtype:
            return rms_norm(wide, gamma, self._epsilon(wide))[0]
        rows = wide.unflatten(-1, (groups, -1))
        xhat = rms_norm(rows, constant(1.0, rows.shape[-1:], rows), self._epsilon(wide))[0].flatten(-2)
        return gamma * (xhat.to(dtype) if rounds else xhat)


class RoundedGatedRMSNorm(GatedRMSNorm):
    """RMS norm, rounded to the input's dtype before the weight, times an activation of the gate: Qwen3-Next's."""

    title = "rms_norm, rounded before the weight, times {activation} of the gate"
    _rounded = True


class FirstGatedRMSNorm(GatedRMSNorm):
    """RMS norm of an input times an activation of its gate, rounded once."""

    title = "rms_norm of the input times {activation} of the gate"
    _first = True


class RoundedFirstGatedRMSNorm(GatedRMSNorm):
    """RMS norm of an input times an activation of its gate, rounded before the weight: Mamba 2's."""

    title = "rms_norm of the input times {activation} of the gate, rounded before the weight"
    _first = _rounded = True


FORMS = (GatedRMSNorm, RoundedGatedRMSNorm, FirstGatedRMSNorm, RoundedFirstGatedRMSNorm)
