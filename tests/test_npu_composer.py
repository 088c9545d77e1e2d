"""Functions of aclnn that PyTorch computes, called as C++ extensions of torch_npu call them: by both phases, in C."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forks

torch = pytest.importorskip("torch")
torch_npu = pytest.importorskip("torch_npu")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from c_library import FORMATS, Library, byref, c_uint64, c_void_p  # noqa: E402
from descend import _npu_aclnn  # noqa: E402

Tensor = Any
DTYPES = {
    torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.int32: 3, torch.uint8: 4, torch.int64: 9, torch.bool: 12,
    torch.complex64: 16, torch.bfloat16: 27,
}  # fmt: skip
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SIGNATURES = {
    "aclnnGroupedMatmul": "lllllllail",
    "aclnnGroupedMatmulV2": "lllllllaiil",
    "aclnnGroupedMatmulV3": "llllllltiil",
    "aclnnGroupedMatmulV4": "lllllllltllliiiilll",
    "aclnnGroupedMatmulV5": "lllllllltllliiiialll",
    "aclnnMoeTokenPermute": "ttibtt",
    "aclnnMoeTokenPermuteGrad": "ttibt",
    "aclnnMoeTokenUnpermute": "tttbat",
    "aclnnMoeTokenUnpermuteGrad": "ttttbatt",
    "aclnnRingAttentionUpdate": "tttttttsttt",
    "aclnnFlashAttentionScore": "tttttttaddiiisiitttt",
    "aclnnFlashAttentionScoreV2": "tttttttaaaddiiisiiitttt",
    "aclnnFlashAttentionVarLenScore": "tttttttaaaddiiisiitttt",
    "aclnnFlashAttentionVarLenScoreV2": "tttttttaaaaaddiiisiiitttt",
    "aclnnFlashAttentionVarLenScoreV3": "tttttttttaaaaaddiiisiiitttt",
    "aclnnFlashAttentionVarLenScoreV4": "tttttttaaaddiiisiistttt",
    "aclnnFlashAttentionScoreGrad": "ttttttttttttaddiiisiitttt",
    "aclnnFlashAttentionScoreGradV2": "ttttttttttttaaaddiiisiiitttt",
    "aclnnFlashAttentionUnpaddingScoreGrad": "ttttttttttttaaaddiiisiitttt",
    "aclnnFlashAttentionUnpaddingScoreGradV2": "ttttttttttttaaaaaddiiisiiitttt",
    "aclnnFlashAttentionUnpaddingScoreGradV3": "ttttttttttttttaaaaaddiiisiiitttttt",
    "aclnnFlashAttentionUnpaddingScoreGradV4": "ttttttttttttaaaddiiisiitttts",
    "aclnnApplyFusedEmaAdam": "ttttttdddddibd",
    "aclnnSilentCheck": "ttttjffffjt",
}
"""A letter for the type of each parameter, from Huawei's headers in hicann/ops-transformer and ops-math. Those of
aclnnRingAttentionUpdate and aclnnApplyFusedEmaAdam, which are not there, are from MindSpeed's calls."""
LETTERS = {
    "tensor": "t", "tensors": "l", "integers": "a", "int": "i", "float": "d", "bool": "b", "text": "s", "int32": "j",
    "float32": "f",
}  # fmt: skip
NUMBERS = {
    "int": ctypes.c_int64, "int32": ctypes.c_int32, "float": ctypes.c_double, "float32": ctypes.c_float,
    "bool": ctypes.c_bool,
}  # fmt: skip


@pytest.fixture(scope="module")
def lib() -> Iterator[Library]:
    torch.ones(1).npu()  # starts the device
    library = Library()
    before = library.descendGetProduct()
    yield library
    assert library.descendSetProduct(before) == 0


