"""The layers of networks.py whose forward or backward pass is an operator."""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional


class Captured(nn.Module):
    """A layer whose forward or backward pass is an operator; its forward pass fills `saved`."""

    result_gradient: ClassVar[str] = ""
    """The backward operator's name for the gradient of the layer's result; a forward operator has none."""
    saved: dict[str, Tensor]
    """The operator's other inputs, by parameter name."""
    in_float32: bool = False
    """Whether its parameters keep full precision where the model is cast to a narrower dtype."""


class RmsNorm(Captured):
    """RMS norm over the last axis: statistics in float32, one rounding to x's dtype."""

    result_gradient = "dy"

    def __init__(self, columns: int, in_float32: bool = False) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(columns))
        self.in_float32 = in_float32

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x; `saved` holds what rms_norm_grad takes besides dy."""
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        self.saved = {"x": x, "rstd": rstd, "gamma": self.gamma}
        return (wide * rstd * self.gamma.float()).to(x.dtype)


class AddRmsNorm(Captured):
    """RMS norm of a sum, which is a result, too: each rounded once."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(columns))

    def forward(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise the sum; `saved` holds what add_rms_norm takes."""
        self.saved = {"x1": x1, "x2": x2, "gamma": self.gamma}
        x = x1.float() + x2.float()
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return (x * rstd * self.gamma.float()).to(x1.dtype), x.to(x1.dtype)


class GemmaRmsNorm(Captured):
    """RMS norm with the weight 1 + gamma, in float32, one rounding to x's dtype."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(columns))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x; `saved` holds what gemma_rms_norm takes."""
        self.saved = {"x": x, "gamma": self.gamma}
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * rstd * (1 + self.gamma.float())).to(x.dtype)


class SwiGlu(Captured):
    """SwiGLU as Llama has it: swish, rounded to the dtype, times another factor."""

    result_gradient = "y_grad"

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """The product; `saved` holds what swi_glu takes, and swi_glu_grad besides y_grad: both factors in one."""
        self.saved = {"x": torch.cat([gate, up], -1)}
        return functional.silu(gate) * up


class Gelu(Captured):
    """GELU by erf."""

    result_gradient = "grad_output"

    def forward(self, x: Tensor) -> Tensor:
        """GELU of x; `saved` holds what gelu_v2 takes, and gelu_backward_v2 besides grad_output."""
        self.saved = {"x": x}
        return functional.gelu(x)


class CrossEntropy(Captured):
    """The loss: in float32, of the scores of each class and the right one."""

    result_gradient = "grad_loss"

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """The mean over the rows; `saved` is for cross_entropy_loss; its gradient takes log_prob, not input."""
        log_prob = functional.log_softmax(scores.float(), -1)
        self.saved = {"input": scores, "target": target, "log_prob": log_prob.to(scores.dtype)}
        return functional.nll_loss(log_prob, target)


class LogLikelihood(nn.Module):
    """The loss of a network that ends in log softmax: the mean over images and places."""

    def forward(self, log_prob: Tensor, target: Tensor) -> Tensor:
        """Of [image, class, row, column]; every place of an image has its target."""
        everywhere = target[:, None, None].expand(-1, *log_prob.shape[2:])
        return functional.nll_loss(log_prob.float(), everywhere)


