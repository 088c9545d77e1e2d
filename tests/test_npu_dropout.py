"""torch_npu's own dropout and npu_multi_head_attention: masks, results against the formula in float64, refusals."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention import multi_head_attention  # noqa: E402
from descend.npu.composed.layers import dropout  # noqa: E402
from descend.npu.composed.random import CHUNK, Dropout, Kept, bits, from_bits  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any


def kept_by(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.from_numpy(np.unpackbits(mask.numpy(), count=count, bitorder="little")).view(shape).double()


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, CHUNK - 1, CHUNK, 3 * CHUNK + 5])
def test_masks_of_bits(count: int) -> None:
    mask = bits(Dropout(0.75, 3, 4), count)
    assert (mask.dtype, mask.numel()) == (torch.uint8, -(-count // 128) * 16)
    kept = kept_by(mask, (count,))
    assert torch.equal(from_bits(mask, count).double(), kept)
    assert torch.equal(Kept(Dropout(0.75, 3, 4)).places(0, count).double(), kept)
    assert count < 1000 or abs(kept.mean() - 0.75) < 4 * (0.75 * 0.25 / count) ** 0.5


def test_places_do_not_depend_on_how_they_are_asked_for() -> None:
    whole = Kept(Dropout(0.5, 1, 0)).places(0, 4 * CHUNK)
    kept = Kept(Dropout(0.5, 1, 0))
    for begin, count in ((CHUNK - 3, 7), (0, 1), (CHUNK, CHUNK), (5, 3 * CHUNK), (2 * CHUNK + 1, 0)):
        assert torch.equal(kept.places(begin, count), whole[begin : begin + count])


def test_what_a_seed_gives_is_the_same_on_every_machine() -> None:
    masks = [bits(Dropout(0.9, seed, offset), 1000).numpy() for seed, offset in ((2, 0), (2, 1), (3, 0), (-1, 2**62))]
    assert len({mask.tobytes() for mask in masks}) == 4
    assert hashlib.sha256(np.concatenate(masks).tobytes()).hexdigest()[:16] == "a0852c8db774fdab"


@pytest.mark.parametrize("keep", [0.0, 2**-33, 1 - 2**-33, 1.0])
def test_probabilities_at_the_ends(keep: float) -> None:
    assert Kept(Dropout(keep, 1, 0)).places(0, 1000).tolist() == [keep > 0.5] * 1000


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(4, 33), (0, 3), ()])
def test_dropout_by_bits(dtype: Any, shape: tuple[int, ...]) -> None:
    x, dy = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    torch.manual_seed(5)
    y, mask = dropout._npu_dropout(x, 0.25)
    torch.manual_seed(5)
    assert torch.equal(mask, dropout.npu_dropout_gen_mask(list(shape), 0.25))
    kept = kept_by(mask, shape)
    near(y, x.double() * kept / 0.75)
    again, same = dropout.npu_dropout_do_mask(x, mask, 0.25)
    assert torch.equal(again, y)
    assert same is mask
    near(dropout.npu_dropout_backward(dy, mask, 0.25), dy.double() * kept / 0.75)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout_by_bytes(dtype: Any, p: float) -> None:
    x, dy = torch.randn(5, 7, 9).to(dtype), torch.randn(5, 7, 9).to(dtype)
    x[0, 0, 0] = torch.inf  # is dropped, not multiplied by 0
    y, mask = dropout._dropout_with_byte_mask(x, p)
    assert (mask.dtype, mask.shape) == (torch.uint8, x.shape)
    factors = mask.double() / (1 - p) if p < 1 else torch.zeros(x.shape).double()
    assert (p < 1) == bool(mask.any())
    near(y.where(mask.bool(), 7), (x.double() * factors).where(mask.bool(), 7))
    assert not y[mask == 0].any()
    near(dropout._dropout_with_byte_mask_backward(dy, mask, p), dy.double() * factors)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_dropout_with_add_softmax(dtype: Any, dim: int) -> None:
    x, x1, dy = (torch.randn(6, 23).to(dtype) for _ in range(3))
    mask, softmax, y = dropout.npu_dropout_with_add_softmax(x, x1, 0.125, 0.25, dim)
    assert (mask.dtype, mask.shape) == (torch.uint8, (256,))
    kept = mask[: x.numel()].view(x.shape).double() / 0.75

    def defined(x: Tensor, x1: Tensor) -> Tensor:
        return torch.softmax(x1 + 0.125 * x, dim) * kept

    wanted, (dx, dx1) = gradients(defined, [x, x1], dy)
    near(y, wanted)
    near(softmax, torch.softmax(x1.double() + 0.125 * x.double(), dim))
    results = dropout.npu_dropout_with_add_softmax_backward(dy, mask, softmax, 0.125, 0.25, dim)
    for got, gradient in zip(results, (dx, dx1), strict=True):
        near(got, gradient)


def test_refusals_of_dropout() -> None:
    x, mask = torch.ones(300), torch.zeros(48, dtype=torch.uint8)
    for p in (-0.1, 1.1, float("nan")):
        refused(f"_npu_dropout: p is {p}, but must be a probability, from 0 to 1", dropout._npu_dropout, x, p)
        refused("p is", dropout._npu_dropout_gen_mask, x, [3], p, 1, 0)
        refused("p is", dropout.npu_dropout_do_mask, x, mask, p)
    refused("_npu_dropout: self is torch.int64", dropout._npu_dropout, x.long(), 0.5)
    wrong = "mask is torch.uint8 of 37 elements, but must be torch.uint8 of at least 38"
    refused(f"npu_dropout_do_mask: {wrong}", dropout.npu_dropout_do_mask, x, mask[:37], 0.5)
    refused("mask is torch.bool of 48", dropout.npu_dropout_backward, x, mask.bool(), 0.5)
    refused("of at least 300", dropout._dropout_with_byte_mask_backward, x, mask, 0.5)
    refused("x1 is of shape [1]", dropout.npu_dropout_with_add_softmax, x, x[:1], 1.0, 0.5, 0)


HEADS, SIZE, SOURCE, TARGET, BATCH = 16, 16, 32, 16, 2
WIDTH = HEADS * SIZE


def attention(*given: Tensor) -> Tensor:
    """The definition, with the factors of dropout last."""
    query, key, value, wq, wk, wv, mask, wo, bq, bk, bv, bo, factors = given

    def heads(rows: Tensor) -> Tensor:
        return rows.view(BATCH, -1, HEADS, SIZE).transpose(1, 2)

    q, k, v = heads(query @ wq.T + bq) / 4, heads(key @ wk.T + bk), heads(value @ wv.T + bv)
    used = torch.softmax(q @ k.transpose(2, 3) + mask, -1) * factors
    return (used @ v).transpose(1, 2).reshape(BATCH * TARGET, WIDTH) @ wo.T + bo


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("given_mask", [True, False])
def test_multi_head_attention(dtype: Any, p: float, given_mask: bool) -> None:
    rows = [torch.randn(BATCH * s, WIDTH).to(dtype) for s in (TARGET, SOURCE, SOURCE)]
    weights = [(torch.randn(WIDTH, WIDTH) / 16).to(dtype) for _ in range(4)]
    biases = [torch.randn(WIDTH).to(dtype) for _ in range(4)]
    added, dy = torch.randn(BATCH, 1, TARGET, SOURCE).to(dtype), torch.randn(BATCH * TARGET, WIDTH).to(dtype)
    count = BATCH * HEADS * TARGET * SOURCE
    mask = bits(Dropout(1 - p, 1, 0), count) if given_mask else None
    numbers = (HEADS, SIZE, SOURCE, TARGET, p, True)
    call, gradient = (
        multi_head_attention.npu_multi_head_attention,
        multi_head_attention.npu_multi_head_attention_backward,
    )
    y, mask, *saved = call(*rows, *weights[:3], added, weights[3], *biases, mask, *numbers)
    factors = kept_by(mask, (BATCH, HEADS, TARGET, SOURCE)) / (1 - p)
    given = [*rows, *weights[:3], added, weights[3], *biases, factors]
    wanted, slopes = gradients(attention, given, dy)
    near(y, wanted)
    assert saved[3].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    results = gradient(*rows, *weights, *biases, *saved, dy, mask, *numbers)
    dq, dk, dv, dwq, dwk, dwv, _, dwo, *dbiases, _ = slopes
    largest = max(slope.abs().max() for slope in slopes)
    for got, slope in zip(results, (dwq, dwk, dwv, dwo, dq, dk, dv, *dbiases), strict=True):
        # q, k, v and the scores were rounded, so a gradient is not rounded once. In float64 the definition is, too.
        roundings = 16 if dtype == torch.float64 else 8
        assert (got.double() - slope).abs().max() <= roundings * torch.finfo(dtype).eps * largest
    less = gradient(*rows, *weights, None, *biases[1:], *saved, dy, mask, *numbers)
    assert less[7] is None
    assert torch.equal(less[8], results[8])


def test_refusals_of_multi_head_attention() -> None:
    x, w = torch.zeros(TARGET, WIDTH), torch.zeros(WIDTH, WIDTH)
    added, biases = torch.zeros(1, 1, TARGET, TARGET), [None] * 4

    def call(x: Tensor = x, w: Tensor = w, added: Tensor = added, heads: int = HEADS, bias: Any = None) -> Any:
        numbers = (heads, SIZE, TARGET, TARGET, 0.5, False)
        attend = multi_head_attention.npu_multi_head_attention
        return attend(x, x, x, w, w, w, added, w, bias, *biases[1:], None, *numbers)

    call()
    refused("attn_head_num is 17, but must be a multiple of 16, at least 16", call, heads=17)
    refused("query is of shape [16, 255]", call, x=x[:, 1:])
    refused("query is torch.int32", call, x=x.int())
    refused("query_weight is of shape [255, 256]", call, w=w[1:])
    refused(
        "attn_mask is of shape [2, 1, 16, 16], but must broadcast to [1, 16, 16, 16]",
        call,
        added=added.expand(2, 1, 16, 16),
    )
    refused("attn_mask is of shape [16]", call, added=added[0, 0, 0])
    refused("query_bias is of shape [3]", call, bias=torch.zeros(3))
