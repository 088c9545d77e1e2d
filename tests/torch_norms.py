"""Norms as model code writes them, and what descend.torch.patch makes of each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torch_cases import draw


class Rms(nn.Module):
    """The common part of the classes below, which differ in what they do with ``xhat``."""

    def __init__(self, size: int = 16, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw((size,), size))
        self.variance_epsilon = eps

    def xhat(self, x: Tensor) -> Tensor:
        wide = x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class LlamaNorm(Rms):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.weight * self.xhat(hidden_states).to(hidden_states.dtype)


class OlmoNorm(Rms):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return (self.weight * self.xhat(hidden_states)).to(hidden_states.dtype)


class GemmaNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return (self.xhat(x) * (1.0 + self.weight.float())).type_as(x)


class T5Norm(Rms):
    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


class Weightless(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)


class WeightlessNorm(Weightless):
    pass


class CenteredNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.xhat(x.float() - x.float().mean(-1, keepdim=True)).to(x.dtype)


class CohereNorm(Rms):
    def forward(self, x: Tensor) -> Tensor:
        centred = x.float() - x.float().mean(-1, keepdim=True)
        return (self.weight.float() * self.xhat(centred)).to(x.dtype)


class ScaleNorm(nn.Module):
    """What calls its weight a scale, and has no bias."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.scale = nn.Parameter(draw((size,), size))
        self.register_parameter("bias", None)
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps) * self.scale).type_as(x)


class Rescale(ScaleNorm):
    """A norm by its parameters, not by its name."""


class ShiftNorm(nn.Module):
    """Layer norm whose parameters have names, and an order, of their own."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.shift, self.scale = (nn.Parameter(draw((size,), seed)) for seed in (1, 2))
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.layer_norm(x.float(), self.scale.shape, self.scale.float(), self.shift.float(), self.eps)
        return wide.type_as(x)


class WideLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).type_as(x)


class NamedLayerNorm(nn.LayerNorm):
    """A subclass that changes nothing."""


SWAPPED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "LayerNorm": (lambda: nn.LayerNorm(16), "LayerNorm -> layer_norm"),
    "LayerNorm-plain": (lambda: nn.LayerNorm(16, elementwise_affine=False), "LayerNorm -> layer_norm"),
    "LayerNorm-no bias": (lambda: nn.LayerNorm((2, 16), bias=False), "LayerNorm -> layer_norm"),
    "RMSNorm": (lambda: nn.RMSNorm(16), "RMSNorm -> rms_norm"),
    "RMSNorm-eps": (lambda: nn.RMSNorm(16, 1e-3), "RMSNorm -> rms_norm"),
    "RMSNorm-plain": (lambda: nn.RMSNorm((2, 16), elementwise_affine=False), "RMSNorm -> rms_norm"),
    "NamedLayerNorm": (lambda: NamedLayerNorm(16), "NamedLayerNorm -> layer_norm"),
    "WideLayerNorm": (lambda: WideLayerNorm(16), "WideLayerNorm -> layer_norm"),
    "WideLayerNorm-plain": (lambda: WideLayerNorm((2, 16), elementwise_affine=False), "WideLayerNorm -> layer_norm"),
    "Cohere": (CohereNorm, "CohereNorm -> layer_norm"),
    "Llama": (LlamaNorm, "LlamaNorm -> rms_norm, rounded before the weight"),
    "Llama-narrow": (lambda: LlamaNorm(3), "LlamaNorm -> rms_norm, rounded before the weight"),
    "Llama-wide": (lambda: LlamaNorm(1500), "LlamaNorm -> rms_norm, rounded before the weight"),
    "Olmo": (OlmoNorm, "OlmoNorm -> rms_norm"),
    "Gemma": (GemmaNorm, "GemmaNorm -> gemma_rms_norm"),
    "T5": (T5Norm, "T5Norm -> rms_norm, rounded to the weight's dtype before it"),
    "Weightless": (WeightlessNorm, "WeightlessNorm -> rms_norm"),
    "scale": (ScaleNorm, "ScaleNorm -> rms_norm"),
    "scale, by what it holds": (Rescale, "Rescale -> rms_norm"),
    "scale and shift": (ShiftNorm, "ShiftNorm -> layer_norm"),
}


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def inputs(module: nn.Module, dtype: torch.dtype) -> Tensor:
    shape = getattr(module, "normalized_shape", None) or next((p.shape for p in module.parameters()), (16,))
    return (draw((6, 40 if shape[-1] < 100 else 2, *shape), 1) * 3).to(dtype).requires_grad_()


def run(module: nn.Module, *x: Tensor) -> list[Tensor]:
    y = module(*x)
    given = draw(y.shape, 2).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [*x, *(p for p in module.parameters() if p.requires_grad)], given)]


def alike(ours: Tensor, theirs: Tensor, narrow: torch.dtype | None = None) -> None:
    """Equal to float32's precision; beside 16-bit dtypes nearly everywhere, and elsewhere the next number."""
    assert ours.dtype is theirs.dtype
    a, b = ours.double(), theirs.double()
    if narrow is None:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * b.abs().max().item())
    else:
        apart = ((a - b).abs() > 1e-5 * b.abs()).double().mean()
        assert apart < 0.01
        torch.testing.assert_close(a, b, rtol=2 * torch.finfo(narrow).eps, atol=1e-5)
