"""Norms, and softmaxes of sums: npu_add_rms_norm_cast, npu_normalize_batch, npu_masked_softmax_with_rel_pos_bias,
npu_attention_update.

    npu_add_rms_norm_cast:  x = x1 + x2; y = x / sqrt(mean(x^2) + epsilon) * gamma, in float32 and in the dtype of x
    npu_normalize_batch:    (x - mean) / (deviation + 1e-5), both of the first seq_len columns, of a row or a sequence
    npu_masked_softmax_with_rel_pos_bias: softmax(x * scale_value + atten_mask + relative_pos_bias)
    npu_attention_update:   sum of out_i exp(lse_i - lse),  lse = log(sum of exp(lse_i))

Documents: torch_npu.npu_attention_update; op-plugin's tests of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_float, check_integer, check_shape, check_within, wide
from descend.npu.composed.refusal import refuse


def npu_add_rms_norm_cast(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y in float32, y in the dtype of x1, 1 / sqrt(...) [..., 1 for each dimension of gamma], and x."""
    operator = "npu_add_rms_norm_cast"
    check_alike(operator, "x1", x1, x2=x2, gamma=gamma)
    check_shape(operator, "x2", x2, x1.shape, "x1")
    count = gamma.dim()
    if not count or list(x1.shape[-count:]) != list(gamma.shape):
        refuse(
            operator, "gamma", f"of shape {list(gamma.shape)}", f"must have the last dimensions of x1, {list(x1.shape)}"
        )
    total = wide(x1) + wide(x2)
    rstd = (total.square().mean(list(range(-count, 0)), keepdim=True) + epsilon).rsqrt()
    y = total * rstd * gamma
    return y, y.to(x1.dtype), rstd, total.to(x1.dtype)


def npu_normalize_batch(input: Tensor, seq_len: Tensor, normalize_type: int = 0) -> Tensor:
    """``input`` [B, C, T], whose row b counts up to ``seq_len[b]``; normalize_type 0: each channel, 1: all together."""
    operator = "npu_normalize_batch"
    check_float(operator, input=input)
    check_integer(operator, "seq_len", seq_len)
    if input.dim() != 3:
        refuse(operator, "input", f"of shape {list(input.shape)}", "must have 3 dimensions")
    if normalize_type not in (0, 1):
        refuse(operator, "normalize_type", normalize_type, "must be 0 or 1")
    check_shape(operator, "seq_len", seq_len, [len(input)], "the rows of input")
    check_within(operator, "seq_len", seq_len, input.shape[2] + 1, f"must be from 1 to {input.shape[2]}", 1)
    x = wide(input)
    out = torch.empty_like(x)
    for row, length in enumerate(seq_len.tolist()):
        part = x[row, :, :length] if normalize_type == 0 else x[row, :, :length].reshape(1, -1)
        out[row] = (x[row] - part.mean(1, keepdim=True)) / (part.std(1, keepdim=True) + 1e-5)
    return out.to(input.dtype)


def npu_masked_softmax_with_rel_pos_bias(
    x: Tensor,
    atten_mask: Tensor | None,
    relative_pos_bias: Tensor,
    scale_value: float = 1.0,
    inner_precision_mode: int = 0,
) -> Tensor:
    """Along the last dimension of ``x`` [B, W, N, S, S] or [B * W, N, S, S].

    ``atten_mask`` is [W, S, S], ``relative_pos_bias`` [N, S, S]; both may have dimensions of 1 between and before.
    """
    operator = "npu_masked_softmax_with_rel_pos_bias"
    check_alike(operator, "x", x, atten_mask=atten_mask, relative_pos_bias=relative_pos_bias)
    if x.dim() not in (4, 5):
        refuse(operator, "x", f"of shape {list(x.shape)}", "must be of shape [B, W, N, S, S] or [B * W, N, S, S]")
    heads, rows, columns = x.shape[-3:]
    scores = wide(x) * scale_value
    if atten_mask is not None:
        windows = atten_mask.numel() // max(1, rows * columns)
        fits = x.shape[1] == windows if x.dim() == 5 else windows and len(x) % windows == 0
        if list(atten_mask.shape[-2:]) != [rows, columns] or not fits:
            rule = f"must have {rows} and {columns} last, and a part for each window of x, {list(x.shape)}"
            refuse(operator, "atten_mask", f"of shape {list(atten_mask.shape)}", rule)
        parts = scores.view(-1, windows, heads, rows, columns)
        scores = (parts + atten_mask.reshape(windows, 1, rows, columns)).view(x.shape)
    if relative_pos_bias.numel() != heads * rows * columns or list(relative_pos_bias.shape[-3:]) != [
        heads,
        rows,
        columns,
    ]:
        rule = f"must be of shape {[heads, rows, columns]}, or with ones before it"
        refuse(operator, "relative_pos_bias", f"of shape {list(relative_pos_bias.shape)}", rule)
    return (scores + relative_pos_bias.reshape(heads, rows, columns)).softmax(-1).to(x.dtype)


def npu_attention_update(lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int) -> tuple[Tensor, Tensor]:
    """The whole attention [N, D], of its parts ``local_out`` and their ``lse`` [N] in float32; and the whole lse.

    Without update_type 1 the second result is empty.
    """
    operator = "npu_attention_update"
    if update_type not in (0, 1):
        refuse(operator, "update_type", update_type, "must be 0 or 1")
    if not lse or len(lse) != len(local_out):
        refuse(operator, "lse and local_out", f"{len(lse)} and {len(local_out)} tensors", "must be as many, 1 or more")
    first = local_out[0]
    if first.dim() != 2:
        refuse(operator, "local_out", f"of shape {list(first.shape)}", "must be of shape [N, D]")
    for sums, out in zip(lse, local_out, strict=True):
        check_alike(operator, "local_out", first, lse=sums if first.dtype == torch.float64 else None, out=out)
        check_shape(operator, "local_out", out, first.shape, "the first one")
        check_shape(operator, "lse", sums, [len(first)], "local_out")
    terms = torch.stack([wide(sums) for sums in lse])
    total = terms.logsumexp(0)
    weights = (terms - total).exp().nan_to_num(0.0)
    out = (torch.stack([wide(out) for out in local_out]) * weights.unsqueeze(-1)).sum(0).to(first.dtype)
    return out, total if update_type else total.new_empty(0)
