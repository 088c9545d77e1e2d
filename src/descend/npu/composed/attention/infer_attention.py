"""Attention as generation calls it: npu_fused_infer_attention_score (and version 2) and its forerunners.

    out = softmax(scale * query @ key^T + pse_shift, where seen) @ value;    lse = log of the sum of exp of these scores

A few queries are computed at a time, in float32; results are rounded once. A query that sees no key gives 0, and its
lse is infinite. A sink of a head is one more score, whose value is 0.

sparse_mode 0: atten_mask, and with it pre_tokens and next_tokens from the diagonal; 1: atten_mask alone; 2: causal from
the first query and key; 3: causal to the last query and key; 4: pre_tokens and next_tokens from the diagonal of the
last. A single query without a rotary part has no sparse_mode: it sees the keys that atten_mask
does not hide. The lengths of queries have no effect on a single query.

Documents: torch_npu.npu_fused_infer_attention_score, npu_fused_infer_attention_score_v2, npu_prompt_flash_attention,
npu_incre_flash_attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_together, wide
from descend.npu.composed.attention.layouts import Lengths, as_bnsd, from_bnsd, rows_of_pages
from descend.npu.composed.memory import row_blocks
from descend.npu.composed.refusal import refuse, refuse_quantised

FAR = 2**31 - 1
COMPRESSED = 2048
"""Rows and columns of the mask that stands for a causal one, or a band."""

SERVED = (
    *("BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"),
    *("TND", "TND_NTD", "NTD_TND"),
)
"""What input_layout may be: how query, key and value are laid out, and behind the line how the result is."""


class Options(NamedTuple):
    """What the four operators call by different names."""

    heads: int
    key_heads: int
    scale: float
    layout: str
    mode: int = 0
    before: int = FAR
    after: int = FAR
    pse: Tensor | None = None
    mask: Tensor | None = None
    lengths: Lengths = None
    key_lengths: Lengths = None
    table: Tensor | None = None
    block_size: int = 0
    query_rope: Tensor | None = None
    key_rope: Tensor | None = None
    sink: Tensor | None = None
    wants_lse: bool = False


OF_QUANTISATION = (
    *("dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2", "antiquant_scale"),
    *("antiquant_offset", "key_antiquant_scale", "key_antiquant_offset", "value_antiquant_scale"),
    *("value_antiquant_offset", "key_rope_antiquant_scale", "deq_scale1", "deq_scale2", "dequant_scale_query"),
    *("dequant_scale_key", "dequant_offset_key", "dequant_scale_value", "dequant_offset_value"),
    *("dequant_scale_key_rope", "quant_scale_out", "quant_offset_out", "quant_scale_p", "out_dtype"),
)
"""Parameters of quantised calls, which are refused."""
OTHERS_REFUSED = (
    *("padding_mask", "query_padding_size", "kv_padding_size", "key_shared_prefix", "value_shared_prefix"),
    "actual_shared_prefix_len",
)
"""Other parameters that are refused."""


def npu_fused_infer_attention_score(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """The attention, and lse in float32: [B, N, S, 1] or [T, N, 1] with softmax_lse_flag, else empty."""
    operator = "npu_fused_infer_attention_score"
    names = {"num_heads": "heads", "scale": "scale", "softmax_lse_flag": "wants_lse"}
    names |= {"actual_seq_lengths": "lengths", "actual_seq_lengths_kv": "key_lengths"}
    return _attend(operator, query, key, value, _options(operator, given, names))


def npu_fused_infer_attention_score_v2(
    query: Tensor, key: Tensor, value: Tensor, **given: Any
) -> tuple[Tensor, Tensor]:
    """As `npu_fused_infer_attention_score`, with return_softmax_lse, and learnable_sink [N]."""
    operator = "npu_fused_infer_attention_score_v2"
    names = {"num_query_heads": "heads", "softmax_scale": "scale", "return_softmax_lse": "wants_lse"}
    names |= {"actual_seq_qlen": "lengths", "actual_seq_kvlen": "key_lengths", "learnable_sink": "sink"}
    return _attend(operator, query, key, value, _options(operator, given, names))


def npu_fused_infer_attention_score_out(*tensors: Tensor, out: list[Tensor], **given: Any) -> tuple[Tensor, Tensor]:
    """Both results, written to the two tensors of ``out``. No workspace is needed."""
    given.pop("workspace", None)
    return _written("npu_fused_infer_attention_score", out, npu_fused_infer_attention_score(*tensors, **given))


def npu_fused_infer_attention_score_v2_out(*tensors: Tensor, out: list[Tensor], **given: Any) -> tuple[Tensor, Tensor]:
    """Both results, written to the two tensors of ``out``. No workspace is needed."""
    given.pop("workspace", None)
    return _written("npu_fused_infer_attention_score_v2", out, npu_fused_infer_attention_score_v2(*tensors, **given))


def _npu_fused_infer_attention_score_get_max_workspace(*_tensors: Tensor, **_given: Any) -> Tensor:
    """An empty tensor."""
    return torch.empty(0, dtype=torch.uint8)


def _npu_fused_infer_attention_score_v2_get_max_workspace(*_tensors: Tensor, **_given: Any) -> Tensor:
    """An empty tensor."""
    return torch.empty(0, dtype=torch.uint8)


def _written(operator: str, out: list[Tensor], results: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """``out`` with the results. Its second tensor may be of any shape where there is no lse, and is 0."""
    for to, of in zip(out, results, strict=True):
        if of.numel() and to.shape != of.shape:
            refuse(operator, "out", f"of shape {list(to.shape)}", f"must be of shape {list(of.shape)}")
        to.copy_(of) if of.numel() else to.zero_()
    return out[0], out[1]


def npu_prompt_flash_attention(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    """The attention."""
    operator = "npu_prompt_flash_attention"
    names = {"num_heads": "heads", "scale_value": "scale"}
    names |= {"actual_seq_lengths": "lengths", "actual_seq_lengths_kv": "key_lengths"}
    return _attend(operator, query, key, value, _options(operator, {"next_tokens": 0} | given, names))[0]


def npu_incre_flash_attention(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    """The attention of one query each; actual_seq_lengths are of the keys."""
    operator = "npu_incre_flash_attention"
    names = {"num_heads": "heads", "scale_value": "scale", "actual_seq_lengths": "key_lengths"}
    options = _options(operator, given, names)
    if options.layout not in ("BSH", "BSND", "BNSD"):
        refuse(operator, "input_layout", repr(options.layout), "must be 'BSH', 'BSND' or 'BNSD'")
    if query.dim() > 2 and query.shape[2 if options.layout == "BNSD" else 1] != 1:
        refuse(operator, "query", f"of shape {list(query.shape)}", "must have one query, S 1")
    return _attend(operator, query, key, value, options)[0]


COMMON = {
    "num_key_value_heads": "key_heads", "input_layout": "layout", "sparse_mode": "mode", "pre_tokens": "before",
    "next_tokens": "after", "pse_shift": "pse", "atten_mask": "mask", "block_table": "table",
    "block_size": "block_size", "query_rope": "query_rope", "key_rope": "key_rope",
}  # fmt: skip


def _options(operator: str, given: dict[str, Any], names: dict[str, str]) -> Options:
    refuse_quantised(operator, **{name: given.get(name) for name in OF_QUANTISATION})
    for name in OTHERS_REFUSED:
        if given.get(name) is not None:
            refuse(operator, name, "given", "must be None: it is not served")
    known: dict[str, Any] = {"heads": 1, "key_heads": 0, "scale": 1.0, "layout": "BSH"}
    found = {own: given[name] for name, own in (COMMON | names).items() if name in given}
    return Options(**(known | found))


class Part(NamedTuple):
    """A sequence: its batch and rows among the queries, and among the keys."""

    batch: int
    rows: slice
    key_batch: int
    keys: slice


class _Call(NamedTuple):
    """Tensors as [B, N, S, D], in the arithmetic's dtype; of TND B is 1. ``parts`` has the sequences."""

    query: Tensor
    key: Tensor
    value: Tensor
    parts: list[Part]
    single: bool
    """Whether a query comes alone, so that sparse_mode has no effect."""


