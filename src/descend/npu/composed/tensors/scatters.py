"""Parts read and written by indices: npu_scatter_nd_update, scatter_update, npu_gather_sparse_index and others.

    npu_scatter_nd_update:   input[indices[i]] = updates[i], of the first dimensions, as many as indices has columns
    scatter_update:          input[b] along axis, from indices[b] on, = updates[b]; of pairs b is the first number
    npu_gather_sparse_index: input[index]
    _npu_index_add:          input[index[i]] += alpha * source[i]
    npu_scatter_pa_kv_cache: row slot_mapping[t] of the pages = key[t]; negative slots are left out
    npu_scatter_pa_cache:    the same of keys alone

Documents: torch_npu.npu_scatter_nd_update, scatter_update, npu_gather_sparse_index, npu_scatter_pa_kv_cache;
op-plugin's test_npu_scatter_pa_cache.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_integer, check_shape, check_within, wide
from descend.npu.composed.refusal import refuse


def npu_scatter_nd_update(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """The input with parts replaced, in new memory. ``indices`` [..., n], ``updates`` [..., the other dimensions]."""
    return npu_scatter_nd_update_(input.clone(memory_format=torch.contiguous_format), indices, updates)


def npu_scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """`npu_scatter_nd_update` in place."""
    operator = "npu_scatter_nd_update"
    check_integer(operator, "indices", indices)
    _check_dtype(operator, "updates", updates, input)
    if indices.dim() < 2 or not 0 < indices.shape[-1] <= input.dim():
        rule = f"must have 2 dimensions or more, the last from 1 to {input.dim()}"
        refuse(operator, "indices", f"of shape {list(indices.shape)}", rule)
    count = indices.shape[-1]
    check_shape(operator, "updates", updates, [*indices.shape[:-1], *input.shape[count:]], "indices and input")
    for column, size in zip(indices.unbind(-1), input.shape, strict=False):
        check_within(operator, "indices", column, size, f"must be from 0 to {size - 1} of a dimension of {size}")
    input[tuple(indices.long().unbind(-1))] = updates
    return input


def scatter_update(input: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """The input with parts replaced, in new memory."""
    return scatter_update_(input.clone(memory_format=torch.contiguous_format), indices, updates, axis)


def scatter_update_(input: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """`scatter_update` in place."""
    operator = "scatter_update"
    check_integer(operator, "indices", indices)
    _check_dtype(operator, "updates", updates, input)
    if input.dim() < 2 or updates.dim() != input.dim():
        refuse(operator, "updates", f"of shape {list(updates.shape)}", f"must have {input.dim()} dimensions, 2 or more")
    if not -input.dim() <= axis < input.dim() or axis % input.dim() == 0:
        refuse(operator, "axis", axis, f"must be a dimension from 1 to {input.dim() - 1}")
    axis %= input.dim()
    rows = len(updates)
    if list(indices.shape) not in ([rows], [rows, 2]):
        refuse(operator, "indices", f"of shape {list(indices.shape)}", f"must be of shape [{rows}] or [{rows}, 2]")
    pairs = indices if indices.dim() == 2 else torch.stack((torch.arange(rows).to(indices.dtype), indices), 1)
    length = updates.shape[axis]
    wanted = [size if i else rows for i, size in enumerate(input.shape)]
    wanted[axis] = length
    check_shape(operator, "updates", updates, wanted, "input, but along axis")
    check_within(operator, "indices", pairs[:, 0], len(input), f"must be from 0 to {len(input) - 1}, rows of input")
    last = input.shape[axis] - length
    check_within(operator, "indices", pairs[:, 1], last + 1, f"must be from 0 to {last}, so that updates fit")
    for row, (at, begin) in enumerate(pairs.tolist()):
        input[at].narrow(axis - 1, begin, length).copy_(updates[row])
    return input


def npu_gather_sparse_index(input: Tensor, index: Tensor) -> Tensor:
    """[..., the dimensions of input but the first], for each number of ``index``."""
    operator = "npu_gather_sparse_index"
    check_integer(operator, "index", index)
    if not input.dim():
        refuse(operator, "input", "of shape []", "must have a dimension")
    check_within(operator, "index", index, len(input), f"must be from 0 to {len(input) - 1}")
    return input[index.long()]


def npu_gather_sparse_index_backward(grad: Tensor, self_sizes: Sequence[int], index: Tensor) -> Tensor:
    """The gradient of input, of shape ``self_sizes``: sums in float32, rounded once."""
    operator = "npu_gather_sparse_index_backward"
    check_integer(operator, "index", index)
    if not self_sizes:
        refuse(operator, "self_sizes", [], "must have a dimension")
    check_shape(operator, "grad", grad, [*index.shape, *self_sizes[1:]], "index and input")
    check_within(operator, "index", index, self_sizes[0], f"must be from 0 to {self_sizes[0] - 1}")
    terms = wide(grad)
    total = terms.new_zeros(list(self_sizes))
    return total.index_add_(
        0, index.flatten().long(), terms.flatten(0, index.dim() - 1) if index.dim() else terms[None]
    ).to(grad.dtype)


def _npu_index_add(input: Tensor, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """The sum, in new memory."""
    return _npu_index_add_(input.clone(memory_format=torch.contiguous_format), index, source, alpha=alpha)


def _npu_index_add_(input: Tensor, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """The sum in place."""
    operator = "_npu_index_add"
    check_integer(operator, "index", index)
    if input.dim():
        check_within(operator, "index", index, len(input), f"must be from 0 to {len(input) - 1}")
    return input.index_add_(0, index.long(), source, alpha=alpha)


def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Writes ``key`` [T, N, D] and ``value`` into pages: [pages, N * D / last, size, last], or [pages, size, N, D].

    In both forms a slot is page * size + row. cache_mode 'PA_NZ' has the first form, unless only the second one fits.
    """
    compressed = {"compress_lens": compress_lens, "compress_seq_offsets": compress_seq_offsets, "seq_lens": seq_lens}
    rows = {"key": (key, key_cache), "value": (value, value_cache)}
    _write_rows("npu_scatter_pa_kv_cache", rows, slot_mapping, cache_mode, compressed)


