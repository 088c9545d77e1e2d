"""Parts of an attention, for programs that compose it: two results that become one, and a softmax with its bias.

    npu_ring_attention_update: two attentions of the same queries, over two parts of the keys, become one over both:
        max = maximum(prev_max, cur_max)
        sum = prev_sum * exp(prev_max - max) + cur_sum * exp(cur_max - max)
        out = (prev_out * prev_sum * exp(prev_max - max) + cur_out * cur_sum * exp(cur_max - max)) / sum
    npu_attention_update: the same of any number of parts: sum of out_i exp(lse_i - lse), lse = log(sum of exp(lse_i))
    npu_masked_softmax_with_rel_pos_bias: softmax(x * scale_value + atten_mask + relative_pos_bias)
    npu_attn_softmax_backward_: y * (dy - sum of y * dy along a row), dy = grad_output @ values^T

Documents: torch_npu.npu_ring_attention_update, npu_attention_update; aclnnRingAttentionUpdate; op-plugin's
test_masked_softmax_with_rel_pos_bias.py and test_npu_attn_softmax.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_float, check_shape, wide
from descend.npu.composed.attention.layouts import COPIES
from descend.npu.composed.refusal import refuse

_OPERATOR = "npu_ring_attention_update"


def npu_ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    actual_seq_qlen: Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """The result of attention and its statistics.

    The results of layout SBH are [S, B, N * D], their statistics [B, N, S, 8] in float32. Those of TND are [T, N, D]
    and [T, N, 8]. There input_softmax_layout TND means statistics that have row after row. With any other a sequence
    has head after head, as npu_fusion_attention gives it, and ``actual_seq_qlen`` is 0 and the sequences' ends.
    """
    previous, current = prev_attn_out, cur_attn_out
    check_float(_OPERATOR, prev_attn_out=previous, cur_attn_out=current)
    if previous.dim() != 3:
        refuse(_OPERATOR, "prev_attn_out", f"of shape {list(previous.shape)}", "must have 3 dimensions")
    check_shape(_OPERATOR, "cur_attn_out", current, previous.shape, "prev_attn_out")
    if input_layout not in ("SBH", "TND"):
        refuse(_OPERATOR, "input_layout", repr(input_layout), "must be 'SBH' or 'TND'")
    if input_softmax_layout not in ("", "SBH", "TND"):
        refuse(_OPERATOR, "input_softmax_layout", repr(input_softmax_layout), "must be '', 'SBH' or 'TND'")
    heads = prev_softmax_max.shape[1] if prev_softmax_max.dim() > 1 else 0
    if input_layout == "SBH":
        length, batch, width = previous.shape
        if not heads or width % heads:
            refuse(
                _OPERATOR,
                "prev_softmax_max",
                f"of shape {list(prev_softmax_max.shape)}",
                "must be of shape [B, N, S, 8]",
            )
        shape = [batch, heads, length, COPIES]
    else:
        shape = [*previous.shape[:2], COPIES]
    statistics = {
        "prev_softmax_max": prev_softmax_max,
        "prev_softmax_sum": prev_softmax_sum,
        "cur_softmax_max": cur_softmax_max,
        "cur_softmax_sum": cur_softmax_sum,
    }
    check_float(_OPERATOR, **statistics)
    for name, tensor in statistics.items():
        check_shape(_OPERATOR, name, tensor, shape, "prev_attn_out and the heads")
    if input_layout == "TND" and input_softmax_layout != "TND":
        order = _places(actual_seq_qlen, previous.shape[0], heads)
        rows = {name: each.reshape(-1, COPIES)[order].view(shape) for name, each in statistics.items()}
        result, *both = npu_ring_attention_update(
            previous, cur_attn_out=current, **rows, input_layout="TND", input_softmax_layout="TND"
        )
        inverse = order.argsort()
        largest, total = (each.view(-1, COPIES)[inverse].view(shape) for each in both)
        return result, largest, total
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    before = (prev_softmax_max - largest).exp_().mul_(prev_softmax_sum)
    after = (cur_softmax_max - largest).exp_().mul_(cur_softmax_sum)
    total = before + after

    def weighted(out: Tensor, weight: Tensor) -> Tensor:
        share = (weight / total)[..., :1]
        if input_layout == "TND":
            return wide(out) * share
        return wide(out).view(length, batch, heads, -1) * share.permute(2, 0, 1, 3)

    result = weighted(previous, before).add_(weighted(current, after))
    return result.reshape(previous.shape).to(previous.dtype), largest, total


def _places(ends: Tensor | None, length: int, heads: int) -> Tensor:
    """For each row and head, in this order, its place among statistics in which a sequence has head after head."""
    if ends is None or ends.dim() != 1 or ends.dtype != torch.int64:
        got = "None" if ends is None else f"of shape {list(ends.shape)} and {ends.dtype}"
        refuse(_OPERATOR, "actual_seq_qlen", got, "must be [B + 1] of int64 in layout TND")
    cuts: list[int] = ends.tolist()
    if cuts[:1] != [0] or cuts != sorted(cuts) or cuts[-1] > length:
        refuse(_OPERATOR, "actual_seq_qlen", cuts, f"must begin with 0, not decrease, and end within {length} rows")
    places = torch.arange(length * heads)
    pieces = places.split([(end - begin) * heads for begin, end in itertools.pairwise([*cuts, length])])
    return torch.cat([piece.view(heads, len(piece) // max(1, heads)).T.flatten() for piece in pieces])


def npu_attention_update(
    lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int
) -> tuple[Tensor, Tensor | None]:
    """The whole attention [N, D], of its parts ``local_out`` and their ``lse`` [N] in float32; and the whole lse.

    Without update_type 1 the second result is None, as torch_npu gives it.
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
    return out, total if update_type else None


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


def npu_attn_softmax_backward_(input: Tensor, grad_output: Tensor, values: Tensor) -> Tensor:
    """``input`` [..., Q, K], which holds a softmax, and then the gradient of what that was taken of.

    ``grad_output`` [..., Q, D] is the gradient of the product of the softmax and ``values`` [..., K, D].
    """
    operator = "npu_attn_softmax_backward_"
    check_alike(operator, "input", input, grad_output=grad_output, values=values)
    if grad_output.dim() < 2 or values.dim() < 2 or grad_output.shape[-1] != values.shape[-1]:
        rule = f"must be a matrix, or several, with the columns of grad_output, of shape {list(grad_output.shape)}"
        refuse(operator, "values", f"of shape {list(values.shape)}", rule)
    dy = wide(grad_output) @ wide(values).transpose(-2, -1)
    check_shape(operator, "input", input, dy.shape, "grad_output @ values^T")
    return input.copy_(torch._softmax_backward_data(dy, wide(input).to(dy.dtype), -1, dy.dtype))
