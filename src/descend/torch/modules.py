"""The operators as modules, interchangeable with PyTorch's where it has them: arguments, parameters, state dicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.fx import wrap

from descend.torch.annotated import with_types
from descend.torch.group_norm import group_norm, sizes
from descend.torch.group_norm_swish import group_norm_swish
from descend.torch.layer_norm import layer_norm
from descend.torch.library import constant
from descend.torch.nsa_compress import nsa_compress
from descend.torch.rms_norm import rms_norm
from descend.torch.scaled_masked_softmax import scaled_masked_softmax

Device = torch.device | str | int | None


@wrap
def default_epsilon(x: Tensor) -> float:
    """What PyTorch's RMSNorm takes for None: the machine epsilon of float64, else of float32, 16-bit inputs included.

    ``torch.fx`` records the call, since while it traces there is no dtype yet.
    """
    return torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps


def _parameter(shape: Sequence[int], wanted: bool, device: Device, dtype: torch.dtype | None) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if wanted else None


class _Module(nn.Module):
    """What the modules have in common."""

    def __prepare_scriptable__(self) -> NoReturn:
        """What ``torch.jit.script`` asks for first. Raises NotImplementedError."""
        raise NotImplementedError(
            f"torch.jit.script cannot compile descend.torch.{type(self).__name__}; call torch.jit.trace instead."
        )


class _Affine(_Module):
    """What has a weight that begins as ones and a bias that begins as zeros, each perhaps absent."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class RMSNorm(_Module):
    """RMS norm over the last dimensions, like ``torch.nn.RMSNorm``::

        y = x / sqrt(mean(x * x) + eps) * weight

    ``normalized_shape`` is what the input's last dimensions are; ``eps`` None is float32's machine epsilon, float64's
    for float64 input; without ``elementwise_affine`` there is no ``weight``. Input and output have one shape and dtype,
    whatever the weight's. Raises AclnnError (a ValueError) where the input does not fit. Source: aclnnRmsNorm.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", _parameter(self.normalized_shape, elementwise_affine, device, dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1."""
        if self.weight is not None:
            nn.init.ones_(self.weight)

    @with_types
    def forward(self, x: Tensor) -> Tensor:
        """Normalises ``x``."""
        weight = constant(1.0, self.normalized_shape, x) if self.weight is None else self.weight
        eps = default_epsilon(x) if self.eps is None else self.eps
        return rms_norm(x, weight, eps)[0]

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LayerNorm(_Affine):
    """Layer norm over the last dimensions, like ``torch.nn.LayerNorm``::

        y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias

    ``normalized_shape`` is what the input's last dimensions are; without ``elementwise_affine`` there is neither
    ``weight`` nor ``bias``, without ``bias`` the weight alone. Input and output have one shape and dtype, whatever the
    parameters'. Raises AclnnError (a ValueError) where the input does not fit. Source: aclnnLayerNorm.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", _parameter(self.normalized_shape, elementwise_affine, device, dtype))
        self.register_parameter("bias", _parameter(self.normalized_shape, elementwise_affine and bias, device, dtype))
        self.reset_parameters()

    @with_types
    def forward(self, input: Tensor) -> Tensor:
        """Normalises ``input``."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)[0]

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