def npu_scatter_pa_cache(
    key: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    key_cache: Tensor,
) -> Tensor:
    """``key_cache``, into which ``key`` was written as `npu_scatter_pa_kv_cache` does with cache_mode 'Norm'."""
    compressed = {"compress_lens": compress_lens, "compress_seq_offsets": compress_seq_offsets, "seq_lens": seq_lens}
    _write_rows("npu_scatter_pa_cache", {"key": (key, key_cache)}, slot_mapping, "Norm", compressed)
    return key_cache


def _write_rows(
    operator: str,
    rows_and_pages: dict[str, tuple[Tensor, Tensor]],
    slot_mapping: Tensor,
    cache_mode: str | None,
    compressed: dict[str, Tensor | None],
) -> None:
    for name, given in compressed.items():
        if given is not None:
            refuse(operator, name, "given", "must be None: a compressed cache is not served")
    if cache_mode not in ("PA_NZ", "Norm", None):
        refuse(operator, "cache_mode", repr(cache_mode), "must be 'PA_NZ', 'Norm' or None")
    check_integer(operator, "slot_mapping", slot_mapping)
    used = slot_mapping >= 0
    slots, parts = slot_mapping[used].long(), []
    for name, (rows, pages) in rows_and_pages.items():
        _check_dtype(operator, f"{name}_cache", pages, rows)
        if rows.dim() != 3 or pages.dim() != 4:
            got = f"of shape {list(rows.shape)}, its cache {list(pages.shape)}"
            refuse(operator, name, got, "must have 3 dimensions, its cache 4")
        check_shape(operator, "slot_mapping", slot_mapping, [len(rows)], name)
        count, heads, size = rows.shape
        plain = list(pages.shape[2:]) == [heads, size]
        split = pages.shape[1] * pages.shape[3] == heads * size
        if not (plain if cache_mode != "PA_NZ" else plain or split):
            rule = f"must hold {heads} * {size} numbers in a row of its pages"
            refuse(operator, f"{name}_cache", f"of shape {list(pages.shape)}", rule)
        if cache_mode == "PA_NZ" and split:
            places, values = pages.transpose(1, 2), rows.reshape(count, pages.shape[1], pages.shape[3])
        else:
            places, values = pages, rows
        length = places.shape[1]
        end = len(pages) * length
        check_within(operator, "slot_mapping", slot_mapping, end, f"must be below {end}", -(2**62))
        parts.append((places, values))
    for places, values in parts:  # both are checked: a call that is refused has written nothing
        length = max(1, places.shape[1])
        places[slots // length, slots % length] = values[used]


def npu_scatter_pa_kv_cache_functional(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, **options: object
) -> tuple[Tensor, Tensor]:
    """The pages of `npu_scatter_pa_kv_cache`, in new memory."""
    keys, values = (t.clone(memory_format=torch.contiguous_format) for t in (key_cache, value_cache))
    npu_scatter_pa_kv_cache(key, value, keys, values, slot_mapping, **options)  # type: ignore[arg-type]
    return keys, values


def _check_dtype(operator: str, name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.dtype != like.dtype:
        refuse(operator, name, tensor.dtype, f"must be {like.dtype}, as what it goes with")