def value(lib: Library, kind: str, given: Any) -> Any:
    """An argument of a C function."""
    if kind in NUMBERS:
        return NUMBERS[kind](given or 0)
    if kind == "text":
        return ctypes.c_char_p(given and given.encode())
    if given is None or isinstance(given, c_void_p):
        return given or c_void_p(None)
    if kind == "integers":
        return c_void_p(lib.aclCreateIntArray((ctypes.c_int64 * len(given))(*given), len(given)))
    if kind == "tensors":
        handles = [value(lib, "tensor", each) for each in given]
        return c_void_p(lib.aclCreateTensorList((c_void_p * len(handles))(*handles), len(handles)))
    storage = given.untyped_storage()
    return c_void_p(
        lib.tensor(
            storage.data_ptr(), given.shape, DTYPES[given.dtype], given.stride(), given.storage_offset(),
            storage=[storage.nbytes() // given.itemsize],
        )
    )  # fmt: skip


def first(lib: Library, name: str, **given: Any) -> tuple[int, c_void_p]:
    """The status of the first phase, and the executor. What is not given is null, 0 or false."""
    function = _npu_aclnn.FUNCTIONS[name]
    assert not given.keys() - {p.keyword for p in function.parameters}, given.keys()
    arguments = [value(lib, p.kind, given.get(p.keyword)) for p in function.parameters]
    size, executor = c_uint64(7), c_void_p()
    return getattr(lib, f"{name}GetWorkspaceSize")(*arguments, byref(size), byref(executor)), executor


def second(lib: Library, name: str, executor: c_void_p) -> int:
    status: int = getattr(lib, name)(None, c_uint64(0), executor, None)
    return status


def called(lib: Library, name: str, **given: Any) -> None:
    status, executor = first(lib, name, **given)
    assert status == 0, lib.sentence
    assert second(lib, name, executor) == 0, lib.sentence


def refused(lib: Library, status: int, sentence: str, name: str, **given: Any) -> None:
    """By the first phase, or the second."""
    found, executor = first(lib, name, **given)
    if found == 0:
        found = second(lib, name, executor)
    assert (found, lib.sentence) == (status, f"{name}: {sentence}")


def poisoned(shape: Any, dtype: Any) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype).npu()


def near(got: Tensor, wanted: Tensor) -> None:
    assert got.shape == wanted.shape
    if wanted.numel():
        error = (got.cpu().double() - wanted).abs().max().item()
        assert error <= TOLERANCE[got.dtype] * max(1.0, wanted.abs().max().item()), error


def same(got: Tensor, wanted: Tensor) -> None:
    assert got.dtype == wanted.dtype
    assert torch.equal(got.cpu(), wanted.cpu())


def test_signatures_are_those_of_cann() -> None:
    found = {name: "".join(LETTERS[p.kind] for p in f.parameters) for name, f in _npu_aclnn.FUNCTIONS.items()}
    assert found == SIGNATURES


def test_the_page_names_every_function() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "npu-operators.md"
    text = page.read_text(encoding="utf-8").partition("## Functions of aclnn")[2]
    assert not [name for name in _npu_aclnn.FUNCTIONS if f"`{name}`" not in text]


def test_every_function_is_computed_and_its_parameters_are_known() -> None:
    for function in _npu_aclnn.FUNCTIONS.values():
        assert callable(function.compute())
        keywords = [parameter.keyword for parameter in function.parameters]
        assert len({*keywords}) == len(keywords)


