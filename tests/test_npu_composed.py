"""torch_npu's own operators composed of PyTorch's: each against its formula in float64, gradients, refusals."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu import composed  # noqa: E402
from descend.npu.composed.experts import permute  # noqa: E402
from descend.npu.composed.layers import activations, sync_batch_norm  # noqa: E402
from descend.npu.composed.products import grouped_matmul, matmul  # noqa: E402
from descend.npu.composed.refusal import RefusedError  # noqa: E402
from descend.npu.composed.table import SECTIONS, TABLE, functions, markdown  # noqa: E402
from descend.npu.composed.tensors import plain  # noqa: E402
from descend.npu.composed.training import optimizer  # noqa: E402

Tensor = Any
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 1.2e-3, torch.bfloat16: 9e-3}


def near(got: Tensor, wanted: Tensor, what: str = "", size: float | None = None) -> None:
    """Rounded once to the dtype of ``got``, or for sums to a few units of the largest number, or term: ``size``.

    In float32 that is 1 if it is not given: small numbers are often differences of such. In 16 bits they are rounded.
    """
    if size is None:
        size = 1.0 if got.dtype == torch.float32 else 0.1
    assert got.shape == wanted.shape, (what, got.shape, wanted.shape)
    assert torch.equal(got.isnan(), wanted.isnan()), what
    if wanted.numel():
        error = (got.double() - wanted).nan_to_num(0.0).abs().max().item()
        assert error <= TOLERANCE[got.dtype] * max(wanted.nan_to_num(0.0).abs().max().item(), size), (what, error)


def gradients(defined: Any, given: list[Tensor], dy: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A definition's result in float64 and the gradients of what is given."""
    leaves = [t.double().clone().requires_grad_() for t in given]
    result = defined(*leaves)
    return result.detach(), list(torch.autograd.grad(result, leaves, dy.double()))


def refused(sentence: str, function: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(RefusedError) as error:
        function(*args, **options)
    assert sentence in str(error.value), str(error.value)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(3, 7), (), (0, 2), (2, 3, 4, 5)])
def test_fast_gelu(dtype: Any, shape: tuple[int, ...]) -> None:
    x, dy = (torch.randn(shape) * 3).to(dtype), torch.randn(shape).to(dtype)
    wanted, (dx,) = gradients(lambda x: x / (1 + (-1.702 * x).exp()), [x], dy)
    near(activations.npu_fast_gelu(x), wanted)
    near(activations.npu_fast_gelu_backward(dy, x), dx)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("approximate", [0, 1])
@pytest.mark.parametrize(("shape", "dim", "left"), [((3, 8), -1, False), ((2, 4, 5), 1, True), ((6,), 0, False)])
def test_geglu(dtype: Any, approximate: int, shape: tuple[int, ...], dim: int, left: bool) -> None:
    def gelu(x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x, approximate=("none", "tanh")[approximate])

    def defined(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim)
        return gelu(a) * b if left else a * gelu(b)

    x = (torch.randn(shape) * 3).to(dtype)
    y, gate = activations.npu_geglu(x, dim, approximate, left)
    dy = torch.randn(y.shape).to(dtype)
    wanted, (dx,) = gradients(defined, [x], dy)
    a, b = x.chunk(2, dim)
    near(y, wanted, size=(a * b).abs().max().item())  # gelu of a negative number is a small difference of large ones
    of_gate = x.chunk(2, dim)[0 if left else 1]
    near(gate, gelu(of_gate.double()), size=of_gate.abs().max().item())
    size = (torch.cat([dy, dy], dim) * x).abs().max().item()
    near(activations.npu_geglu_grad(dy, x, gate, dim, approximate, left), dx, size=size)


def test_geglu_refuses() -> None:
    x = torch.randn(3, 4)
    refused("npu_geglu: input is of shape [3, 4]", activations.npu_geglu, x, 0)
    refused("npu_geglu: input is of shape [3, 4]", activations.npu_geglu, x, 2)
    refused("npu_geglu: approximate is 2", activations.npu_geglu, x, -1, 2)
    refused("npu_geglu: input is torch.int32", activations.npu_geglu, x.int())
    refused("npu_geglu_grad: gelu is of shape [3, 4]", activations.npu_geglu_grad, x[:, :2], x, x)


