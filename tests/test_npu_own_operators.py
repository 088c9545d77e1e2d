"""torch_npu's own operators on device npu: each call and its autograd against the formula in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch_npu = pytest.importorskip("torch_npu")

from torch.nn import functional  # noqa: E402

from descend.npu.composed import device  # noqa: E402

Tensor = Any
TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def triangle() -> Tensor:
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float = 0.5, hidden: Tensor | None = None) -> Tensor:
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * scale
    scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ v.repeat_interleave(group, 1)


def causal(size: int = 5) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def by_sequence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = [slice(0, 2), slice(2, 5)]
    return torch.cat([attention(*(t[p].transpose(0, 1)[None] for t in (q, k, v)))[0].transpose(0, 1) for p in parts])


def turned(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def interleaved(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def halves(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(a) * b


def geglu(x: Tensor, dim: int, approximate: str) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * functional.gelu(b, approximate=approximate)


def normalized(x1: Tensor, x2: Tensor, gamma: Tensor) -> Tensor:
    x = x1 + x2
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gamma


def of_sum(a: Tensor, b: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.layer_norm(a + b, gamma.shape, gamma, beta)


def grouped(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat((x[:2] @ weight[0], x[2:5] @ weight[1]))


EXPERTS = [[1, 0], [0, 2], [2, 2]]
ORDER = sorted(range(6), key=lambda pair: (EXPERTS[pair // 2][pair % 2], pair))
PLACES = [ORDER.index(pair) for pair in range(6)]
TARGET = [0, 3, 1, 2]
BSND = (2, 5, 4, 8)


def npu(values: Any) -> Tensor:
    return torch.tensor(values).npu()


def first(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda *tensors: function(*tensors, **options)[0]


def fused(version: str, heads: int, layout: str, **options: Any) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Tensor:
        moved = {name: value.npu() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        return getattr(torch_npu, f"npu_fusion_attention{version}")(*tensors, heads, layout, scale=0.5, **moved)[0]

    return call


def ends() -> dict[str, Any]:
    return {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}


HALF, PAIRS = (2, 3, 5, 8), (1, 1, 5, 8)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "attention": (
        fused("", 4, "BSND"),
        lambda q, k, v: attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2),
        [BSND, (2, 5, 2, 8), (2, 5, 2, 8)],
    ),
    "causal attention": (
        fused("_v2", 4, "BNSD", sparse_mode=2, atten_mask=triangle()),
        lambda q, k, v: attention(q, k, v, hidden=causal()),
        [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
    ),
    "masked attention": (
        fused("_v3", 4, "BNSD", atten_mask=causal()),
        lambda q, k, v: attention(q, k, v, hidden=causal()),
        [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)],
    ),
    "attention of sequences": (fused("", 4, "TND", **ends()), by_sequence, [(5, 4, 8), (5, 2, 8), (5, 2, 8)]),
    "attention with pse": (
        lambda q, k, v, p: torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", p, scale=0.5)[0],
        lambda q, k, v, p: torch.softmax((q @ k.transpose(-1, -2) + p) * 0.5, -1) @ v,
        [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), (1, 4, 5, 5)],
    ),
    "scaled_dot_product_attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: attention(q, k, v, 8**-0.5, causal()),
        [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)],
    ),
    "scaled_dot_product_attention with a mask": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, ~causal().npu()),
        lambda q, k, v: attention(q, k, v, 8**-0.5, causal()),
        [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)],
    ),
    "rotary_mul": (torch_npu.npu_rotary_mul, lambda x, c, s: x * c + turned(x) * s, [HALF, PAIRS, PAIRS]),
    "rotary_mul of pairs": (
        lambda x, c, s: torch_npu.npu_rotary_mul(x, c, s, "interleave"),
        lambda x, c, s: x * c + interleaved(x) * s,
        [HALF, PAIRS, PAIRS],
    ),
    "PyTorch's group_norm": (
        lambda x, w, b: functional.group_norm(x, 2, w, b),
        lambda x, w, b: functional.group_norm(x, 2, w, b),
        [(3, 4, 5), (4,), (4,)],
    ),
    "PyTorch's group_norm without a weight": (
        lambda x: functional.group_norm(x, 2),
        lambda x: functional.group_norm(x, 2),
        [(3, 4, 5, 2)],
    ),
    "PyTorch's softmax": (lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, -1), [(3, 7)]),
    "PyTorch's softmax along a dimension": (
        lambda x: torch.softmax(x, 1),
        lambda x: torch.softmax(x, 1),
        [(3, 7, 2)],
    ),
    "PyTorch's log_softmax": (lambda x: torch.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1), [(3, 7)]),
    "PyTorch's log_softmax along a dimension": (
        lambda x: torch.log_softmax(x, 0),
        lambda x: torch.log_softmax(x, 0),
        [(3, 7, 2)],
    ),
    "swiglu": (torch_npu.npu_swiglu, halves, [(3, 8)]),
    "swiglu along a dimension": (lambda x: torch_npu.npu_swiglu(x, 0), lambda x: halves(x, 0), [(4, 3)]),
    "gelu": (torch_npu.npu_gelu, functional.gelu, [(3, 7)]),
    "gelu with tanh": (
        lambda x: torch_npu.npu_gelu(x, approximate="tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
        [(3, 7)],
    ),
    "PyTorch's gelu, which on the device is by tanh": (
        functional.gelu,
        lambda x: functional.gelu(x, approximate="tanh"),
        [(3, 7)],
    ),
    "fast_gelu": (torch_npu.npu_fast_gelu, lambda x: x * torch.sigmoid(1.702 * x), [(3, 7)]),
    "fast_gelu by its older name": (torch_npu.fast_gelu, lambda x: x * torch.sigmoid(1.702 * x), [(3, 7)]),
    "geglu": (first(torch_npu.npu_geglu), lambda x: geglu(x, -1, "tanh"), [(3, 8)]),
    "geglu along a dimension": (
        lambda x: torch_npu.npu_geglu(x, 1, 0, True)[0],
        lambda x: geglu(x.roll(2, 1), 1, "none"),
        [(3, 4, 5)],
    ),
    "mish": (torch_npu.npu_mish, functional.mish, [(3, 7)]),
    "silu": (torch_npu.npu_silu, functional.silu, [(3, 7)]),
    "max": (lambda x: torch_npu.npu_max(x, 1)[0], lambda x: x.max(1).values, [(3, 7)]),
    "min": (lambda x: torch_npu.npu_min(x, 0, True)[0], lambda x: x.min(0, True).values, [(3, 7)]),
    "softmax_cross_entropy_with_logits": (
        lambda x: torch_npu.npu_softmax_cross_entropy_with_logits(x, npu([[0.5, 0.25, 0]]).to(x.dtype)),
        lambda x: -(torch.log_softmax(x, -1) * torch.tensor([0.5, 0.25, 0])).sum(-1),
        [(1, 3)],
    ),
    "dropout_with_add_softmax": (
        lambda a, b: torch_npu.npu_dropout_with_add_softmax(a, b, 0.5, 0.0, -1)[2],
        lambda a, b: torch.softmax(b + 0.5 * a, -1),
        [(3, 7), (3, 7)],
    ),
    "add_rms_norm": (first(torch_npu.npu_add_rms_norm), normalized, [(3, 16), (3, 16), (16,)]),
    "add_rms_norm and its sum": (
        lambda *t: torch.cat(torch_npu.npu_add_rms_norm(*t)[::2]),
        lambda a, b, gamma: torch.cat((functional.rms_norm(a + b, gamma.shape, gamma, 1e-6), a + b)),
        [(3, 2, 16), (3, 2, 16), (2, 16)],
    ),
    "gemma_rms_norm": (
        first(torch_npu.npu_gemma_rms_norm),
        lambda x, gamma: functional.rms_norm(x, gamma.shape, gamma + 1, 1e-6),
        [(3, 2, 16), (2, 16)],
    ),
    "add_layer_norm": (first(torch_npu.npu_add_layer_norm), of_sum, [(3, 2, 16), (3, 2, 16), (16,), (16,)]),
    "add_layer_norm and its sum": (
        lambda *t: torch.cat(torch_npu.npu_add_layer_norm(*t, 1e-5, True)[::3]),
        lambda a, b, *t: torch.cat((of_sum(a, b, *t), a + b)),
        [(3, 16), (3, 16), (16,), (16,)],
    ),
    "deep_norm": (
        lambda x, gx, beta, gamma: torch_npu.npu_deep_norm(x, gx, beta, gamma, 0.3, 1e-5)[2],
        lambda x, gx, beta, gamma: of_sum(0.3 * x, gx, gamma, beta),
        [(3, 2, 16), (3, 2, 16), (2, 16), (2, 16)],
    ),
    "confusion_transpose": (
        lambda x: torch_npu.npu_confusion_transpose(x, (0, 2, 1, 3), (2, 4, 18), True),
        lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 18),
        [(2, 3, 4, 6)],
    ),
    "confusion_transpose after a reshape": (
        lambda x: torch_npu.npu_confusion_transpose(x, (0, 2, 1), (2, 12, 6), False),
        lambda x: x.reshape(2, 12, 6).permute(0, 2, 1),
        [(2, 3, 4, 6)],
    ),
    "grouped_matmul": (
        lambda x, w: torch_npu.npu_grouped_matmul([x], [w], group_list=npu([2, 5]), group_type=0, split_item=3)[0],
        grouped,
        [(5, 4), (2, 4, 6)],
    ),
    "grouped_matmul by a list": (
        lambda x, a, b: torch_npu.npu_grouped_matmul([x], [a, b], group_list=[2, 5], split_item=3)[0],
        lambda x, a, b: grouped(x, [a, b]),
        [(5, 4), (4, 6), (4, 6)],
    ),
    "moe_token_permute": (
        lambda x: torch_npu.npu_moe_token_permute(x, npu(EXPERTS))[0],
        lambda x: x[[pair // 2 for pair in ORDER]],
        [(3, 4)],
    ),
    "moe_token_unpermute": (
        lambda x, p: torch_npu.npu_moe_token_unpermute(x, npu(PLACES).int(), p),
        lambda x, p: (x[PLACES].view(3, 2, 4) * p.unsqueeze(-1)).sum(1),
        [(6, 4), (3, 2)],
    ),
    "moe_token_unpermute without weights": (
        lambda x: torch_npu.npu_moe_token_unpermute(x, npu(PLACES).int()),
        lambda x: x[PLACES],
        [(6, 4)],
    ),
    "cross_entropy_loss": (
        lambda x: torch_npu.npu_cross_entropy_loss(x, npu(TARGET))[0],
        lambda x: functional.cross_entropy(x, torch.tensor(TARGET)).view(1),
        [(4, 6)],
    ),
    "cross_entropy_loss of each": (
        lambda x: torch_npu.npu_cross_entropy_loss(x, npu(TARGET), reduction="none", ignore_index=3)[0],
        lambda x: functional.cross_entropy(x, torch.tensor(TARGET), reduction="none", ignore_index=3),
        [(4, 6)],
    ),
    "linear": (torch_npu.npu_linear, functional.linear, [(3, 4), (5, 4), (5,)]),
    "bmmV2": (lambda a, b: torch_npu.npu_bmmV2(a, b, []), torch.matmul, [(2, 3, 4), (2, 4, 5)]),
    "bmmV2 of a matrix": (lambda a, b: torch_npu.npu_bmmV2(a, b, []), torch.matmul, [(3, 4), (2, 4, 5)]),
    "dtype_cast": (lambda x: torch_npu.npu_dtype_cast(x, x.dtype), lambda x: x * 1, [(3, 4)]),
}


def near(got: Tensor, wanted: Tensor, what: str) -> None:
    assert got.device.type == "npu"
    assert got.shape == wanted.shape
    error = (got.detach().cpu().double() - wanted).abs().max().item()
    assert error <= TOLERANCE[got.dtype] * max(wanted.abs().max().item(), 1.0), (what, error)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, dtype: Any) -> None:
    call, defined, shapes = CASES[name]
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    with torch.no_grad():
        plain = call(*(t.npu() for t in given))
    leaves = [t.npu().requires_grad_() for t in given]
    wide = [t.double().requires_grad_() for t in given]
    result, wanted = call(*leaves), defined(*wide)
    assert result.dtype == dtype
    near(result, wanted.detach(), "result")
    near(plain, wanted.detach(), "result without autograd")
    dy = torch.randn(wanted.shape).to(dtype)
    got = torch.autograd.grad(result, leaves, dy.npu())
    for gradient, right, which in zip(got, torch.autograd.grad(wanted, wide, dy.double()), range(9), strict=False):
        assert gradient.dtype == dtype
        near(gradient, right, f"gradient {which}")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rotary_mul_by_a_matrix(dtype: Any) -> None:
    """That of the halves gives what the mode gives; without it the mode counts."""
    x, cos, sin = (torch.randn(shape).to(dtype) for shape in (HALF, PAIRS, PAIRS))
    matrix = torch.zeros(8, 8, dtype=dtype)
    matrix[:4, 4:], matrix[4:, :4] = torch.eye(4), -torch.eye(4)
    wide = [t.double() for t in (x, cos, sin)]
    result = torch_npu.npu_rotary_mul(*(t.npu() for t in (x, cos, sin)), "half", matrix.npu())
    near(result, wide[0] * wide[1] + turned(wide[0]) * wide[2], "result")
    three = torch_npu.npu_rotary_mul(*(t.npu() for t in (x, cos, sin)), "interleave", 3 * matrix.npu())
    near(three, wide[0] * wide[1] + 3 * turned(wide[0]) * wide[2], "result of another matrix")


def test_casts() -> None:
    x = torch.randn(3, 4).npu().requires_grad_()
    half = torch_npu.npu_dtype_cast(x, torch.float16)
    assert half.dtype == torch.float16
    (dx,) = torch.autograd.grad(half, x, torch.ones_like(half))
    assert dx.dtype == torch.float32
    assert torch.equal(dx.cpu(), torch.ones(3, 4))
    assert torch_npu._npu_dtype_cast(x.detach(), torch.int32).dtype == torch.int32
    target = torch.zeros(3, 4, dtype=torch.int64).npu()
    assert torch_npu.npu_dtype_cast_(target, (x.detach() * 9)).cpu().equal((x.detach().cpu() * 9).long())


@pytest.mark.parametrize("wanted", [0, 2, 29, 3, 4])
def test_formats(wanted: int) -> None:
    x = torch.randn(2, 3, 4, 4)
    for cast in (torch_npu.npu_format_cast, torch_npu.npu_format_cast_):
        given = x.npu()
        result = cast(given, wanted)
        assert torch.equal(result.cpu(), x)
        assert torch.equal((result + 1).cpu(), x + 1)
        if wanted in (0, 2):
            assert int(torch_npu.get_npu_format(result)) == wanted
    if wanted in (0, 2):
        return  # torch_npu gives the same tensor back, which a leaf cannot be
    leaf = x.npu().requires_grad_()
    torch_npu.npu_format_cast(leaf, wanted).sum().backward()
    assert torch.equal(leaf.grad.cpu(), torch.ones_like(x))


def test_adam_w() -> None:
    var, m, v, grad = (torch.rand(5, 3) for _ in range(4))
    out = [t.npu() for t in (var, m, v)]
    results = torch_npu.npu_apply_adam_w(0.9, 0.99, 0.1, 0.01, 0.9, 0.99, 1e-8, grad.npu(), None, False, False, out=out)
    m, v = m * 0.9 + grad * 0.1, v * 0.99 + grad * grad * 0.01
    wanted = var * (1 - 0.1 * 0.01) - 0.1 * (m / (1 - 0.81)) / ((v / (1 - 0.99**2)).sqrt() + 1e-8)
    for tensor, result, value in zip(out, results, (wanted, m, v), strict=True):
        torch.testing.assert_close(tensor.cpu(), value)
        assert result.data_ptr() == tensor.data_ptr()


def test_adam_of_bert() -> None:
    var, m, v, grad = (torch.rand(5, 3) for _ in range(4))
    out = [t.npu() for t in (var, m, v)]
    results = torch_npu.npu_bert_apply_adam(0.1, 0.9, 0.99, 1e-6, grad.npu(), -1.0, 0.0, 0.01, out=out)
    m, v = m * 0.9 + grad * 0.1, v * 0.99 + grad * grad * 0.01
    torch.testing.assert_close(out[0].cpu(), var - 0.1 * (m / (v.sqrt() + 1e-6) + 0.01 * var))
    assert [r.data_ptr() for r in results] == [t.data_ptr() for t in out]


def test_dropout_follows_the_device_s_seed() -> None:
    q, k, v = (torch.randn(2, 4, 16, 8).npu().requires_grad_() for _ in range(3))

    def run(seed: int) -> list[Tensor]:
        torch.npu.manual_seed(seed)
        out = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
        return [out, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))]

    one, again, other = run(3), run(3), run(4)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    torch.npu.manual_seed(3)
    first, second = (functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3) for _ in range(2))
    assert not torch.equal(first, second)


def test_masks_of_dropout() -> None:
    x = torch.ones(5, 77).npu().requires_grad_()

    def run(seed: int) -> list[Tensor]:
        torch.npu.manual_seed(seed)
        y, bits = torch_npu._npu_dropout(x, 0.3)
        z = torch_npu.dropout_with_byte_mask(x.detach(), 0.3, True)
        mask = torch_npu.npu_dropout_gen_mask([5, 77], 0.3, dtype=torch.float32, device="npu")
        return [y, bits, z, mask, *torch.autograd.grad(y, x, torch.ones_like(y))]

    one, again, other = run(3), run(3), run(4)
    assert all(each.device.type == "npu" for each in one)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    y, bits, z, mask, dx = one
    assert torch.equal(dx, y)
    assert torch.equal(torch_npu.npu_dropout_do_mask(x, bits, 0.3)[0], y)
    assert torch.equal(torch_npu._npu_dropout_gen_mask(x, [5, 77], 0.3, 3, 0), bits)
    for kept in (y, z, torch_npu.npu_dropout_do_mask(x, mask, 0.3)[0]):
        assert set(kept.unique().tolist()) == {0.0, (torch.ones(()) / 0.7).item()}


def test_an_attention_with_projections() -> None:
    x, w = torch.randn(16, 256).npu(), (torch.randn(256, 256) / 16).npu().requires_grad_()
    hidden, numbers = torch.zeros(1, 1, 16, 16).npu(), (16, 16, 16, 16, 0.0, True)
    results = torch_npu.npu_multi_head_attention(x, x, x, w, w, w, hidden, w, None, None, None, None, None, *numbers)
    assert all(each.is_contiguous() for each in results)  # as torch_npu tells torch.compile
    y = results[0]
    y.sum().backward()
    heads = (x @ w.T).cpu().double().view(16, 16, 16).transpose(0, 1).unsqueeze(0)
    wanted = attention(heads, heads, heads, 0.25)[0].transpose(0, 1).reshape(16, 256) @ w.cpu().double().T
    near(y, wanted.detach(), "result")
    assert w.grad is not None


def test_copies() -> None:
    x = torch.arange(12.0).view(3, 4)
    there = x.npu()
    for got, wanted in (
        (torch_npu.npu_slice(there, [1, 0], [2, 3]), x[1:3, :3]),
        (torch_npu.npu_transpose(there, [1, 0]), x.T),
        (torch_npu.npu_broadcast(there, [2, 3, 4]), x.expand(2, 3, 4)),
        (torch_npu.npu_pad(there, [1, 0, 0, 2]), functional.pad(x, (0, 2, 1, 0))),
        (torch_npu.npu_sort_v2(there, descending=True), x.flip(1)),
        (torch_npu.npu_one_hot(torch.tensor([0, 2]).int().npu(), depth=3), torch.eye(3)[[0, 2]]),
        (torch_npu.npu_silu_(there), functional.silu(x)),
    ):
        near(got, wanted.double(), "copy")


def test_statistics_are_the_documented_ones() -> None:
    q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
    results = torch_npu.npu_fusion_attention(q.npu(), k.npu(), v.npu(), 4, "BNSD")
    assert [r.shape for r in results[:4]] == [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), (0,)]
    assert results[4:] == (0, 0, 2 * 4 * 5 * 5)
    torch.testing.assert_close(results[1][..., 0].cpu(), (q @ k.transpose(-1, -2)).amax(-1))
    seeds = torch_npu.npu_fusion_attention_v3(q.npu(), k.npu(), v.npu(), 4, "BNSD")[4:]
    assert [(s.device.type, s.shape) for s in seeds] == [("cpu", (1,)), ("cpu", (1,))]
    options = {"actual_seq_qlen": torch.tensor([2, 5]), "actual_seq_kvlen": torch.tensor([2, 5])}
    tnd = [t[0].transpose(0, 1).npu() for t in (q, k, v)]
    out = torch_npu.npu_fusion_attention_v3(*tnd, 4, "TND", scale=0.5, **options)[0]
    torch.testing.assert_close(out.cpu(), by_sequence(*(t.cpu() for t in tnd)))


def test_a_refusal_is_a_runtime_error_with_a_sentence() -> None:
    q = torch.randn(2, 4, 5, 8).npu()
    with pytest.raises(RuntimeError, match="npu_fusion_attention: sparse_mode is 9, but must be one of"):
        torch_npu.npu_fusion_attention(q, q, q, 4, "BNSD", sparse_mode=9)
    with pytest.raises(RuntimeError, match=r"npu_fast_gelu: self is torch\.int32"):
        torch_npu.npu_fast_gelu(q.int())
    assert torch.equal((q + 1).cpu(), q.cpu() + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [8, 6, 300])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("masked", ["causal", "bool", "float", None])
def test_scaled_dot_product_attention_in_all_its_ways(
    dtype: Any, size: int, heads: tuple[int, int], masked: str
) -> None:
    """Fused or taken apart, with autograd and without: the formula's."""
    q, k, v = (torch.randn(2, n, 5, size).to(dtype) for n in (heads[0], heads[1], heads[1]))
    hidden = None if masked is None else causal()
    mask = {"bool": ~causal(), "float": torch.zeros(5, 5).masked_fill(causal(), -torch.inf).to(dtype)}.get(masked)
    options = {"is_causal": masked == "causal", "scale": 0.3, "enable_gqa": heads[0] != heads[1]}
    options["attn_mask"] = None if mask is None else mask.npu()
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    wanted = attention(*wide, 0.3, hidden)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            leaves = [t.npu().requires_grad_(mode is torch.enable_grad) for t in (q, k, v)]
            out = functional.scaled_dot_product_attention(*leaves, **options)
        tolerance = {torch.float64: 1e-9}.get(dtype, TOLERANCE.get(dtype))
        torch.testing.assert_close(out.detach().cpu().double(), wanted.detach(), rtol=tolerance, atol=tolerance)
    dy = torch.randn(out.shape).to(dtype)
    got = torch.autograd.grad(out, leaves, dy.npu())
    for gradient, right in zip(got, torch.autograd.grad(wanted, wide, dy.double()), strict=True):
        scale = tolerance * max(1.0, right.abs().max().item())
        torch.testing.assert_close(gradient.cpu().double(), right, rtol=tolerance, atol=scale)


def test_a_causal_mask_first_made_in_inference_or_under_a_mode_serves_training() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    q = torch.randn(1, 2, 5, 8).npu()
    for first_use in (torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True)):
        device._triangle.cache_clear()
        with first_use:
            functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        leaf = q.clone().requires_grad_()
        out = functional.scaled_dot_product_attention(leaf, leaf, leaf, is_causal=True)
        out.sum().backward()
        near(out, attention(*(q.cpu().double(),) * 3, 8**-0.5, causal()), "result")
        assert leaf.grad.isfinite().all()