# --- grouped matrix products -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("version", ["", "V2", "V3", "V4", "V5"])
@pytest.mark.parametrize("sizes", [(2, 0, 3), (1,), (4, 4, 0, 1)])
def test_grouped_rows(lib: Library, dtype: Any, version: str, sizes: tuple[int, ...]) -> None:
    x, weight = torch.randn(sum(sizes), 8).to(dtype), torch.randn(len(sizes), 6, 8).to(dtype)
    bias, out = torch.randn(len(sizes), 6), poisoned((sum(sizes), 6), dtype)
    bias = bias if dtype is torch.bfloat16 else bias.to(dtype)
    ends = torch.tensor(sizes).cumsum(0)
    given: dict[str, Any] = {"x": [x.npu()], "weight": [weight.npu().mT], "bias": [bias.npu()], "split_item": 3}
    if version in ("", "V2"):
        given["group_list"] = ends.tolist()
    else:
        given["group_list"] = (torch.tensor(sizes) if version == "V4" else ends).npu()
        given |= {"group_type": 0}
    if version == "V4":
        given["group_list_type"] = 1
    called(lib, f"aclnnGroupedMatmul{version}", **given, out=[out])
    parts = zip(x.double().split(sizes), weight.double(), bias.double(), strict=True)
    near(out, torch.cat([part @ w.T + b for part, w, b in parts]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("version", ["V2", "V4"])
def test_grouped_columns(lib: Library, dtype: Any, version: str) -> None:
    """The gradient of the weights, as MindSpeed computes it: x is transposed."""
    sizes = (3, 0, 4)
    x, dy, out = torch.randn(7, 5).to(dtype), torch.randn(7, 6).to(dtype), poisoned((3, 5, 6), dtype)
    ends = torch.tensor(sizes).cumsum(0)
    group_list = ends.tolist() if version == "V2" else ends.npu()
    given = {"x": [x.npu().T], "weight": [dy.npu()], "group_list": group_list, "split_item": 3, "group_type": 2}
    called(lib, f"aclnnGroupedMatmul{version}", **given, out=[out])
    parts = zip(x.double().split(sizes), dy.double().split(sizes), strict=True)
    near(out, torch.stack([left.T @ right for left, right in parts]))


@pytest.mark.parametrize("name", ["aclnnGroupedMatmul", "aclnnGroupedMatmulV5"])
def test_lists_of_products(lib: Library, name: str) -> None:
    x, weight = [torch.randn(2, 3), torch.randn(4, 5)], [torch.randn(3, 6), torch.randn(5, 7)]
    outs = [poisoned((2, 6), torch.float32), poisoned((4, 7), torch.float32)]
    given: dict[str, Any] = {} if name == "aclnnGroupedMatmul" else {"group_type": -1}
    given |= {"x": [t.npu() for t in x], "weight": [t.npu() for t in weight]}
    called(lib, name, **given, bias=[], split_item=0, out=outs)
    for i in range(2):
        near(outs[i], x[i].double() @ weight[i].double())


def test_grouped_products_that_are_refused(lib: Library) -> None:
    x, weight, out = torch.randn(6, 4).npu(), torch.randn(2, 4, 5).npu(), poisoned((6, 5), torch.float32)
    good = {"x": [x], "weight": [weight], "group_list": torch.tensor([2, 6]).npu(), "split_item": 3, "out": [out]}
    name, invalid = "aclnnGroupedMatmulV4", 161002
    one, beyond, floats = torch.tensor([6]).npu(), torch.tensor([2, 7]).npu(), x[0, :2]
    called(lib, name, **good)
    for status, sentence, changed in (
        (161001, "x is null, but must be given.", {"x": None}),
        (161001, "out is null, but must be given.", {"out": None}),
        (161001, "x[1] is null, but must be given.", {"x": [x, None]}),
        (invalid, "x is not one that this library created, or has been destroyed already.", {"x": c_void_p(64)}),
        (invalid, "scaleOptional is given, but must be None: what is quantised is not served.", {"scale": [x]}),
        (invalid, "actType is 1, but must be 0: an activation is not served.", {"act_type": 1}),
        (invalid, "splitItem is 4, but must be 0, 1, 2 or 3.", {"split_item": 4}),
        (invalid, "groupType is 1, but must be -1, 0 or 2.", {"group_type": 1}),
        (invalid, "groupListType is 2, but must be 0 or 1.", {"group_list_type": 2}),
        (invalid, "out[0] is of shape [6, 5], but must have [6, 4].", {"weight": [weight.mT[:, :4, :4]]}),
        (invalid, "out[0] is torch.float16, but must have the dtype of x, torch.float32.", {"out": [out.half()]}),
        (invalid, "out is a list of 1, but must have 2 tensors.", {"split_item": 0}),
        (invalid, "x[0] has dtype COMPLEX64, but must have one of " + ", ".join(
            ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "BOOL.")
        ), {"x": [x.to(torch.complex64)]}),
        (invalid, "groupListOptional is of shape [2] and torch.float32, but must be [E] of int64.",
         {"group_list": floats}),
        (invalid, "groupListOptional is of length 1, but must tell a group for each of 2 weights.",
         {"group_list": one}),
        (invalid, "groupListOptional is [2, 7], but must end within the 6 rows of x.", {"group_list": beyond}),
    ):  # fmt: skip
        refused(lib, status, sentence, name, **{**good, **changed})
    assert first(lib, name, **{**good, "group_list": one})[0] == 0  # numbers are read later


# --- what torch_npu has as operators, too -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kept", [12, 7])
def test_moe_permutations(lib: Library, dtype: Any, kept: int) -> None:
    tokens, indices = torch.randn(6, 8).to(dtype).npu(), torch.randint(4, (6, 2)).npu()
    probs = torch.rand(6, 2).to(dtype).npu()
    wanted, places = torch_npu.npu_moe_token_permute(tokens, indices, kept)
    out, sorted_indices = poisoned((kept, 8), dtype), torch.full((12,), -1, dtype=torch.int32).npu()
    given: dict[str, Any] = {"tokens": tokens, "indices": indices, "num_out_tokens": kept}
    called(lib, "aclnnMoeTokenPermute", **given, permute_tokens_out=out, sorted_indices_out=sorted_indices)
    same(out, wanted)
    same(sorted_indices, places)

    dy, dx = torch.randn(kept, 8).to(dtype).npu(), poisoned((6, 8), dtype)
    given = {"permuted_output_grad": dy, "sorted_indices": places, "num_topk": 2}
    called(lib, "aclnnMoeTokenPermuteGrad", **given, out=dx)
    rows = torch.nn.functional.pad(dy.cpu().double(), (0, 0, 0, 12 - kept))[places.cpu().long()]
    near(dx, rows.view(6, 2, 8).sum(1))
    refused(
        lib,
        161002,
        "numTopk is 0, but must be 1 at least.",
        "aclnnMoeTokenPermuteGrad",
        **{**given, "num_topk": 0},
        out=dx,
    )

    back = poisoned((6, 8), dtype)
    given = {"permuted_tokens": out, "sorted_indices": places, "probs": probs}
    called(lib, "aclnnMoeTokenUnpermute", **given, restore_shape=[1], out=back)
    same(back, torch_npu.npu_moe_token_unpermute(out, places, probs))

    grads = poisoned((kept, 8), dtype), poisoned((6, 2), dtype)
    dy = torch.randn(6, 8).to(dtype).npu()
    named = {**given, "grad_unpermuted_tokens": dy}
    called(lib, "aclnnMoeTokenUnpermuteGrad", **named, permuted_tokens_grad_out=grads[0], probs_grad_out=grads[1])
    leaves = [tensor.clone().requires_grad_() for tensor in (out, probs)]
    torch_npu.npu_moe_token_unpermute(leaves[0], places, leaves[1]).backward(dy)
    same(grads[0], leaves[0].grad)
    same(grads[1], leaves[1].grad)
    # Without probs they have no gradient: the extension passes an empty tensor.
    named = {**named, "probs": None, "sorted_indices": places[:6] % kept, "grad_unpermuted_tokens": dy}
    outs = {"permuted_tokens_grad_out": grads[0], "probs_grad_out": poisoned((0,), dtype)}
    called(lib, "aclnnMoeTokenUnpermuteGrad", **named, **outs)
    refused(
        lib, 161002, "probsGradOut has shape [6, 2], but this call gives it no numbers.", "aclnnMoeTokenUnpermuteGrad",
        **named, **{**outs, "probs_grad_out": grads[1]},
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_ring_attention_update(lib: Library, layout: str) -> None:
    shape, statistics = ((5, 2, 12), (2, 3, 5, 8)) if layout == "SBH" else ((5, 3, 4), (5, 3, 8))
    attention = [torch.randn(shape).npu() for _ in range(2)]
    largest = [torch.randn(statistics[:-1]).unsqueeze(-1).expand(statistics).contiguous().npu() for _ in range(2)]
    total = [t.exp() for t in reversed(largest)]
    given = dict(
        zip(
            ("prev_attn_out", "prev_softmax_max", "prev_softmax_sum"), (attention[0], largest[0], total[0]), strict=True
        )
    )
    given |= zip(
        ("cur_attn_out", "cur_softmax_max", "cur_softmax_sum"), (attention[1], largest[1], total[1]), strict=True
    )
    outs = [poisoned(shape, torch.float32), poisoned(statistics, torch.float32), poisoned(statistics, torch.float32)]
    ends = (torch.tensor([0, 2, 5]) if layout == "TND" else torch.empty((), dtype=torch.int64)).npu()
    called(
        lib, "aclnnRingAttentionUpdate", **given, actual_seq_qlen=ends, input_layout=layout, attn_out=outs[0],
        softmax_max=outs[1], softmax_sum=outs[2],
    )  # fmt: skip
    wanted = torch_npu.npu_ring_attention_update(*given.values(), actual_seq_qlen=ends, input_layout=layout)
    for out, each in zip(outs, wanted, strict=True):
        same(out, each)


PLAIN = ("aclnnFlashAttentionScore", "aclnnFlashAttentionScoreGrad")
SECOND = ("aclnnFlashAttentionScoreV2", "aclnnFlashAttentionScoreGradV2")


@pytest.mark.parametrize("names", [PLAIN, SECOND], ids=["V1", "V2"])
@pytest.mark.parametrize("layout", ["BNSD", "BSH", "SBH"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_flash_attention(lib: Library, names: tuple[str, str], layout: str, dtype: Any) -> None:
    """Every number that may be confused with another is one of its own: the band, the scale, the modes."""
    shape = {"BNSD": (2, 4, 9, 16), "BSH": (2, 9, 64), "SBH": (9, 2, 64)}[layout]
    q, k, v, dy = (torch.randn(shape).to(dtype).npu() for _ in range(4))
    mask, pse = torch.zeros(9, 9, dtype=torch.bool).npu(), torch.randn(2, 4, 9, 9).to(dtype).npu()
    mask[:, 5] = True
    own = {"pse": pse, "atten_mask": mask, "sparse_mode": 0, "keep_prob": 1.0}
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    attention, largest, total, *_ = torch_npu.npu_fusion_attention(
        *leaves, 4, layout, **own, scale=0.3, pre_tockens=3, next_tockens=1
    )
    attention.backward(dy)
    given = {"query": q, "key": k, "value": v, **own, "pre_tokens": 3, "next_tokens": 1, "scale_value": 0.3}
    given |= {"head_num": 4, "input_layout": layout}
    if names is SECOND:
        given |= {"pse_type": 1, "q_start_idx": [], "kv_start_idx": None}
    outs = [poisoned(t.shape, t.dtype) for t in (largest, total, attention)]
    written = ("softmax_max_out", "softmax_sum_out", "attention_out_out")
    called(lib, names[0], **given, **dict(zip(written, outs, strict=True)), softmax_out_out=poisoned((0,), dtype))
    for out, wanted in zip(outs, (largest, total, attention), strict=True):
        same(out, wanted)
    grads = [poisoned(shape, dtype) for _ in range(3)]
    given |= {"softmax_max": largest, "softmax_sum": total, "attention_in": attention.detach(), "dy": dy}
    named = dict(zip(("dq_out", "dk_out", "dv_out"), grads, strict=True))
    called(lib, names[1], **given, **named, dpse_out=poisoned(pse.shape, dtype))
    for grad, leaf in zip(grads, leaves, strict=True):
        same(grad, leaf.grad)
    refused(
        lib, 161002,
        "dropMaskOptional is null, but keepProb must be 1, not 0.5: dropout by a mask is not served.", names[1],
        **{**given, "keep_prob": 0.5}, **named, dpse_out=poisoned(pse.shape, dtype),
    )  # fmt: skip


VERSIONS = {
    "V1": ("aclnnFlashAttentionVarLenScore", "aclnnFlashAttentionUnpaddingScoreGrad"),
    "V2": ("aclnnFlashAttentionVarLenScoreV2", "aclnnFlashAttentionUnpaddingScoreGradV2"),
    "V3": ("aclnnFlashAttentionVarLenScoreV3", "aclnnFlashAttentionUnpaddingScoreGradV3"),
    "V4": ("aclnnFlashAttentionVarLenScoreV4", "aclnnFlashAttentionUnpaddingScoreGradV4"),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_flash_attention_of_sequences(lib: Library, version: str) -> None:
    q, dy = torch.randn(7, 4, 8).half().npu(), torch.randn(7, 4, 8).half().npu()
    k, v = torch.randn(9, 2, 8).half().npu(), torch.randn(9, 2, 8).half().npu()
    ropes = [torch.randn(7, 4, 4).half().npu(), torch.randn(9, 2, 4).half().npu()] if version == "V3" else []
    ends = {"actual_seq_qlen": [3, 7], "actual_seq_kvlen": [5, 9]}
    options: dict[str, Any] = {**ends, "scale": 0.4}
    leaves = [t.clone().requires_grad_() for t in (q, k, v, *ropes)]
    if ropes:
        options |= {"query_rope": leaves[3], "key_rope": leaves[4]}
    if version == "V4":
        options["softmax_layout"] = "TND"
    call = torch_npu.npu_fusion_attention_v2 if ropes else torch_npu.npu_fusion_attention
    attention, largest, total, *_ = call(*leaves[:3], 4, "TND", **options)
    attention.backward(dy)
    given = {"query": q, "key": k, "value": v, **ends, "scale_value": 0.4, "pre_tokens": 100, "next_tokens": 100}
    given |= {"head_num": 4, "input_layout": "TND", "keep_prob": 1.0}
    given |= {"pse_type": 1} if version in ("V2", "V3") else {}
    given |= {"softmax_layout": "TND"} if version == "V4" else {}
    given |= dict(zip(("query_rope", "key_rope"), ropes, strict=False))
    outs = [poisoned(t.shape, t.dtype) for t in (largest, total, attention)]
    written = dict(zip(("softmax_max_out", "softmax_sum_out", "attention_out_out"), outs, strict=True))
    empty = poisoned((0,), torch.float16)
    called(lib, VERSIONS[version][0], **given, **written, softmax_out_out=empty)
    for out, wanted in zip(outs, (largest, total, attention), strict=True):
        same(out, wanted)
    given |= {"softmax_max": largest, "softmax_sum": total, "attention_in": attention.detach(), "dy": dy}
    names = ["dq_out", "dk_out", "dv_out", "dq_rope_out", "dk_rope_out"][: len(leaves)]
    grads = {name: poisoned(leaf.shape, leaf.dtype) for name, leaf in zip(names, leaves, strict=True)}
    called(lib, VERSIONS[version][1], **given, **grads, dpse_out=empty)
    for grad, leaf in zip(grads.values(), leaves, strict=True):
        same(grad, leaf.grad)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("corrected", [False, True])
def test_ema_adam(lib: Library, mode: int, corrected: bool) -> None:
    grad, var, m, s = (torch.randn(3, 5) for _ in range(4))
    v, step = torch.rand(3, 5), torch.tensor([3])
    numbers = {"lr": 0.1, "ema_decay": 0.75, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "weight_decay": 0.02}
    held = {"grad": grad.npu(), "var": var.npu(), "m": m.npu(), "v": v.npu(), "s": s.npu(), "step": step.npu()}
    called(lib, "aclnnApplyFusedEmaAdam", **held, **numbers, mode=mode, bias_correction=corrected)
    g, var, m, v, s = (t.double() for t in (grad, var, m, v, s))
    g = g if mode else g + 0.02 * var
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    m_hat, v_hat = (m / (1 - 0.9**3), v / (1 - 0.99**3)) if corrected else (m, v)
    new = var - 0.1 * (m_hat / (v_hat.sqrt() + 1e-3) + 0.02 * var * mode)
    for name, wanted in {"var": new, "m": m, "v": v, "s": 0.75 * s + 0.25 * new, "grad": grad.double()}.items():
        near(held[name], wanted)
    for changed, sentence in (
        ({"step": step.npu() * 0}, "step is 0, but must be at least 1 with biasCorrection."),
        (
            {"m": torch.ones(1).npu().expand(3, 5)},
            "m has elements that overlap each other, but those of an output must not.",
        ),
    ):
        given = {**held, **numbers, "mode": mode, "bias_correction": True}
        refused(lib, 161002, sentence, "aclnnApplyFusedEmaAdam", **{**given, **changed})
    refused(
        lib, 161002, "mode is 2, but must be 0 or 1.", "aclnnApplyFusedEmaAdam", **held, **numbers, mode=2,
    )  # fmt: skip


def test_silent_check(lib: Library) -> None:
    """Each limit is told from the others, and what is changed in place is."""
    grad, val = torch.ones(4, 2).npu(), torch.tensor(160.0).npu()
    sfda, step = torch.tensor([70.0, 100.0, 400.0]).npu(), torch.tensor([7]).npu()
    given: dict[str, Any] = {"val": val, "input_grad": grad, "sfda": sfda, "step": step, "c_min_steps": 7}
    given |= {"c_thresh_l1": 1e6, "c_coeff_l1": 5.0, "c_thresh_l2": 1e4, "c_coeff_l2": 0.5, "npu_asd_detect": 1}
    result = torch.full((1,), -1, dtype=torch.int32).npu()
    called(lib, "aclnnSilentCheck", **given, result=result)
    assert (result.item(), step.item(), sfda.tolist()) == (0, 8, [160.0, 100.0, 400.0])
    for number, level in ((320.0, 2), (2e3, 1), (2e4, 1), (1e4, 2)):
        val.fill_(number)
        called(lib, "aclnnSilentCheck", **given, result=result)
        assert result.item() == level
    assert (step.item(), sfda.tolist(), grad.sum().item()) == (12, [1e4, 100.0, 2e4], 8.0)
    sentence = "npuAsdDetect is 4, but must be 1 or 2 or 3."
    refused(lib, 161002, sentence, "aclnnSilentCheck", **{**given, "npu_asd_detect": 4}, result=result)
    found = "The norm of a gradient is nan, but must be finite. NPU_ASD_ENABLE=1 only logs it."
    val.fill_(torch.nan)
    sentence = f"PyTorch raised SilentError: {found}"
    refused(lib, 361001, sentence, "aclnnSilentCheck", **{**given, "npu_asd_detect": 2}, result=result)


# --- the mechanism ----------------------------------------------------------------------------------------------------


def test_outputs_that_are_not_contiguous(lib: Library) -> None:
    x, weight, ends = torch.randn(4, 3).npu(), torch.randn(2, 3, 5).npu(), torch.tensor([1, 4]).npu()
    around = torch.full((8, 12), 7.0).npu()
    given = {"x": [x], "weight": [weight], "group_list": ends, "split_item": 2}
    called(lib, "aclnnGroupedMatmulV4", **given, out=[around[1:8:2, 2:12:2]])
    wanted = torch.full((8, 12), 7.0)
    wanted[1:8:2, 2:12:2] = torch.cat([x.cpu()[:1] @ weight.cpu()[0], x.cpu()[1:] @ weight.cpu()[1]])
    torch.testing.assert_close(around.cpu(), wanted)


def test_memory_that_is_missing_or_padded(lib: Library) -> None:
    grad, places = torch.randn(4, 3).npu(), torch.arange(4, dtype=torch.int32).npu()
    nowhere = c_void_p(lib.tensor(None, [4, 3]))
    padded = c_void_p(lib.tensor(grad.data_ptr(), [4, 3], form=FORMATS["FRACTAL_NZ"]))
    name, given = "aclnnMoeTokenPermuteGrad", {"sorted_indices": places, "num_topk": 1, "out": torch.empty(4, 3).npu()}
    refused(
        lib, 361001, "permutedOutputGrad has elements, but its data pointer is null.", name,
        **given, permuted_output_grad=nowhere,
    )  # fmt: skip
    refused(
        lib, 161002, "permutedOutputGrad has format FRACTAL_NZ, but must have one without padding.", name,
        **given, permuted_output_grad=padded,
    )  # fmt: skip
    refused(
        lib, 161002, "out has shape [2, 3] and torch.float32, but must have [4, 3] and torch.float32.", name,
        **{**given, "out": torch.empty(2, 3).npu()}, permuted_output_grad=grad,
    )  # fmt: skip


def test_numbers_that_are_wrong_and_what_pytorch_raises(lib: Library) -> None:
    grad, out = torch.randn(4, 3).npu(), poisoned((4, 3), torch.float32)
    beyond, below = (torch.full((4,), number, dtype=torch.int32).npu() for number in (2**30, -5))
    name, given = "aclnnMoeTokenUnpermute", {"permuted_tokens": grad, "out": out}
    called(lib, name, **given, sorted_indices=beyond)  # such places were dropped
    near(out, torch.zeros(4, 3))
    refused(
        lib, 161002, "sortedIndices is down to -5, but must hold places from 0 up.", name, **given, sorted_indices=below
    )
    one = torch.empty(1).npu()
    half = one.half()  # which is computed in float32
    given = {"x": [half.expand(2**31, 2**20)], "weight": [half.expand(2**20, 1)[None, :, :0]]}
    given["out"] = [half.new_empty(2**31, 0)]
    ends = torch.tensor([2**31]).npu()
    refused(lib, 361001, "there is no memory.", "aclnnGroupedMatmulV4", **given, group_list=ends, split_item=3)
    places = torch.arange(4, dtype=torch.int32).npu()
    given = {"permuted_output_grad": grad, "sorted_indices": places, "num_topk": 1, "out": one.expand(4, 3)}
    refused(
        lib, 161002, "out has elements that overlap each other, but those of an output must not.",
        "aclnnMoeTokenPermuteGrad", **given,
    )  # fmt: skip
    given["out"] = one.new_empty(6).as_strided((4, 3), (1, 1))
    assert first(lib, "aclnnMoeTokenPermuteGrad", **given)[0] == 161002


def test_an_interrupt_is_an_error() -> None:
    """One that comes before the first line of Python would leave it to chance what the call returns."""
    done = forks.run(
        """
import ctypes, os, signal, sys
import torch_npu
from descend.npu import composer

library = ctypes.CDLL("libopapi.so")
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
def call():
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    given = [None, None, ctypes.c_int64(1), False, None, ctypes.byref(size), ctypes.byref(executor)]
    status = library.aclnnMoeTokenPermuteGradGetWorkspaceSize(*given)
    print(status, library.aclGetRecentErrMsg().decode())

def interrupt(*_):
    raise KeyboardInterrupt

sys.unraisablehook = lambda raised: print(raised.exc_type.__name__)
sys.setprofile(lambda frame, event, _: interrupt() if frame.f_code.co_name == "_compose" else None)
call()
sys.setprofile(None)
composer._serve = interrupt
call()
""",
        check=True,
    )
    sentence = "361001 aclnnMoeTokenPermuteGrad: the call was interrupted."
    assert done.stdout.splitlines() == ["KeyboardInterrupt", sentence, sentence]


def test_threads_that_call_while_python_ends() -> None:
    """Python ends a thread that waits for its lock then, and C++ cannot be ended so."""
    done = forks.run(
        """
import ctypes, threading
import torch_npu
library = ctypes.CDLL("libopapi.so")
def again():
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    given = [None, None, ctypes.c_int64(1), False, None, ctypes.byref(size), ctypes.byref(executor)]
    while True:
        library.aclnnMoeTokenPermuteGradGetWorkspaceSize(*given)
for _ in range(3):
    threading.Thread(target=again, daemon=True).start()
threading.Event().wait(0.2)
print("ends")
"""
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES = {
    "device npu": lambda: torch.device("npu"),
    "device meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "dtype": lambda: default_dtype(torch.float64),
    "inference": torch.inference_mode,
    "fake": lambda: FakeTensorMode(),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_caller_change_nothing(lib: Library, mode: str) -> None:
    tokens, indices = torch.randn(6, 8).npu(), torch.randint(4, (6, 2)).npu()
    out, places = poisoned((12, 8), torch.float32), torch.full((12,), -1, dtype=torch.int32).npu()
    x, weight, product = torch.randn(2, 64).npu(), torch.randn(1, 64, 4).npu(), poisoned((2, 4), torch.float32)
    ends = torch.tensor([2]).npu()
    with MODES[mode]():
        called(
            lib, "aclnnMoeTokenPermute", tokens=tokens, indices=indices, num_out_tokens=12, permute_tokens_out=out,
            sorted_indices_out=places,
        )  # fmt: skip
        called(lib, "aclnnGroupedMatmulV4", x=[x], weight=[weight], group_list=ends, split_item=3, out=[product])
    same(out, tokens.cpu()[indices.cpu().flatten().argsort(stable=True) // 2])
    near(product, x.cpu().double() @ weight.cpu().double()[0])


def test_nothing_is_computed_once_python_ends() -> None:
    """A destructor in C++ may call later than Python can compute."""
    done = forks.run(
        """
import atexit, ctypes
def late():
    library = ctypes.CDLL("libopapi.so")
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    given = [None, None, ctypes.c_int64(1), False, None, ctypes.byref(size), ctypes.byref(executor)]
    print(library.aclnnMoeTokenPermuteGradGetWorkspaceSize(*given), library.aclGetRecentErrMsg().decode())
atexit.register(late)
import torch_npu
late()
""",
        check=True,
    )
    before, after = done.stdout.splitlines()
    assert before == "161001 aclnnMoeTokenPermuteGrad: permutedOutputGrad is null, but must be given."
    assert after.startswith("561003 aclnnMoeTokenPermuteGrad: PyTorch computes this function.")


def test_gradients_are_not_recorded(lib: Library) -> None:
    x, weight = torch.randn(2, 3).npu().requires_grad_(), torch.randn(1, 3, 4).npu()
    out = poisoned((2, 4), torch.float32)
    called(
        lib, "aclnnGroupedMatmulV4", x=[x], weight=[weight], group_list=torch.tensor([2]).npu(), split_item=3, out=[out]
    )
    assert out.grad_fn is None
    near(out, x.detach().cpu().double() @ weight.cpu().double()[0])


def test_the_report_has_them(lib: Library) -> None:
    from descend.npu import kernels, record

    assert "aclnnGroupedMatmulV4" in kernels.composed()
    record.record(True)
    try:
        test_outputs_that_are_not_contiguous(lib)
        found = {operator: (calls, tensors) for operator, tensors, _, calls, _, _ in record.recorded()}
    finally:
        record.record(False)
    calls, tensors = found["aclnnGroupedMatmulV4"]
    assert calls == 1
    assert ("x[0]", "float32[4, 3]") in tensors