class Rotary(Captured):
    """Rotary positions on [batch, sequence, head, column]."""

    result_gradient = "dy"

    def forward(self, x: Tensor) -> Tensor:
        """Turn x; `saved` holds what rotary_position_embedding takes, and its gradient besides dy."""
        half = x.shape[-1] // 2
        angle = torch.outer(torch.arange(x.shape[1]).float(), 1000.0 ** (-torch.arange(half) / half))[:, None, :]
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        cos, sin = (torch.cat([a, a], -1)[None] for a in (cosine, sine))
        self.saved = {"x": x, "cos": cos, "sin": sin}
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class LayerNorm(Captured):
    """Layer norm over the last axis: statistics in float32, one rounding to x's dtype."""

    result_gradient = "grad_out"

    def __init__(self, columns: int, in_float32: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))
        self.bias = nn.Parameter(torch.zeros(columns))
        self.in_float32 = in_float32

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x; `saved` holds what layer_norm_backward takes besides grad_out."""
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        rstd = torch.rsqrt(wide.var(-1, correction=0, keepdim=True) + 1e-5)
        self.saved = {"input": x, "mean": mean, "rstd": rstd, "weight": self.weight, "bias": self.bias}
        return ((wide - mean) * rstd * self.weight.float() + self.bias.float()).to(x.dtype)


class DeepNorm(LayerNorm):
    """Layer norm of alpha * x + gx, a residual connection that deep networks scale up."""

    result_gradient = "dy"

    def __init__(self, columns: int, alpha: float) -> None:
        super().__init__(columns)
        self.alpha = alpha

    def forward(self, x: Tensor, gx: Tensor) -> Tensor:
        """Normalise the sum; `saved` holds what deep_norm_grad takes besides dy."""
        y = super().forward(self.alpha * x.float() + gx.float())
        numbers = {name: self.saved[name] for name in ("mean", "rstd")}
        self.saved = {"x": x, "gx": gx, "gamma": self.weight, **numbers, "alpha": torch.tensor(self.alpha)}
        return y.to(x.dtype)


class MaskedSoftmax(Captured):
    """The scaled, masked softmax of attention: computed in float32, one rounding to x's dtype."""

    result_gradient = "grad_output"

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Over the last axis; `saved` holds what scaled_masked_softmax_backward takes besides grad_output."""
        y = torch.softmax((self.scale * x.float()).masked_fill(mask, -10000.0), -1).to(x.dtype)
        self.saved = {"y": y, "mask": mask, "scale": torch.tensor(self.scale)}
        return y


class Softmax(Captured):
    """Softmax over the last axis: computed in float32, one rounding to x's dtype."""

    result_gradient = "grad_output"

    def forward(self, x: Tensor) -> Tensor:
        """`saved` holds what softmax takes, and softmax_backward besides grad_output."""
        output = torch.softmax(x.float(), -1).to(x.dtype)
        self.saved = {"x": x, "output": output}
        return output


class LogSoftmax(Captured):
    """Log softmax over the classes, the second axis: computed in float32, one rounding to x's dtype."""

    result_gradient = "grad_output"

    def forward(self, x: Tensor) -> Tensor:
        """`saved` holds what log_softmax takes, and log_softmax_backward besides grad_output."""
        output = torch.log_softmax(x.float(), 1).to(x.dtype)
        self.saved = {"x": x, "output": output}
        return output


class GroupNorm(Captured):
    """Group norm on [sample, channel, row, column]: in float32, one rounding to x's dtype."""

    result_gradient = "grad_out"

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x; `saved` holds what group_norm takes, and group_norm_backward besides grad_out."""
        weights = self.gamma.float(), self.beta.float()
        sizes = len(x), x.shape[1], x.shape[2:].numel(), self.groups
        y, mean, rstd = torch.native_group_norm(x.float(), *weights, *sizes, 1e-5)
        self.saved = {"input": x, "mean": mean, "rstd": rstd, "gamma": self.gamma, "beta": self.beta}
        return y.to(x.dtype)


class GroupNormSwish(Captured):
    """Group norm, then swish, on [sample, channel, row, column]: in float32, one rounding to x's dtype."""

    result_gradient = "dy"

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x; `saved` holds what group_norm_swish_grad takes besides dy."""
        wide = x.float().view(x.shape[0], self.groups, -1)
        mean = wide.mean(-1)
        rstd = torch.rsqrt(wide.var(-1, correction=0) + 1e-5)
        self.saved = {"mean": mean, "rstd": rstd, "x": x, "gamma": self.gamma, "beta": self.beta}
        xhat = ((wide - mean[..., None]) * rstd[..., None]).view(x.shape)
        z = xhat * self.gamma.float()[:, None, None] + self.beta.float()[:, None, None]
        return functional.silu(z).to(x.dtype)


class Compress(Captured):
    """The compression of native sparse attention: weighted sums of overlapping windows of each sequence."""

    result_gradient = "output_grad"

    def __init__(self, heads: int, width: int = 32, stride: int = 16) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter((1 + 0.1 * torch.randn(width, heads)) / width)

    def starts(self, ends: Tensor) -> Tensor:
        """The first token of each window; `ends` says where the packed sequences end."""
        bounds, width = [0, *ends.tolist()], len(self.weight)
        firsts = [range(begin, end - width + 1, self.stride) for begin, end in itertools.pairwise(bounds)]
        return torch.tensor([first for sequence in firsts for first in sequence])

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """[token, head, column] to [window, head, column]; `saved` is for nsa_compress_grad, W the weight's length."""
        self.saved = {
            "input": x,
            "weight": self.weight,
            "act_seq_len": ends,
            "compress_stride": torch.tensor(self.stride),
        }
        tokens = self.starts(ends)[:, None] + torch.arange(len(self.weight))
        return torch.einsum("cwnd,wn->cnd", x[tokens], self.weight)
