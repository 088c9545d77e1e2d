"""The compression of native sparse attention, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax import Array

from descend.jax import definitions
from descend.jax.batching import apart, batch_second
from descend.jax.library import Operator, Results, Values

_FORWARD = Operator("nsa_compress", definitions.nsa_compress)
_BACKWARD = Operator("nsa_compress_grad", definitions.nsa_compress_grad)


def nsa_compress(
    input: Array,
    weight: Array,
    act_seq_len: Sequence[int] | None = None,
    *,
    layout: str | None = "TND",
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
) -> Array:
    """One token for each window of tokens, by a learned weight. Differentiable in ``input`` and ``weight``::

        output[c, n, :] = sum over w < W of weight[w, n] * input[start(c) + w, n, :]

    Shapes: ``input`` [T, N, D], ``weight`` [W, N] of the same floating dtype, W = ``compress_block_size``. Windows
    begin every ``compress_stride`` tokens of each sequence and end within it; ``act_seq_len`` tells where the sequences
    end (``act_seq_len_type`` 0) or how long each is (1), None: one sequence. Returns [windows, N, D].

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnNsaCompress.
    """
    output: Array
    (output,) = _FORWARD(
        input=input,
        weight=weight,
        act_seq_len=act_seq_len,
        layout=layout,
        compress_block_size=compress_block_size,
        compress_stride=compress_stride,
        act_seq_len_type=act_seq_len_type,
    )
    return output


def nsa_compress_grad(
    output_grad: Array,
    input: Array,
    weight: Array,
    act_seq_len: Sequence[int] | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
) -> tuple[Array, Array]:
    """Gradients of the compression; differentiable in all three arrays::

        weight_grad[w, n]   = sum over c, d of output_grad[c, n, d] * input[start(c) + w, n, d]
        input_grad[t, n, :] = sum over (c, w) with start(c) + w = t of weight[w, n] * output_grad[c, n, :]

    Shapes: ``output_grad`` [windows, N, D], the rest as in `nsa_compress`. Returns ``input_grad`` like ``input`` and
    ``weight_grad`` like ``weight``.

    Raises AclnnError (a ValueError) where the shapes or dtypes do not fit. Source: aclnnNsaCompressGrad.
    """
    input_grad, weight_grad = _BACKWARD(
        output_grad=output_grad,
        input=input,
        weight=weight,
        act_seq_len=act_seq_len,
        compress_block_size=compress_block_size,
        compress_stride=compress_stride,
        act_seq_len_type=act_seq_len_type,
        layout=layout,
    )
    return input_grad, weight_grad


_ATTRIBUTES = ("act_seq_len", "compress_block_size", "compress_stride", "act_seq_len_type", "layout")


def _transpose(values: Values, cotangents: Sequence[Array | None], wanted: Sequence[str]) -> Values:
    (output_grad,) = cotangents
    if output_grad is None:
        return {"input": None, "weight": None}
    named = {name: values[name] for name in _ATTRIBUTES}
    input_grad, weight_grad = nsa_compress_grad(output_grad, values["input"], values["weight"], **named)
    return {"input": input_grad, "weight": weight_grad}


_FORWARD.differentiable(("input", "weight"), definitions.nsa_compress_tangents, _transpose)

# A batch becomes more heads: heads share neither weights nor sums.


@_FORWARD.batched
def _batched_forward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    arrays = {name: batch_second(values[name], dims.get(name), size) for name in ("input", "weight")}
    return tuple(apart(r, 1, size) for r in _FORWARD(**values | arrays)), (1,)


@_BACKWARD.batched
def _batched_backward(size: int, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    arrays = {name: batch_second(values[name], dims.get(name), size) for name in ("output_grad", "input", "weight")}
    return tuple(apart(r, 1, size) for r in _BACKWARD(**values | arrays)), (1, 1)