def test_activations_at_their_ends_and_refused() -> None:
    far = torch.tensor([-1e4, -100.0, 100.0, 1e4], dtype=torch.float16)
    assert torch.equal(activations.npu_fast_gelu(far), torch.tensor([-0.0, -0.0, 100.0, 1e4]).half())
    assert activations.npu_fast_gelu_backward(torch.ones(4).half(), far).tolist() == [0.0, 0.0, 1.0, 1.0]
    x = torch.randn(2, 3)
    refused("npu_fast_gelu: self is torch.int32", activations.npu_fast_gelu, x.int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True, None])
def test_apply_adam_w(dtype: Any, amsgrad: bool, maximize: bool | None) -> None:
    for shape in ((4, 5), (0,), ()):
        var, m, grad = (torch.randn(shape).to(dtype) for _ in range(3))
        v, most = torch.rand(shape).to(dtype), torch.rand(shape).to(dtype)
        b1_power, b2_power, lr, decay, b1, b2, eps = 0.5, 0.8, 0.1, 0.01, 0.9, 0.99, 1e-6
        g = -grad.double() if maximize else grad.double()
        m_new, v_new = m.double() * b1 + (1 - b1) * g, v.double() * b2 + (1 - b2) * g * g
        used = torch.maximum(most.double(), v_new) if amsgrad else v_new
        step = m_new / (1 - b1_power * b1) / ((used / (1 - b2_power * b2)).sqrt() + eps)
        wanted = var.double() - lr * decay * var.double() - lr * step
        scalars = (b1_power, b2_power, lr, decay, b1, b2, eps)
        out = optimizer.npu_apply_adam_w_out(*scalars, grad, most, amsgrad, maximize, out=[var, m, v])
        assert out[0] is var
        assert out[1] is m
        assert out[2] is v
        for got, value in ((var, wanted), (m, m_new), (v, v_new)):
            near(got, value)
    refused("max_grad_norm is None", optimizer.npu_apply_adam_w_out, *scalars, grad, None, True, False, out=[var, m, v])
    refused("beta2 is 1", optimizer.npu_apply_adam_w_out, *scalars[:5], 1, eps, grad, *[None] * 3, out=[var, m, v])
    wrong = torch.zeros(3, dtype=dtype)
    refused(
        "m is of shape [3]", optimizer.npu_apply_adam_w_out, *scalars, grad, most, False, False, out=[var, wrong, v]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_other_steps_of_adam(dtype: Any) -> None:
    start = [torch.randn(4, 5), torch.randn(4, 5), torch.rand(4, 5)]
    grad = torch.randn(4, 5).to(dtype)
    b1, b2, lr, eps = 0.9, 0.99, 0.1, 1e-6

    def check(step: Any, g: Tensor, wanted: Any) -> None:
        out = [t.to(dtype, copy=True) for t in start]
        var, m, v = (t.double() for t in out)
        m, v = m * b1 + (1 - b1) * g, v * b2 + (1 - b2) * g * g
        results = step(out)
        assert all(result is given for result, given in zip(results, out, strict=True))
        for got, value in zip(out, (wanted(var, m, v.sqrt() + eps), m, v), strict=True):
            near(got, value)

    g = grad.double()
    scale = lr * (1 - 0.8) ** 0.5 / (1 - 0.5)
    adam, bert = optimizer.npu_apply_adam_out, optimizer.npu_bert_apply_adam_out
    scalars = (0.5, 0.8, lr, b1, b2, eps)
    check(lambda out: adam(*scalars, grad, False, None, out=out), g, lambda var, m, root: var - scale * m / root)
    ahead = lambda var, m, root: var - scale * (b1 * m + (1 - b1) * g) / root  # noqa: E731
    check(lambda out: adam(*scalars, grad, False, True, out=out), g, ahead)
    assert adam(1, 1, lr, b1, b2, eps, grad, None, None, out=[t.clone() for t in start])[0].isnan().all()

    def decayed(step: float) -> Any:
        return lambda var, m, root: var - step * m / root - lr * 0.01 * var

    first = (lr, b1, b2, eps, grad)
    for limit, norm_of_all, factor in ((-1.0, 0.0, 1.0), (1.0, 4.0, 0.25), (1.0, 0.5, 1.0), (0.0, 2.0, 1.0)):
        check(lambda out, given=(limit, norm_of_all): bert(*first, *given, 0.01, out=out), factor * g, decayed(lr))
    check(lambda out: bert(*first, 1.0, 4.0, 0.01, 0.03, 1, out=out), g, decayed(0.03))
    check(lambda out: bert(*first, 1.0, 4.0, 0.01, None, 1, out=out), g, decayed(lr))
    refused("adam_mode is 2", bert, *first, 1.0, 1.0, 0.0, None, 2, out=start)
    refused("out is a list of 2", adam, *scalars, grad, None, None, out=start[:2])


def test_confusion_transpose() -> None:
    x = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)
    cases: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
        ((0, 2, 1, 3), (2, 4, 18), True),
        ((0, 2, 1), (2, 12, 6), False),
        ((3, 0, 2, 1), (6, 24), True),
        ((1, 0), (6, 24), False),
    ]
    for perm, shape, first in cases:
        y = plain.npu_confusion_transpose(x, perm, shape, first)
        wanted = x.permute(perm).reshape(shape) if first else x.reshape(shape).permute(perm)
        assert torch.equal(y, wanted)
        assert y.is_contiguous()
        back = plain.npu_confusion_transpose_backward(y, perm, x.shape, not first)
        assert torch.equal(back, x)
        assert back.is_contiguous()
    assert plain.npu_confusion_transpose(x[:0], (1, 0), (0, 5), False).shape == (5, 0)
    refused("perm is [0, 0, 1, 2]", plain.npu_confusion_transpose, x, (0, 0, 1, 2), (2, 72), True)
    refused("shape is [5], but must hold 144 numbers", plain.npu_confusion_transpose, x, (0,), (5,), False)