@wrap
def normalise_groups(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Group norm of [N, C, ...]. ``torch.fx`` records the call, since while it traces there is no shape yet."""
    return group_norm(x, weight, bias, *sizes(x), num_groups, eps)[0]


class GroupNorm(_Affine):
    """Group norm, like ``torch.nn.GroupNorm``::

        y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias

    Input [N, C, ...] with C = ``num_channels``, which ``num_groups`` divides; without ``affine`` there is neither
    ``weight`` nor ``bias``, without ``bias`` the weight alone. Input and output have one shape and dtype, whatever the
    parameters'; the output is contiguous.

    Raises ValueError where num_groups is not positive or does not divide num_channels, AclnnError (a ValueError) where
    the input does not fit. Source: aclnnGroupNorm.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        _positive(num_groups=num_groups)
        if num_channels % num_groups:
            raise ValueError(f"num_channels is {num_channels}, but must be a multiple of num_groups, {num_groups}.")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self.register_parameter("weight", _parameter((num_channels,), affine, device, dtype))
        self.register_parameter("bias", _parameter((num_channels,), affine and bias, device, dtype))
        self.reset_parameters()

    @with_types
    def forward(self, input: Tensor) -> Tensor:
        """Normalises ``input``."""
        return normalise_groups(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class GroupNormSwish(GroupNorm):
    """Group norm and swish in one: ``torch.nn.GroupNorm`` followed, for ``swish_scale`` 1, by ``torch.nn.SiLU``::

        z = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        y = z * sigmoid(swish_scale * z)

    Input and parameters are those of `GroupNorm`; without ``activate_swish`` it is the norm alone. Raises what that
    raises. Source: aclnnGroupNormSwish.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        activate_swish: bool = True,
        swish_scale: float = 1.0,
    ) -> None:
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, bias=bias)
        self.activate_swish = activate_swish
        self.swish_scale = swish_scale

    @with_types
    def forward(self, input: Tensor) -> Tensor:
        """Normalises and activates ``input``."""
        channels = (self.num_channels,)
        weight = constant(1.0, channels, input) if self.weight is None else self.weight
        bias = constant(0.0, channels, input) if self.bias is None else self.bias
        return group_norm_swish(
            input, weight, bias, self.num_groups, "NCHW", self.eps, self.activate_swish, self.swish_scale
        )[0]

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"{super().extra_repr()}, activate_swish={self.activate_swish}, swish_scale={self.swish_scale}"


class ScaledMaskedSoftmax(_Module):
    """Softmax of attention scores: scaled, masked, over the last axis, as one operator::

        y = softmax(where(mask, -10000, scale * x))

    With ``fix_triu_mask`` the mask is ignored, and what lies above the diagonal of the last two axes is masked. There
    are no parameters. Raises AclnnError (a ValueError) where input and mask do not fit. Source:
    aclnnScaledMaskedSoftmax.
    """

    def __init__(self, scale: float = 1.0, fix_triu_mask: bool = False) -> None:
        super().__init__()
        self.scale = scale
        self.fix_triu_mask = fix_triu_mask

    @with_types
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The softmax of ``x``; ``mask`` is bool, true where masked, and broadcasts to ``x``."""
        return scaled_masked_softmax(x, mask, self.scale, self.fix_triu_mask)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"scale={self.scale}, fix_triu_mask={self.fix_triu_mask}"


class NsaCompress(_Module):
    """Native sparse attention's compression of each window of tokens to one, by a learned weight::

        y[c, n, :] = sum over w < W of weight[w, n] * x[start(c) + w, n, :]

    Input [T, num_heads, D], the tokens of all sequences one sequence after the other; output [windows, num_heads, D].
    ``weight`` [compress_block_size, num_heads] begins as a window's mean. Raises ValueError where the window's size or
    stride is not positive, AclnnError (a ValueError) where the input does not fit. Source: aclnnNsaCompress.
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_heads: int,
        compress_block_size: int,
        compress_stride: int,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _positive(compress_block_size=compress_block_size, compress_stride=compress_stride)
        self.num_heads = num_heads
        self.compress_block_size = compress_block_size
        self.compress_stride = compress_stride
        self.weight = nn.Parameter(torch.empty(compress_block_size, num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets each weight to 1 / compress_block_size, a window's mean."""
        nn.init.constant_(self.weight, 1 / self.compress_block_size)

    @with_types
    def forward(self, input: Tensor, act_seq_len: Sequence[int] | None = None, act_seq_len_type: int = 0) -> Tensor:
        """Compresses ``input``; ``act_seq_len`` as for `descend.torch.nsa_compress`."""
        return nsa_compress(
            input,
            self.weight,
            act_seq_len,
            compress_block_size=self.compress_block_size,
            compress_stride=self.compress_stride,
            act_seq_len_type=act_seq_len_type,
        )

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return (
            f"{self.num_heads}, compress_block_size={self.compress_block_size}, compress_stride={self.compress_stride}"
        )


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(map(index, normalized_shape if isinstance(normalized_shape, Iterable) else [normalized_shape]))


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}, but must be positive.")
