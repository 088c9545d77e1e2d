"""Operators that neither the CPU nor torch_npu computes as device npu needs it, composed of others on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from descend.npu import boxed

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout and its mask. The CPU's kernel would draw from the CPU's default generator."""
    if input.numel() == 0 or train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    mask = torch.empty_like(input, dtype=torch.bool).bernoulli_(1 - p)
    return input.mul(mask).mul_(0 if p == 1 else 1 / (1 - p)), mask


def copy_from(self: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """``dst`` with the values of ``self``."""
    return dst.copy_(self, non_blocking)


def copy_from_and_resize(self: Tensor, dst: Tensor) -> Tensor:
    """``dst`` with the values and sizes of ``self``."""
    return dst.resize_(self.shape).copy_(self)


def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """PyTorch's, which takes classes in int64 alone. Of classes in int32 the result is in int32, as on an Ascend."""
    whole = self.dtype is not torch.int32
    result: Tensor = torch.ops.aten.one_hot.default.decompose(self if whole else self.long(), num_classes)
    return result if whole else result.int()


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """PyTorch's, which the CPU computes of no integers. Of these the counts are integers, too, as on an Ascend."""
    counts: Tensor = _histc_of_floats()(self.double() if self.dtype in _INTEGERS else self, bins, min, max)
    return counts.to(self.dtype)


def histc_out(self: Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: Tensor) -> Tensor:
    """`histc`, written to ``out``."""
    if out.dtype is not self.dtype:
        raise RuntimeError(f"histc: out is {out.dtype} and must have the dtype of the input, {self.dtype}")
    return out.resize_(bins).copy_(histc(self, bins, min, max))


@functools.cache
def _histc_of_floats() -> boxed.Kernel:
    return boxed.Kernel("aten::histc")


def sim_exponential_(input: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """torch_npu's exponential_, which is PyTorch's."""
    return input.zero_() if lambd == float("inf") else input.exponential_(lambd, generator=generator)


# --- the cells of LSTM and GRU: on every device but the CPU PyTorch computes them by fused operators ------------------


def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """hy, cy, and the gates in the order input, forget, cell, output."""
    parts = _plus(_plus(input_gates + hidden_gates, input_bias), hidden_bias).chunk(4, 1)
    i, f, g, o = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()
    cy = (f * cx).addcmul_(i, g)
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the gates, of cx and of the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    dh = torch.zeros_like(cx) if grad_hy is None else grad_hy
    tanh_cy = cy.tanh()
    dc = _through_tanh(dh * o, tanh_cy)
    dc = dc if grad_cy is None else dc.add_(grad_cy)
    parts = [_through_sigmoid(dc * g, i), _through_sigmoid(dc * cx, f), _through_tanh(dc * i, g)]
    gates = torch.cat([*parts, _through_sigmoid(dh * tanh_cy, o)], 1)
    return gates, dc * f, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """hy, and what its gradient needs. Gates are in the order reset, update, new."""
    given = _plus(input_gates, input_bias).chunk(3, 1)
    hidden = _plus(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (given[0] + hidden[0]).sigmoid_(), (given[1] + hidden[1]).sigmoid_()
    n = given[2].addcmul(r, hidden[2]).tanh_()
    return (hx - n).mul_(z).add_(n), torch.cat([r, z, n, hx, hidden[2]], 1)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of both gates, of hx and of both biases."""
    r, z, n, hx, hidden_n = workspace.chunk(5, 1)
    dn = _through_tanh(grad_hy * (1 - z), n)
    dr, dz = _through_sigmoid(dn * hidden_n, r), _through_sigmoid((hx - n).mul_(grad_hy), z)
    given, hidden = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
    return given, hidden, grad_hy * z, given.sum(0) if has_bias else None, hidden.sum(0) if has_bias else None


def _plus(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _through_tanh(grad: Tensor, y: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.tanh_backward(grad, y)
    return result


def _through_sigmoid(grad: Tensor, y: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.sigmoid_backward(grad, y)
    return result


def rotary_mul(without_matrix: Any) -> Callable[..., Tensor]:
    """npu_rotary_mul, whose kernel in torch_npu drops the matrix where CANN has no aclnnRotaryPositionEmbeddingV2."""

    def npu_rotary_mul(
        keyset: Any, self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
    ) -> Tensor:
        if rotate is None:
            result: Tensor = without_matrix.call_boxed(keyset, self, r1, r2, rotary_mode, None)
            return result
        x = self if self.dtype is torch.float64 else self.float()
        cos, sin = (r.to(self.dtype) for r in (r1, r2))
        return (x * cos).addcmul_(x @ rotate.to(x.dtype), sin.to(x.dtype)).to(self.dtype)

    return npu_rotary_mul


def rms_norm_backward(of_contiguous: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """npu_rms_norm_backward of any strides. CANN copies such inputs. By the document that aclnnRmsNormGrad follows for
    Atlas products it refuses them."""

    def npu_rms_norm_backward(
        keyset: Any, dy: Tensor, input: Tensor, gamma: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor]:
        given = (tensor.contiguous() for tensor in (dy, input, gamma, rstd))
        results: tuple[Tensor, Tensor] = of_contiguous.call_boxed(keyset, *given)
        return results

    return npu_rms_norm_backward


KERNELS: dict[str, Callable[..., Any]] = {
    "aten::native_dropout": native_dropout,
    "aten::_copy_from": copy_from,
    "aten::_copy_from_and_resize": copy_from_and_resize,
    "npu::npu_sim_exponential_": sim_exponential_,
    "aten::histc": histc,
    "aten::histc.out": histc_out,
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": gru_cell,
    "aten::_thnn_fused_gru_cell_backward": gru_cell_backward,
}
"""By operator."""
AROUND: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "npu::npu_rotary_mul": rotary_mul,
    "npu::npu_rms_norm_backward": rms_norm_backward,
}
"""By operator, what makes a kernel around torch_npu's."""