def test_dtype_cast() -> None:
    x = torch.tensor([0, 0.5, -1.0, 300.0])
    for number, dtype in (
        (0, torch.uint8),
        (3, torch.int32),
        (5, torch.float16),
        (7, torch.float64),
        (15, torch.bfloat16),
    ):
        cast = plain.npu_dtype_cast(x, number)
        assert cast.dtype == dtype
        assert torch.equal(cast, x.to(dtype))
        assert torch.equal(plain._npu_dtype_cast(x, dtype), cast)
        assert plain.npu_dtype_cast_backward(cast, torch.float32).dtype == torch.float32
    assert plain.npu_dtype_cast(x, 6) is not x
    half = torch.zeros(4).half()
    assert plain.npu_dtype_cast_(half, x) is half
    assert half[1] == 0.5
    assert plain.npu_dtype_cast(x, 5, 6).dtype == torch.float16
    refused("npu_dtype_cast: dtype is 289", plain.npu_dtype_cast, x, 289)
    refused("input is torch.float32, but must be float8_e5m2", plain.npu_dtype_cast, x, 6, 291)
    refused("input_dtype is 5, but must be that of input, torch.float32", plain.npu_dtype_cast, x, 6, 5)
    refused("input is torch.int32", plain.npu_dtype_cast, x.int(), 290)
    refused("input is of shape [3]", plain.npu_dtype_cast, x[:3], 296)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_linear(dtype: Any) -> None:
    for m, n, k in ((3, 4, 5), (1, 1, 1), (0, 2, 3), (2, 3, 0)):
        x, w, b, dy = (torch.randn(size).to(dtype) for size in ((m, k), (n, k), (n,), (m, n)))
        wanted, (dx, dw) = gradients(lambda x, w: x @ w.T, [x, w], dy)
        near(matmul.npu_linear(x, w), wanted)
        near(matmul.npu_linear(x, w, b), wanted + b.double())
        for got, gradient in zip(matmul.npu_linear_backward(dy, x, w), (dx, dw), strict=True):
            near(got, gradient)
    refused("npu_linear: input is of shape [3], but must have 2 dimensions", matmul.npu_linear, b, w)
    refused("weight is of shape [3, 0], but must have 2 columns", matmul.npu_linear, torch.zeros(2, 2).to(dtype), w)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 4), (2, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((1, 3, 4), (2, 4, 5)),
        ((3, 4), (4, 5)),
        ((0, 3, 4), (0, 4, 5)),
    ],
)
def test_batched_products(dtype: Any, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = torch.randn(left).to(dtype), torch.randn(right).to(dtype)
    dy = torch.randn((a.double() @ b.double()).shape).to(dtype)
    wanted, (da, db) = gradients(torch.matmul, [a, b], dy)
    near(matmul.npu_bmmV2(a, b, []), wanted)
    near(matmul.npu_bmm_v2_mat1_backward(dy, a, b, left), da)
    near(matmul.npu_bmm_v2_mat2_backward(dy, a, b, right), db)


def test_batched_products_are_summed_or_refused() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    near(matmul.npu_bmmV2(a, b, [1, 3, 5]), (a.double() @ b.double()).sum(0, keepdim=True))
    refused("output_sizes is [3, 3, 5]", matmul.npu_bmmV2, a, b, [3, 3, 5])
    refused("npu_bmmV2: mat2 is of shape [2, 3, 4], but must fit self", matmul.npu_bmmV2, a, a, [])
    refused("mat2 is of shape [3, 4, 5]", matmul.npu_bmmV2, a, torch.randn(3, 4, 5), [])
    refused("must be a matrix", matmul.npu_bmmV2, a[0, 0], b[0, :, 0], [])
    refused("not of int8", matmul.npu_bmmV2, a.to(torch.int8), b.to(torch.int8), [])


def groups_of(ends: list[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends], ends, strict=False))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("ends", [[2, 5, 9], [0, 9, 9], [1, 1, 4], [0, 0, 0]])
@pytest.mark.parametrize("biased", [False, True])
def test_grouped_matmul_by_rows(dtype: Any, ends: list[int], biased: bool) -> None:
    x, weight = torch.randn(9, 4).to(dtype), torch.randn(3, 4, 6).to(dtype)
    bias = [torch.randn(6).to(dtype) for _ in range(3)] if biased else None
    wanted = torch.zeros(9, 6, dtype=torch.float64)
    for i, (begin, end) in enumerate(groups_of(ends)):
        wanted[begin:end] = x[begin:end].double() @ weight[i].double() + (bias[i].double() if bias else 0)
    sizes = [end - begin for begin, end in groups_of(ends)]
    calls: list[dict[str, Any]] = [
        {"group_list": torch.tensor(ends), "group_type": 0},
        {"group_list": torch.tensor(sizes), "group_type": 0, "group_list_type": 1},
        {"group_list": ends},
    ]
    for options in calls:
        for weights in ([weight], list(weight)):
            (whole,) = grouped_matmul.npu_grouped_matmul([x], weights, bias=bias, split_item=3, **options)
            near(whole, wanted)
            parts = grouped_matmul.npu_grouped_matmul([x], weights, bias=bias, split_item=0, **options)
            for (begin, end), part in zip(groups_of(ends), parts, strict=True):
                near(part, wanted[begin:end])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_grouped_matmul_that_is_added(dtype: Any, flat: bool) -> None:
    sizes = (3, 0, 4)
    x, dy = torch.randn(7, 5).to(dtype), torch.randn(7, 6).to(dtype)
    shape = (15, 6) if flat else (3, 5, 6)
    total = torch.randn(shape, dtype=dtype if dtype is torch.float64 else torch.float32)
    parts = zip(x.double().split(sizes), dy.double().split(sizes), strict=True)
    wanted = total.double() + torch.stack([left.T @ right for left, right in parts]).view(shape)
    for ends, kind in ((torch.tensor(sizes).cumsum(0), 0), (torch.tensor(sizes), 1)):
        near(grouped_matmul.npu_grouped_matmul_add(total, x, dy, ends, group_list_type=kind), wanted)
    before = total.clone()
    assert grouped_matmul.npu_grouped_matmul_add_(total, x, dy, torch.tensor(sizes).cumsum(0)) is total
    near(total, wanted)
    ends = torch.tensor([3, 7])
    refused(
        "input is of shape [3, 5, 6], but must be of shape [2, 5, 6]",
        grouped_matmul.npu_grouped_matmul_add, before.view(3, 5, 6),
        x, dy, ends,
    )  # fmt: skip
    for name, wrong in {"transpose_x": False, "transpose_weight": True, "group_type": 0}.items():
        refused(
            f"{name} is {wrong}, but must be",
            grouped_matmul.npu_grouped_matmul_add_,
            total,
            x,
            dy,
            ends,
            **{name: wrong},
        )