def _attend(operator: str, query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    call = _checked(operator, query, key, value, options)
    options = options._replace(mask=_mask(operator, options, call))
    q, k, v = call.query, call.key, call.value
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    lse = torch.full((*q.shape[:3], 1), torch.inf, dtype=q.dtype)
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    for number, (b, rows, key_batch, columns) in enumerate(call.parts):
        keys, values = k[key_batch, :, columns], v[key_batch, :, columns]
        count = keys.shape[1]
        if not count:
            continue
        for part in row_blocks(rows.stop - rows.start, q.shape[1] * count):
            begin, end = part.start, part.stop
            at = (b, slice(None), slice(rows.start + begin, rows.start + end))
            own = q[at].unflatten(0, (heads, group)).flatten(1, 2)
            scores = (own @ keys.transpose(1, 2)).mul_(options.scale).view(-1, end - begin, count)
            if options.pse is not None:
                pse = options.pse[b if options.pse.shape[0] > 1 else 0]
                scores += pse[:, begin:end, :count] if pse.shape[1] > 1 else pse[..., :count]
            hidden = _hidden(options, call, number, begin, end)
            if hidden is not None:
                scores.masked_fill_(hidden, -torch.inf)
            if options.sink is not None:
                sink = options.sink.to(q.dtype).view(-1, 1, 1).expand(-1, end - begin, 1)
                scores = torch.cat((scores, sink), -1)
            sums = scores.logsumexp(-1, keepdim=True)
            weights = (scores - sums).exp_().masked_fill_(sums == -torch.inf, 0)[..., :count]
            product = weights.reshape(heads, -1, count) @ values
            out[at] = product.view(q.shape[1], end - begin, -1)
            lse[at] = sums.masked_fill(sums == -torch.inf, torch.inf)
    layout = options.layout.split("_")
    result = _laid_out(out, layout[-1]).to(query.dtype)
    if not options.wants_lse:
        return result, torch.zeros(0)
    return result, (lse[0].transpose(0, 1).contiguous() if layout[0] in ("TND", "NTD") else lse).float()


def _hidden(options: Options, call: _Call, number: int, begin: int, end: int) -> Tensor | None:
    """[1, queries, keys]: the keys that some queries of a sequence do not see."""
    _, rows, _, columns = call.parts[number]
    count, whole = columns.stop - columns.start, rows.stop - rows.start
    if options.mask is None:
        return None
    hidden: Tensor | None = None
    if options.mode in (0, 1):
        own = options.mask[number if len(options.mask) > 1 else 0]
        hidden = own[begin:end, :count]
        if call.single or options.mode == 1:
            return hidden.unsqueeze(0)
    before, after = {2: (FAR, 0), 3: (FAR, 0)}.get(options.mode, (options.before, options.after))
    shift = count - whole if options.mode in (3, 4) else 0
    place = torch.arange(begin, end).unsqueeze(-1) + shift
    key = torch.arange(count)
    band = (key < place - before) | (key > place + after)
    return (band if hidden is None else hidden | band).unsqueeze(0)


def _checked(operator: str, query: Tensor, key: Tensor, value: Tensor, options: Options) -> _Call:
    check_alike(
        operator, "query", query, key=key, value=value, query_rope=options.query_rope, key_rope=options.key_rope,
        pse_shift=options.pse, learnable_sink=options.sink,
    )  # fmt: skip
    if options.layout not in SERVED:
        refuse(operator, "input_layout", repr(options.layout), f"must be one of {', '.join(SERVED)}")
    if options.mode not in (0, 1, 2, 3, 4):
        refuse(operator, "sparse_mode", options.mode, "must be from 0 to 4")
    heads, key_heads = options.heads, options.key_heads or options.heads
    if heads < 1 or key_heads < 1 or heads % key_heads:
        refuse(operator, "num_key_value_heads", key_heads, f"must divide the {heads} heads of query")
    layout = options.layout.split("_")[0]
    paged = options.table is not None
    q = _as_bnsd(operator, "query", query, layout, heads)
    k, v = (
        _pages(operator, name, tensor, options, key_heads)
        if paged
        else _as_bnsd(operator, name, tensor, layout, key_heads)
        for name, tensor in (("key", key), ("value", value))
    )
    check_together(operator, query_rope=options.query_rope, key_rope=options.key_rope)
    if options.query_rope is not None and options.key_rope is not None:
        rope = _as_bnsd(operator, "query_rope", options.query_rope, layout, heads)
        of_keys = options.key_rope
        other = (
            _pages(operator, "key_rope", of_keys, options, key_heads)
            if paged
            else _as_bnsd(operator, "key_rope", of_keys, layout, key_heads)
        )
        for name, tensor, like in (("query_rope", rope, q), ("key_rope", other, k)):
            if tensor.shape[:3] != like.shape[:3]:
                got = f"of shape {list(tensor.shape)} as [B, N, S, D]"
                refuse(operator, name, got, f"must fit {list(like.shape)}, which it goes with")
        q, k = torch.cat((q, rope), -1), torch.cat((k, other), -1)
    if k.shape[:3] != v.shape[:3] or k.shape[-1] != q.shape[-1]:
        got = f"{list(k.shape)} and {list(v.shape)} as [B, N, S, D]"
        refuse(operator, "key and value", got, f"must fit each other, and query, {list(q.shape)}")
    parts = _parts(operator, q, k, layout, options)
    single = options.query_rope is None and layout not in ("TND", "NTD") and q.shape[2] == 1
    _check_pse(operator, options.pse, q, k, layout)
    if options.sink is not None and list(options.sink.shape) != [heads]:
        refuse(operator, "learnable_sink", f"of shape {list(options.sink.shape)}", f"must be of shape [{heads}]")
    return _Call(wide(q), wide(k), wide(v), parts, single)


def _mask(operator: str, options: Options, call: _Call) -> Tensor | None:
    """What is hidden: [sequences or 1, queries or more, keys or more]; in sparse_mode 2 to 4 the compressed mask."""
    mask = options.mask
    if options.mode in (2, 3, 4):
        if call.single:
            return None
        if mask is None or mask.shape[-2:] != (COMPRESSED, COMPRESSED) or mask.shape.numel() != COMPRESSED**2:
            got = "None" if mask is None else f"of shape {list(mask.shape)}"
            rule = f"must be [{COMPRESSED}, {COMPRESSED}] in sparse_mode {options.mode}"
            refuse(operator, "atten_mask", got, rule)
        hidden = mask.bool().view(COMPRESSED, COMPRESSED)
        if not torch.equal(hidden, torch.ones_like(hidden).triu_(1)):
            rule = f"must be 1 above its diagonal, and else 0, in sparse_mode {options.mode}"
            refuse(operator, "atten_mask", "another mask", rule)
        return hidden
    if mask is None:
        if options.mode == 1 and not call.single:
            refuse(operator, "atten_mask", "None", "must be given in sparse_mode 1")
        return None
    if mask.is_floating_point():
        refuse(operator, "atten_mask", mask.dtype, "must be bool, int8 or uint8")
    sequences = len(call.parts)
    queries = max((rows.stop - rows.start for _, rows, _, _ in call.parts), default=0)
    keys = max((columns.stop - columns.start for _, _, _, columns in call.parts), default=0)
    hidden = mask.bool()
    if hidden.dim() == 2:
        by_sequence = call.single and len(hidden) == sequences
        hidden = hidden.unsqueeze(1) if by_sequence else hidden.unsqueeze(0)
    elif hidden.dim() == 4 and hidden.shape[1] == 1:
        hidden = hidden.squeeze(1)
    if hidden.dim() != 3 or len(hidden) not in (1, sequences) or hidden.shape[1] < queries or hidden.shape[2] < keys:
        rule = f"must be [Q, K], [B or 1, Q, K] or [B or 1, 1, Q, K], of {sequences} sequences, {queries} and {keys}"
        refuse(operator, "atten_mask", f"of shape {list(mask.shape)}", rule)
    return hidden


def _check_pse(operator: str, pse: Tensor | None, q: Tensor, k: Tensor, layout: str) -> None:
    if pse is None:
        return
    if layout in ("TND", "NTD"):
        refuse(operator, "pse_shift", "given", "must be None in TND")
    batch, heads, queries = q.shape[:3]
    fits = pse.dim() == 4 and pse.shape[0] in (1, batch) and pse.shape[1] == heads and pse.shape[2] in (1, queries)
    if not fits or pse.shape[3] < k.shape[2]:
        rule = f"must be of shape [{batch} or 1, {heads}, {queries}, {k.shape[2]} or more]"
        refuse(operator, "pse_shift", f"of shape {list(pse.shape)}", rule)


def _as_bnsd(operator: str, name: str, tensor: Tensor, layout: str, heads: int) -> Tensor:
    """A tensor as [B, N, S, D]; of TND and NTD B is 1."""
    if tensor.dim() != len(layout):
        refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have {len(layout)} dimensions in {layout}")
    if layout == "BSH":
        if tensor.shape[2] % heads:
            refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have a multiple of {heads} columns")
        return as_bnsd(tensor.unflatten(2, (heads, -1)), "BSND")
    found = as_bnsd(tensor, layout)
    if found.shape[1] != heads:
        refuse(operator, name, f"of shape {list(tensor.shape)}", f"must have {heads} heads in {layout}")
    return found


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The result [B, N, S, D] as a layout has it."""
    if layout == "BSH":
        return from_bnsd(tensor, "BSND").flatten(2)
    return from_bnsd(tensor, layout).contiguous()


def _pages(operator: str, name: str, pages: Tensor, options: Options, heads: int) -> Tensor:
    """Keys [pages, size, N * D] or [pages, N, size, D], which block_table [B, pages of a sequence] puts in order."""
    if pages.dim() == 3:
        if pages.shape[2] % heads:
            refuse(operator, name, f"of shape {list(pages.shape)}", f"must have a multiple of {heads} columns")
        pages = pages.unflatten(2, (heads, -1)).transpose(1, 2)
    if pages.dim() != 4 or pages.shape[1] != heads or (options.block_size and pages.shape[2] != options.block_size):
        rule = f"must be of shape [pages, size, {heads} * D] or [pages, {heads}, size, D], of block_size rows"
        refuse(operator, name, f"of shape {list(pages.shape)}", rule)
    return as_bnsd(rows_of_pages(operator, pages.transpose(1, 2), options.table, options.key_lengths), "BSND")


def _parts(operator: str, q: Tensor, k: Tensor, layout: str, options: Options) -> list[Part]:
    """The sequences: batch, queries, keys."""
    lengths, key_lengths = (
        None if own is None else [int(n) for n in (own.tolist() if isinstance(own, Tensor) else own)]
        for own in (options.lengths, options.key_lengths)
    )
    paged = options.table is not None
    if layout in ("TND", "NTD"):
        if lengths is None or key_lengths is None:
            refuse(operator, "the lengths of queries and keys", "None", f"must be given in {layout}")
        rows = _ends(operator, "of queries", lengths, q.shape[2])
        if paged:
            if (
                len(k) != len(rows)
                or len(key_lengths) != len(rows)
                or not all(0 <= n <= k.shape[2] for n in key_lengths)
            ):
                rule = f"must be {len(rows)} numbers from 0 to {k.shape[2]}, as block_table has"
                refuse(operator, "the lengths of keys", key_lengths, rule)
            columns = [slice(0, n) for n in key_lengths]
        else:
            columns = _ends(operator, "of keys", key_lengths, k.shape[2])
        if len(rows) != len(columns):
            refuse(operator, "the lengths of keys", key_lengths, f"must be {len(rows)} numbers, as those of queries")
        pairs = enumerate(zip(rows, columns, strict=True))
        return [Part(0, row, i if paged else 0, column) for i, (row, column) in pairs]
    batch = len(q)
    if len(k) != batch:
        refuse(operator, "key", f"of {len(k)} sequences", f"must have {batch}, as query")
    if q.shape[2] == 1:
        lengths = None  # of no effect there
    found = []
    for name, own, tensor in (("of queries", lengths, q), ("of keys", key_lengths, k)):
        whole = tensor.shape[2]
        sizes = [whole] * batch if own is None else own * batch if len(own) == 1 else own[:batch]
        if len(sizes) != batch or not all(0 <= n <= whole for n in sizes):
            refuse(operator, f"the lengths {name}", own, f"must be 1 or {batch} numbers from 0 to {whole}")
        found.append([slice(0, n) for n in sizes])
    return [Part(b, row, b, column) for b, (row, column) in enumerate(zip(*found, strict=True))]


def _ends(operator: str, name: str, ends: list[int], rows: int) -> list[slice]:
    begins = [0, *ends[:-1]]
    if not ends or any(end < begin for begin, end in zip(begins, ends, strict=True)) or ends[-1] > rows:
        refuse(operator, f"the lengths {name}", ends, f"must be the ends of sequences, from 0 to {rows}, in order")
    return [slice(begin, end) for begin, end in zip(begins, ends, strict=True)]
