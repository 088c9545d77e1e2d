"""torch_npu's operators that PyTorch has under other names: values, gradients, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed.attention import pieces  # noqa: E402
from descend.npu.composed.layers import activations  # noqa: E402
from descend.npu.composed.tensors import plain  # noqa: E402
from descend.npu.composed.training import cross_entropy  # noqa: E402
from test_npu_composed import FLOATS, gradients, near, refused  # noqa: E402

Tensor = Any


def same(got: Tensor, wanted: Tensor) -> None:
    assert got.is_contiguous()
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


def test_copies_of_parts() -> None:
    x = torch.arange(24).reshape(2, 3, 4).transpose(0, 1)
    same(plain.npu_slice(x, [1, 0, 2], [2, 1, 2]), x[1:3, 0:1, 2:4])
    same(plain.npu_slice(x, [3, 0, 0], [0, 2, 4]), x[3:])
    same(plain.npu_transpose(x, [2, 0, -2]), x.permute(2, 0, 1))
    same(plain.npu_broadcast(x[:, :1].bool(), [5, 3, 2, 4]), x[:, :1].bool().expand(5, 3, 2, 4))
    for copy in (plain.npu_slice(x, [0, 0, 0], [3, 2, 4]), plain.npu_transpose(x, [0, 1, 2])):
        assert copy.data_ptr() != x.data_ptr()
    refused("offsets or size is [0] and [1, 1, 1], but must have 3 numbers each", plain.npu_slice, x, [0], [1, 1, 1])
    for offsets, size in (([0, 0, 0], [3, 2, 5]), ([-1, 0, 0], [1, 1, 1]), ([0, 0, 0], [-1, 1, 1])):
        refused("but must lie in self, of shape [3, 2, 4]", plain.npu_slice, x, offsets, size)


def test_pads_are_told_dimension_by_dimension() -> None:
    x = torch.ones(2, 3)
    wanted = torch.zeros(2 + 1 + 2, 3 + 3 + 4)
    wanted[1:3, 3:6] = 1
    same(plain.npu_pad(x, [1, 2, 3, 4]), wanted)
    same(plain.npu_pad(x, [1, 2]), wanted[:, 3:6].contiguous())
    same(plain.npu_pad(x, []), x)
    for paddings in ([1], [1, 1, 1, 1, 1, 1], [-1, 0]):
        refused("but must have two numbers from 0 on for each of 2 dimensions", plain.npu_pad, x, paddings)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_one_hot(dtype: Any) -> None:
    classes = torch.tensor([[0, 2], [3, -1]], dtype=dtype)
    wanted = torch.full((2, 2, 3), -0.5)
    wanted[0, 0, 0] = wanted[0, 1, 2] = 4
    same(plain.npu_one_hot(classes, depth=3, on_value=4, off_value=-0.5), wanted)
    same(plain.npu_one_hot(classes, 2, 3, 4, -0.5), wanted)
    refused("depth is 0", plain.npu_one_hot, classes, depth=0)
    refused("num_classes is 3, but must be -1 or 2", plain.npu_one_hot, classes, 3)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32], ids=str)
@pytest.mark.parametrize(("largest", "dim", "keepdim"), [(True, 0, False), (True, -1, True), (False, 1, False)])
def test_extremes(dtype: Any, largest: bool, dim: int, keepdim: bool) -> None:
    x = torch.randperm(24).reshape(2, 3, 4).to(dtype)
    values, indices = (plain.npu_max if largest else plain.npu_min)(x, dim, keepdim)
    wanted = (torch.max if largest else torch.min)(x, dim, keepdim)
    same(values, wanted.values)
    same(indices, wanted.indices.int())
    grad = torch.ones_like(values) * 3
    got = (plain.npu_max_backward if largest else plain.npu_min_backward)(grad, dim, indices, list(x.shape), keepdim)
    values = values if keepdim else values.unsqueeze(dim)
    same(got, torch.where(x == values, 3, 0).to(dtype))


def test_extremes_of_a_number_and_order() -> None:
    values, indices = plain.npu_max(torch.tensor(5.0), 0)
    same(plain.npu_max_backward(torch.tensor(2.0), 0, indices, [], False), torch.tensor(2.0))
    assert values.item() == 5
    x = torch.randperm(12).reshape(3, 4).half()
    same(plain.npu_sort_v2(x, 0, True), x.sort(0, True).values)
    same(plain.npu_sort_v2(x), x.sort().values)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations(dtype: Any) -> None:
    x, dy = (4 * torch.randn(3, 50)).to(dtype), torch.randn(3, 50).to(dtype)
    wanted, (dx,) = gradients(lambda t: t * torch.tanh(torch.log1p(torch.exp(t))), [x], dy)
    near(activations.npu_mish(x), wanted)
    near(activations.npu_mish_backward(dy, x), dx)
    wanted, (dx,) = gradients(lambda t: t / (1 + torch.exp(-t)), [x], dy)
    y = activations.npu_silu(x)
    near(y, wanted)
    near(activations.npu_silu_backward(dy, x, y), dx)
    given = x.clone()
    assert activations.npu_silu_(given) is given
    assert torch.equal(given, y)
    for name, call in (("mish", activations.npu_mish), ("silu", activations.npu_silu)):
        refused(f"npu_{name}: self is torch.int64", call, torch.ones(2, dtype=torch.int64))
    refused("grad is of shape [2, 50]", activations.npu_mish_backward, dy[:2], x)
    refused("grad_output is of shape [2, 50]", activations.npu_silu_backward, dy[:2], x, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_cross_entropy_with_logits(dtype: Any) -> None:
    x, labels, dy = torch.randn(5, 7).to(dtype), torch.rand(5, 7).to(dtype), torch.randn(5).to(dtype)
    wanted, (dx, _) = gradients(lambda t, p: -(torch.log_softmax(t, -1) * p).sum(-1), [x, labels], dy)
    near(cross_entropy.npu_softmax_cross_entropy_with_logits(x, labels), wanted)
    near(cross_entropy.npu_softmax_cross_entropy_with_logits_backward(dy, x, labels), dx)
    refused("labels is of shape [7]", cross_entropy.npu_softmax_cross_entropy_with_logits, x, labels[0])
    refused("grad is of shape [7]", cross_entropy.npu_softmax_cross_entropy_with_logits_backward, labels[0], x, labels)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_ring_attention_update(dtype: Any, layout: str) -> None:
    length, heads, width, batch = 3, 2, 4, 1 if layout == "TND" else 2
    q, k, v = (torch.randn(batch, heads, n, width, dtype=torch.float64) for n in (length, 5, 5))

    def shaped(out: Tensor) -> Tensor:
        return out[0].transpose(0, 1) if layout == "TND" else out.permute(2, 0, 1, 3).reshape(length, batch, -1)

    def part(keys: slice) -> tuple[Tensor, ...]:
        scores = q @ k[:, :, keys].transpose(2, 3) * 3
        largest = scores.amax(-1, keepdim=True)
        total = (scores - largest).exp().sum(-1, keepdim=True)
        statistics = (t.expand(-1, -1, -1, 8) for t in (largest, total))
        if layout == "TND":
            statistics = (t[0].transpose(0, 1) for t in statistics)
        return shaped(torch.softmax(scores, -1) @ v[:, :, keys]), *statistics

    kept = torch.float64 if dtype is torch.float64 else torch.float32
    before, after = (
        [t.to(dtype if i == 0 else kept) for i, t in enumerate(part(keys))] for keys in (slice(2), slice(2, 5))
    )
    options = {"input_layout": layout, "input_softmax_layout": layout if layout == "TND" else ""}
    got = pieces.npu_ring_attention_update(*before, *after, **options)
    for result, wanted in zip(got, part(slice(5)), strict=True):
        near(result, wanted)
    for bad, sentence in (
        ({"input_layout": "BSH"}, "input_layout is 'BSH', but must be 'SBH' or 'TND'"),
        ({"input_softmax_layout": "BSH"}, "input_softmax_layout is 'BSH', but must be '', 'SBH' or 'TND'"),
    ):
        refused(sentence, pieces.npu_ring_attention_update, *before, *after, **bad)
    function = pieces.npu_ring_attention_update
    refused("cur_attn_out is of shape", function, *before, after[0][1:], *after[1:], **options)
    refused("cur_softmax_sum is of shape", function, *before, *after[:2], after[2][..., :1], **options)


@pytest.mark.parametrize("softmax_layout", ["", "SBH"])
@pytest.mark.parametrize("ends", [[3, 3, 7], [3, 5], []])
def test_ring_attention_update_of_heads_after_heads(ends: list[int], softmax_layout: str) -> None:
    """Statistics of TND as npu_fusion_attention gives them: [N, S, 8] of one sequence, then of the next."""
    length, heads, width = 7, 2, 4
    cuts = [0, *ends]
    parts = [slice(begin, end) for begin, end in itertools.pairwise([*cuts, length])]

    def by_heads(rows: Tensor) -> Tensor:
        return torch.cat([rows[part].transpose(0, 1).reshape(-1, 8) for part in parts]).view(rows.shape)

    outs = torch.randn(2, length, heads, width)
    statistics = [(torch.rand(length, heads, 1) + 0.5).expand(-1, -1, 8) for _ in range(4)]
    function = pieces.npu_ring_attention_update
    rows = (outs[0], *statistics[:2], outs[1], *statistics[2:])
    out, *wanted = function(*rows, input_layout="TND", input_softmax_layout="TND")
    given = (outs[0], *map(by_heads, statistics[:2]), outs[1], *map(by_heads, statistics[2:]))
    options = {"input_layout": "TND", "input_softmax_layout": softmax_layout}
    got = function(*given, **options, actual_seq_qlen=torch.tensor(cuts))
    for result, expected in zip(got, (out, *map(by_heads, wanted)), strict=True):
        assert torch.equal(result, expected)
    refused("actual_seq_qlen is None, but must be [B + 1] of int64", function, *given, **options)
    for bad in ([3, 7], [0, 4, 3], [0, 8], []):
        qlen = torch.tensor(bad, dtype=torch.int64)
        refused(f"actual_seq_qlen is {bad}", function, *given, **options, actual_seq_qlen=qlen)


def test_results_into_memory_that_is_given() -> None:
    x = torch.randn(3, 4)
    for function, given in (
        (plain.npu_slice, ([1, 1], [2, 2])),
        (plain.npu_transpose, ([1, 0],)),
        (plain.npu_broadcast, ([2, 3, 4],)),
        (plain.npu_sort_v2, (0, True)),
    ):
        wanted = function(x, *given)
        into = getattr(plain, f"{function.__name__}_out")
        for out in (torch.empty(0), torch.empty(wanted.shape), torch.empty(wanted.shape).mT.contiguous().mT):
            assert into(x, *given, out=out) is out
            assert torch.equal(out, wanted)
    assert plain.npu_view_copy(x, torch.ones(4), False) is x
    assert torch.equal(x, torch.ones(3, 4))
    assert plain.one_(x.zero_()) is x
    assert torch.equal(x, torch.ones(3, 4))


def test_results_into_memory_of_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x, out = torch.randn(3, 4).npu(), torch.empty(0).npu()
    assert npu.npu_transpose(x, (1, 0), out=out) is out
    assert torch.equal(out, x.t())
    assert torch.equal(npu.one_(out), torch.ones(4, 3).npu())