def test_grouped_matmul_of_lists_by_columns_and_differentiated() -> None:
    xs, ws = [torch.randn(2, 3), torch.randn(4, 5)], [torch.randn(3, 6), torch.randn(5, 6)]
    for y, x, w in zip(grouped_matmul.npu_grouped_matmul(xs, ws, group_type=-1), xs, ws, strict=True):
        near(y, x.double() @ w.double())
    (one,) = grouped_matmul.npu_grouped_matmul(xs, ws, group_type=0, split_item=2)
    near(one, torch.cat([x.double() @ w.double() for x, w in zip(xs, ws, strict=True)]))
    (deep,) = grouped_matmul.npu_grouped_matmul([torch.randn(2, 2, 3)], ws[:1], group_type=-1)
    assert deep.shape == (2, 2, 6)
    x, w, ends = torch.randn(4, 7), torch.randn(7, 5), torch.tensor([3, 3, 6])
    wanted = [x[:, b:e].double() @ w[b:e].double() for b, e in groups_of(ends.tolist())]
    (stacked,) = grouped_matmul.npu_grouped_matmul([x], [w], group_list=ends, group_type=2, split_item=3)
    near(stacked, torch.stack(wanted))
    for part, value in zip(
        grouped_matmul.npu_grouped_matmul([x], [w], group_list=ends, group_type=2), wanted, strict=True
    ):
        near(part, value)
    half = grouped_matmul.npu_grouped_matmul([x.half()], [w.half()], group_type=-1, output_dtype=6)[0]
    assert half.dtype == torch.float32
    given = [
        torch.randn(5, 3, dtype=torch.float64).requires_grad_(),
        torch.randn(2, 3, 4, dtype=torch.float64).requires_grad_(),
    ]
    call = {"group_list": torch.tensor([2, 4]), "group_type": 0, "split_item": 2}
    assert torch.autograd.gradcheck(lambda x, w: grouped_matmul.npu_grouped_matmul([x], [w], **call)[0], given)


