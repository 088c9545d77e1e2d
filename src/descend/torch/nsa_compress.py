"""The compression of native sparse attention, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from descend.torch import definitions
from descend.torch.batching import batch_second
from descend.torch.derivatives import differentiate_backward, keep
from descend.torch.library import LIBRARY, Operator, constant_sizes
from descend.torch.sharding import Split, sharded

_FORWARD = Operator("nsa_compress")
_BACKWARD = Operator("nsa_compress_grad")


def nsa_compress(
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None = None,
    *,
    layout: str | None = "TND",
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
) -> Tensor:
    """One token for each window of tokens, by a learned weight. Differentiable in ``input`` and ``weight``::

        output[c, n, :] = sum over w < W of weight[w, n] * input[start(c) + w, n, :]

    Shapes: ``input`` [T, N, D], ``weight`` [W, N] of the same floating dtype, W = ``compress_block_size``. Windows
    begin every ``compress_stride`` tokens of each sequence and end within it; ``act_seq_len`` tells where the sequences
    end (``act_seq_len_type`` 0) or how long each is (1), None: one sequence. Returns [windows, N, D].

    Under autocast it runs in the lower precision, as matrix products do. Raises AclnnError (a ValueError) where the
    shapes or dtypes do not fit. Source: aclnnNsaCompress.
    """
    result: Tensor = _FORWARD(
        input,
        weight,
        constant_sizes(act_seq_len),
        layout=layout,
        compress_block_size=compress_block_size,
        compress_stride=compress_stride,
        act_seq_len_type=act_seq_len_type,
    )
    return result


def nsa_compress_grad(
    output_grad: Tensor,
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> tuple[Tensor, Tensor]:
    """Gradients of the compression; differentiable in all three tensors::

        weight_grad[w, n]   = sum over c, d of output_grad[c, n, d] * input[start(c) + w, n, d]
        input_grad[t, n, :] = sum over (c, w) with start(c) + w = t of weight[w, n] * output_grad[c, n, :]

    Shapes: ``output_grad`` [windows, N, D], the rest as in `nsa_compress`. Returns ``input_grad`` like ``input`` and
    ``weight_grad`` like ``weight``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnNsaCompressGrad.
    """
    result: tuple[Tensor, Tensor] = _BACKWARD(
        output_grad,
        input,
        weight,
        constant_sizes(act_seq_len),
        compress_block_size=compress_block_size,
        compress_stride=compress_stride,
        act_seq_len_type=act_seq_len_type,
        layout=layout,
    )
    return result


@_FORWARD.fake
def _fake_forward(
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None = None,
    *,
    layout: str | None = "TND",
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
) -> Tensor:
    windows = definitions.count_windows(
        input.shape[0], act_seq_len, compress_block_size, compress_stride, act_seq_len_type
    )
    return input.new_empty([windows, *input.shape[1:]])


@_BACKWARD.fake
def _fake_backward(output_grad: Tensor, input: Tensor, weight: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return input.new_empty(input.shape), weight.new_empty(weight.shape)


class _NsaCompress(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keyset: Any,
        named: dict[str, Any],
        input: Tensor,
        weight: Tensor,
        act_seq_len: Sequence[int] | None,
    ) -> Any:
        output = _FORWARD.forward(keyset, (input, weight, act_seq_len), named)
        ctx.save_for_backward(keep(input), keep(weight, ctx.needs_input_grad[2]))  # its gradient does not ask for it
        ctx.act_seq_len, ctx.named = act_seq_len, named
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, output_grad: Tensor | None) -> Any:
        input, weight = ctx.saved_tensors
        input_grad = weight_grad = None
        if output_grad is not None:
            input_grad, weight_grad = _BACKWARD.overload(output_grad, input, weight, ctx.act_seq_len, **ctx.named)
        return None, None, input_grad, weight_grad, None


_FORWARD.differentiable(_NsaCompress, definitions.nsa_compress)
differentiate_backward(_BACKWARD, definitions.nsa_compress_grad)

# A batch becomes more heads: heads share neither weights nor sums.


@_FORWARD.batched
def _batched_forward(
    size: int, dims: list[int | None], input: Tensor, weight: Tensor, act_seq_len: Sequence[int] | None, **named: Any
) -> tuple[Any, Any]:
    output = _FORWARD.overload(
        batch_second(input, dims[0], size), batch_second(weight, dims[1], size), act_seq_len, **named
    )
    return output.unflatten(1, (size, -1)), 1


@_BACKWARD.batched
def _batched_backward(
    size: int,
    dims: list[int | None],
    output_grad: Tensor,
    input: Tensor,
    weight: Tensor,
    act_seq_len: Sequence[int] | None,
    **named: Any,
) -> tuple[Any, Any]:
    tensors = [batch_second(t, d, size) for t, d in zip((output_grad, input, weight), dims, strict=False)]
    results = _BACKWARD.overload(*tensors, act_seq_len, **named)
    return tuple(r.unflatten(1, (size, -1)) for r in results), (1, 1)


@sharded(_FORWARD)
def _sharded_forward(input: Tensor, weight: Tensor, act_seq_len: Sequence[int] | None, **_: Any) -> Iterable[Split]:
    return [Split((1, 1), (1,)), Split((2, None), (2,))]


@sharded(_BACKWARD)
def _sharded_backward(
    output_grad: Tensor, input: Tensor, weight: Tensor, act_seq_len: Sequence[int] | None, **_: Any
) -> Iterable[Split]:
    return [Split((1, 1, 1), (1, 1)), Split((2, 2, None), (2, "sum"))]


def _autocast(input: Tensor, weight: Tensor, act_seq_len: Sequence[int] | None = None, **named: Any) -> Tensor:
    lower = torch.get_autocast_dtype("cpu")
    # float64 stays, as in PyTorch's own casts, and so does what is no floating tensor: the operator refuses it.
    input, weight = (
        t.to(lower) if t.is_floating_point() and t.dtype is not torch.float64 else t for t in (input, weight)
    )
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        result: Tensor = _FORWARD.overload(input, weight, act_seq_len, **named)
    return result


LIBRARY.impl("nsa_compress", _autocast, "AutocastCPU")