def test_grouped_matmul_refuses() -> None:
    x, w = torch.randn(4, 3), torch.randn(2, 3, 5)
    call: dict[str, Any] = {"group_list": torch.tensor([2, 4]), "group_type": 0, "split_item": 3}

    def sentence(words: str, **changed: Any) -> None:
        tensors = {"x": [x], "weight": [w]} | {name: changed.pop(name) for name in ("x", "weight") if name in changed}
        refused(words, grouped_matmul.npu_grouped_matmul, tensors["x"], tensors["weight"], **{**call, **changed})

    sentence("x is torch.float32, but must be int8", scale=[torch.ones(5)])
    sentence("act_type is 1, but must be 0", act_type=1)
    sentence("x_dtype is 290", x_dtype=290)
    sentence("group_type is None, but must be -1, 0 or 2", group_type=None)
    sentence("group_type is 0, but must be None where group_list is a list", group_list=[2, 4])
    sentence("group_list_type is 2", group_list_type=2)
    sentence("split_item is 5", split_item=5)
    sentence("group_list is of length 3", group_list=torch.tensor([1, 2, 4]))
    sentence("group_list is [2, 5], but must end within the 4 rows", group_list=torch.tensor([2, 5]))
    sentence("group_list is [3, 2], but must give no group fewer", group_list=torch.tensor([3, 2]))
    sentence("scale is None, but must be given where x is quantised", x=[x.to(torch.int8)])
    sentence("weight of group 0 is of shape [4, 5]", weight=[torch.randn(2, 4, 5)])
    sentence("bias is for 1 groups, but must be for 2", bias=[torch.randn(5)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("topk", [None, 1, 3])
@pytest.mark.parametrize("kept", [None, 0, 4, 100, -2])
def test_moe_tokens(dtype: Any, topk: int | None, kept: int | None) -> None:
    count, width = 5, 4
    tokens = torch.randn(count, width).to(dtype)
    indices = torch.randint(0, 3, (count,) if topk is None else (count, topk))
    k = topk or 1
    pairs = count * k
    total = min(kept, pairs) if kept and kept > 0 else pairs + (kept or 0)
    experts = indices.flatten().tolist()
    order = sorted(range(pairs), key=lambda pair: (experts[pair], pair))
    permuted, places = permute.npu_moe_token_permute(tokens, indices, kept)
    assert places.dtype == torch.int32
    assert [order[place] for place in places.tolist()] == list(range(pairs))
    assert torch.equal(permuted, tokens[[pair // k for pair in order[:total]]])
    dy = torch.randn(total, width).to(dtype)
    wanted = torch.zeros(count, width, dtype=torch.float64)
    for place, pair in enumerate(order[:total]):
        wanted[pair // k] += dy[place].double()
    near(permute.npu_moe_token_permute_grad_v2(dy, places, count, dtype, k), wanted)
    near(permute.npu_moe_token_permute_grad(tokens, dy, indices, places), wanted)

    probs = None if topk is None else torch.rand(count, k).to(dtype)

    def defined(permuted: Tensor, probs: Tensor | None = None) -> Tensor:
        whole = torch.cat((permuted, permuted.new_zeros(pairs - total, width)))
        gathered = whole[places.long()].view(count, k, width)
        return (gathered if probs is None else gathered * probs.unsqueeze(-1)).sum(1)

    given = [permuted] if probs is None else [permuted, probs]
    back = torch.randn(count, width).to(dtype)
    wanted, derived = gradients(defined, given, back)
    result, saved = permute._npu_moe_token_unpermute(permuted, places, probs)
    near(result, wanted)
    assert torch.equal(permute.npu_moe_token_unpermute(permuted, places, probs), result)
    assert (saved is None) == (probs is None)
    for got in (
        permute.npu_moe_token_unpermute_grad_v2(back, places, total, dtype, probs, permuted_tokens=saved),
        permute.npu_moe_token_unpermute_grad(permuted, back, places, probs),
    ):
        near(got[0], derived[0])
        assert (got[1] is None) == (probs is None)
        if got[1] is not None:
            near(got[1], derived[1])


def test_moe_tokens_empty_and_refused() -> None:
    tokens, indices = torch.randn(3, 4), torch.tensor([[0, 1], [1, 1], [0, 0]])
    empty, places = permute.npu_moe_token_permute(tokens[:0], indices[:0])
    assert empty.shape == (0, 4)
    assert places.shape == (0,)
    assert permute.npu_moe_token_unpermute(empty, places, torch.rand(0, 2)).shape == (0, 4)
    refused(
        "npu_moe_token_permute: padded_mode is True, but must be False",
        permute.npu_moe_token_permute,
        tokens,
        indices,
        None,
        True,
    )
    refused("tokens is of shape [1, 3, 4]", permute.npu_moe_token_permute, tokens[None], indices)
    refused("indices is of shape [2, 2]", permute.npu_moe_token_permute, tokens, indices[:2])
    refused("num_out_tokens is -7", permute.npu_moe_token_permute, tokens, indices, -7)
    permuted, places = permute.npu_moe_token_permute(tokens, indices)
    refused(
        "sorted_indices is of shape [6], but must be of shape [8]",
        permute.npu_moe_token_unpermute,
        permuted,
        places,
        torch.rand(4, 2),
    )
    refused("probs is of shape [6]", permute.npu_moe_token_unpermute, permuted, places, torch.rand(6))
    refused("sorted_indices is down to -1", permute.npu_moe_token_unpermute, permuted, places - 1)
    back = permute.npu_moe_token_permute_grad
    refused("tokens is torch.int64", back, tokens.long(), permuted, indices, places)
    refused("indices is of shape [2, 2]", back, tokens, permuted, indices[:2], places)
    refused("grad_permuted_tokens is of shape [6, 3]", back, tokens, permuted[:, 1:], indices, places)
    refused("tokens_size_0 is -1", permute.npu_moe_token_permute_grad_v2, permuted, places, -1, torch.float32, 2)
    back, probs = permute.npu_moe_token_unpermute_grad, torch.rand(3, 2)
    refused("permuted_tokens is of shape [6]", back, permuted[:, 0], tokens, places, probs)
    refused("permuted_tokens is of shape [6, 3]", back, permuted[:, 1:], tokens, places, probs)
    refused("probs is torch.int64", back, permuted, tokens, places, probs.long())
    refused("probs is of shape [2, 2]", back, permuted, tokens, places, probs[1:])
    back = permute.npu_moe_token_unpermute_grad_v2
    refused("permuted_tokens is None", back, tokens, places, 6, torch.float32, probs)
    refused(
        "permuted_tokens is of shape [6, 4]", back, tokens, places, 7, torch.float32, probs, permuted_tokens=permuted
    )


def test_gradients_of_a_row_that_is_taken_twice_add_up() -> None:
    places, dy = torch.tensor([1, 1, 0, 2, 2, 2]), torch.randn(3, 4)
    permuted, probs = torch.randn(3, 4), torch.rand(3, 2)
    _, wanted = gradients(lambda rows, p: (rows[places].view(3, 2, 4) * p.unsqueeze(-1)).sum(1), [permuted, probs], dy)
    for got, each in zip(permute.npu_moe_token_unpermute_grad(permuted, dy, places, probs), wanted, strict=True):
        near(got, each, size=1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (6, 3, 2, 2), (6, 3, 2, 1, 2)])
def test_a_batch_norm_in_two_parts(shape: tuple[int, ...], dtype: Any) -> None:
    """What two processes compute of a batch, beside batch norm of the whole of it in float64."""
    channels, momentum, eps = shape[1], 0.3, 1e-5
    x, dy = (torch.randn(shape).mul(2).add(1).to(dtype) for _ in range(2))
    weight, bias = (torch.rand(channels).add(0.5) for _ in range(2))
    now = [torch.rand(channels).to(dtype) for _ in range(2)]

    def about(got: Tensor, wanted: Tensor) -> None:
        error = (got.double() - wanted).abs().max()  # the statistics are rounded to float32 before they are used
        assert error <= 8 * max(TOLERANCE[dtype], TOLERANCE[torch.float32]) * max(wanted.abs().max(), 1), error

    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    wanted_running = [t.double().clone() for t in now]
    y = torch.nn.functional.batch_norm(leaves[0], *wanted_running, *leaves[1:], True, momentum, eps)
    gradients_wanted = torch.autograd.grad(y, leaves, dy.double())

    parts, dys = x.split([2, 4]), dy.split([2, 4])
    counts = torch.tensor([part.numel() // channels for part in parts], dtype=torch.float32)
    reduced = sync_batch_norm.batch_norm_reduce
    sums, squares = (torch.stack(t) for t in zip(*(reduced(p, eps) for p in parts), strict=True))
    assert sums.dtype == squares.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    given = (sums, squares, *now, momentum, eps, counts)
    mean, invstd = sync_batch_norm.batch_norm_gather_stats_update(parts[0], *given)
    stats = [sync_batch_norm.batch_norm_stats(part, eps) for part in parts]
    also = sync_batch_norm.batch_norm_gather_stats_with_counts(
        parts[0], *(torch.stack(t) for t in zip(*stats, strict=True)), None, None, momentum, eps, counts
    )
    for one, other in zip((mean, invstd), also, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for got, value in zip(now, wanted_running, strict=True):
        about(got, value)
    normal = [sync_batch_norm.batch_norm_elemt(p, weight, bias, mean, invstd, eps) for p in parts]
    assert normal[0].dtype == dtype
    about(torch.cat(normal), y.detach())

    asked = [
        sync_batch_norm.batch_norm_backward_reduce(d, p, mean, invstd, weight, True, True, True)
        for d, p in zip(dys, parts, strict=True)
    ]
    sum_dy, sum_dy_xmu, dweight, dbias = (sum(t) for t in zip(*asked, strict=True))
    dx = [
        sync_batch_norm.batch_norm_backward_elemt(d, p, mean, invstd, weight, sum_dy, sum_dy_xmu, counts)
        for d, p in zip(dys, parts, strict=True)
    ]
    for got, value in zip((torch.cat(dx), dweight, dbias), gradients_wanted, strict=True):
        about(got, value)
    nothing = sync_batch_norm.batch_norm_backward_reduce(dy, x, mean, invstd, weight, False, False, False)
    assert nothing == (None, None, None, None)


def test_batch_norms_of_processes_with_as_many_elements() -> None:
    pytest.importorskip("torch_npu")
    x, running = torch.randn(6, 3, 4), [torch.rand(3) for _ in range(2)]
    stats = zip(*(sync_batch_norm.batch_norm_stats(part, 1e-5) for part in x.split(3)), strict=True)
    given = [x, *(torch.stack(each) for each in stats)]
    wanted = [each.clone().double() for each in running]
    torch.nn.functional.batch_norm(x.double(), *wanted, training=True, momentum=0.2)
    on_device = [each.npu() for each in (*given, *running)]
    mean, invstd = torch.batch_norm_gather_stats(*on_device, 0.2, 1e-5, 12)
    near(mean.cpu(), x.double().mean((0, 2)))
    near(invstd.cpu(), (x.double().var((0, 2), correction=0) + 1e-5).rsqrt(), size=4.0)
    for got, expected in zip(on_device[3:], wanted, strict=True):
        near(got.cpu(), expected)


def test_a_batch_norm_that_is_refused() -> None:
    x, three = torch.ones(2, 3, 4), torch.ones(3)
    refused("input is of shape [3]", sync_batch_norm.batch_norm_reduce, three, 1e-5)
    refused("input is torch.int64", sync_batch_norm.batch_norm_stats, x.long(), 1e-5)
    refused("weight is of shape [2]", sync_batch_norm.batch_norm_elemt, x, three[:2], None, three, three, 1e-5)
    rows = torch.ones(2, 3)
    gather = sync_batch_norm.batch_norm_gather_stats_update
    refused("sums is of shape [3]", gather, x, three, rows, None, None, 0.1, 1e-5, three[:2])
    refused("running_mean is of shape [2]", gather, x, rows, rows, three[:2], three, 0.1, 1e-5, three[:2])
    backward = sync_batch_norm.batch_norm_backward_reduce
    refused("grad_out is of shape [3]", backward, three, x, three, three, None, True, True, True)


def test_autograd_may_have_no_gradient_of_a_result() -> None:
    """It calls with None then, which the gradients of several tensors get as it is."""
    pytest.importorskip("torch_npu")
    from descend.npu import kernels, rules

    found = 0
    for row in TABLE:
        for kernel in row.kernels:
            name = kernel if "::" in kernel else f"npu::{kernel}"
            schema = rules.operator(name)._schema
            names = [argument.name for argument in schema.arguments]
            if row.gradient.startswith("none") or not any(map(kernels._OF_RESULTS.fullmatch, names)):
                continue
            found += 1
            given = [None if kernels._OF_RESULTS.fullmatch(each) else torch.ones(2) for each in names]
            results = kernels._first_then(row, kernel)(*given)
            assert results == (None if len(schema.returns) == 1 else (None,) * len(schema.returns)), kernel
    assert found > 20


def test_tensors_that_are_missing_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    x, indices = torch.ones(4, 3).npu(), torch.zeros(4, dtype=torch.int32).npu()
    with pytest.raises(RuntimeError, match="npu_interleave_rope: cos is None, but must be given"):
        npu.npu_interleave_rope(x[None, None, :, :2], None, x)
    with pytest.raises(RuntimeError, match="grad is None, but must be given"):
        npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(None, x, x, x, indices)
    with pytest.raises(RuntimeError, match="sorted_indices is None, but must be given"):
        npu.npu_moe_token_permute_grad(x, x, indices, None)
    tokens = x.clone().requires_grad_()
    attention = npu.npu_fusion_attention(*[tokens.view(1, 4, 3)] * 3, 1, "BSH")
    assert torch.autograd.grad(attention[1].sum(), tokens, allow_unused=True) == (None,)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("device", ["npu", "meta"])
def test_a_default_device_does_not_reach_into_operators(device: str) -> None:
    """What C++ calls is not called by way of PyTorch's modes, of which a default device is one."""
    pytest.importorskip("torch_npu")
    q, mask = torch.randn(1, 1, 5, 4).npu(), torch.zeros(5, 5, dtype=torch.bool).npu()

    @torch.jit.script
    def attention(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        options = torch.ops.npu.npu_fusion_attention(q, q, q, 1, "BNSD", atten_mask=mask, pre_tockens=1, next_tockens=1)
        return options[0]

    wanted = attention(q, mask)
    with torch.device(device):
        got = attention(q, mask)
    assert torch.equal(got, wanted)


def test_table_names_what_there_is() -> None:
    names = [name for row in TABLE for name, function in functions(row) if callable(function)]
    assert len(names) == len(set(names)) == sum(len(row.kernels) for row in TABLE)
    for row in TABLE:
        assert all(
            function.__name__ in (name.replace(".out", "_out"), name.split(".")[0], f"npu_{name}")
            for name, function in ((full.removeprefix("aten::"), function) for full, function in functions(row))
        )
        derived = row.gradient.startswith(("by ", "none"))
        assert derived or all(name in row.kernels for name in row.gradient.split(", ")), row.operator


def test_operators_are_in_the_folder_whose_table_has_them() -> None:
    for folder in Path(composed.__file__).parent.glob("*/table.py"):
        sections = importlib.import_module(f"{composed.__name__}.{folder.parent.name}.table").SECTIONS
        rows = [row for title, section in sections.items() if SECTIONS[title] is section for row in section]
        wrong = [row.operator for row in rows if not row.module.startswith(f"{folder.parent.name}.")]
        assert (len(rows) > 1, wrong) == (True, []), folder


def test_docs_have_the_table() -> None:
    page = Path(__file__).parent.parent / "docs" / "npu-operators.md"
    assert markdown() in page.read_text(encoding="utf-8")
