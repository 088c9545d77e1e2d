"""Operators on device npu beside the same on the CPU: PyTorch's samples of hundreds of them, and special cases."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_npu")

from benchmarks import npu  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from descend.npu import boxed, kernels  # noqa: E402
from npu_samples import Sample, samples, tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The samples are small: more threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- PyTorch's samples ---------------------------------------------------------------------------------------------


def values(sample: Sample) -> Any:
    return sample.run()


def gradients(sample: Sample) -> Any:
    results = [t for t in tensors(sample.run()) if t.requires_grad]
    leaves = [t for t in sample.tensors() if t.requires_grad]
    return torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results], allow_unused=True)


def in_place(sample: Sample) -> Any:
    first = sample.args[0]
    result = sample.run()
    assert result is first
    return result


def out(sample: Sample) -> Any:
    results = sample.run()
    given = tuple(torch.empty(0, dtype=t.dtype, device=t.device) for t in tensors(results))
    returned = sample.run(out=given[0] if isinstance(results, Tensor) else given)
    if isinstance(results, Tensor):
        assert returned is given[0]
    return given


def random(sample: Sample) -> Any:
    """The same numbers for the same seed; of numbers that are the device's own, what can be compared with the CPU's."""
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(sample.on(sample.device()).run())
    for a, b in zip(*map(tensors, found), strict=True):
        assert torch.equal(a, b) or a.is_floating_point()
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    return [torch.zeros_like(t) for t in tensors(found[0])]


def same(here: Any, there: Any) -> None:
    """The same numbers, to what the order of sums may change, and the same dtypes, shapes and strides."""
    pairs = list(zip(tree_leaves(here), tree_leaves(there), strict=True))
    for a, b in pairs:
        if not isinstance(a, Tensor):
            assert a == b or a != a
            continue
        assert b.device.type == "npu"
        assert (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)
        assert a.layout is not torch.strided or a.stride() == b.stride()
        unit = torch.finfo(a.dtype).eps if a.is_floating_point() or a.is_complex() else 0
        torch.testing.assert_close(b.cpu(), a, rtol=256 * unit, atol=256 * unit, equal_nan=True)


# kind, dtype, samples of each operator, how many must have been compared
RUNS = {
    "float32": (values, "values", torch.float32, 2, 1000),
    "bfloat16": (values, "values", torch.bfloat16, 1, 450),
    "int64": (values, "values", torch.int64, 1, 400),
    "bool": (values, "values", torch.bool, 1, 300),
    "complex64": (values, "values", torch.complex64, 1, 350),
    "gradients": (gradients, "gradients", torch.float32, 2, 800),
    "in-place": (in_place, "in-place", torch.float32, 2, 200),
    "out": (out, "out", torch.float32, 2, 600),
    "non-contiguous": (values, "non-contiguous", torch.float32, 1, 450),
    "random": (random, "random", torch.float32, 1, 20),
}
# By hand, with --wide: more dtypes, and ten samples of each operator.
WIDE = {
    f"wide {kind} {dtype}".replace("torch.", ""): (compute, kind, dtype, 10, 5 if kind == "random" else 100)
    for compute, kind, dtypes in (
        (values, "values", (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)),
        (values, "values", (torch.complex64, torch.float64)),
        (values, "non-contiguous", (torch.float32, torch.int64, torch.complex64)),
        (gradients, "gradients", (torch.float32, torch.complex64, torch.bfloat16)),
        (in_place, "in-place", (torch.float32, torch.int64, torch.complex64)),
        (out, "out", (torch.float32, torch.int64, torch.complex64)),
        (random, "random", (torch.float32, torch.bfloat16, torch.int64)),
    )
    for dtype in dtypes
}


@pytest.mark.parametrize("run", [*RUNS, *WIDE])
def test_operators_compute_what_they_do_on_the_cpu(run, request):
    if run in WIDE and not request.config.getoption("--wide"):
        pytest.skip("--wide runs it")
    compute, kind, dtype, few, least = {**RUNS, **WIDE}[run]
    compared, wrong = 0, []
    for sample in samples(dtype, kind, few):
        if kind == "in-place" and sample.broadcasts:
            continue
        here, there = sample.on("cpu"), sample.on("npu")
        try:
            expected = compute(here)
        except (RuntimeError, NotImplementedError, TypeError, AssertionError):
            continue  # a sample that the CPU does not take
        try:
            same(expected, compute(there))
            compared += 1
        except Exception as error:
            wrong.append(f"{sample.name}: {type(error).__name__}: {str(error)[:200]}")
    print(f"{run}: {compared} samples are the same, {len(wrong)} are not", *wrong, sep="\n")
    assert not wrong
    assert compared >= least


# --- what is special on a device -----------------------------------------------------------------------------------


def raises(sentence: str, call: Callable[[], Any]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=sentence):
        call()


def test_results_are_views_where_they_are_on_the_cpu():
    x = torch.arange(12.0, device="npu").view(3, 4)
    for view in (
        x.t(),
        x[1:],
        x.view(2, 6),
        x.unfold(1, 2, 1),
        x.expand(2, 3, 4),
        x.diagonal(),
        x.as_strided((2,), (5,)),
    ):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view._base is x._base
    x.t()[0].fill_(7)
    assert x[:, 0].tolist() == [7, 7, 7]


def test_inference_mode_makes_the_tensors_that_it_makes_on_the_cpu():
    """A view is an inference tensor if its base is one; other results are if the mode is on."""

    def seen(device: str) -> list[Any]:
        x = torch.arange(6.0).view(2, 3).clone().to(device)
        with torch.inference_mode():
            made = torch.ones(2, 3, device=device)
            row = x[0]
            found = [
                x[1:],
                x.t(),
                x.view(6),
                x.squeeze(),
                x.detach(),
                made[0],
                made.t(),
                row.add_(1),
                x * 2,
                (x * 2)[0],
            ]
            found += [x.contiguous(), x.half(), torch.nn.functional.linear(x, x)]
            with torch.inference_mode(False):
                found += [made[0], made * 2]
        found += [made[0], made.view(6), made.t(), made + 1]
        weight = torch.ones(2, 3, device=device, requires_grad=True)
        for call in (lambda: made[0].add_(1), lambda: (made[0] * weight).sum().backward()):
            raises("nference tensor", call)
        return [*((t.is_inference(), t.tolist()) for t in found), x._version, row._version, row._base is x]

    assert seen("npu") == seen("cpu")


def test_what_is_resized_keeps_its_values_and_its_place():
    x = torch.arange(6.0, device="npu").view(2, 3)
    y = x.view(-1)
    assert x.resize_(3, 4) is x
    assert (x.shape, x.flatten()[:6].tolist()) == ((3, 4), [0, 1, 2, 3, 4, 5])
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.t_().shape == (4, 3)
    assert x.stride() == (1, 4)
    result = torch.empty(0, device="npu")
    assert torch.ones(4, 5, device="npu", out=result) is result
    assert (result.shape, result.sum().item()) == ((4, 5), 20)


def test_the_memory_is_the_devices():
    before = torch.npu.memory_allocated()
    x = torch.ones(1 << 20, device="npu")
    y = x + 1
    assert torch.npu.memory_allocated() - before >= 8 << 20
    del x, y
    assert torch.npu.memory_allocated() == before


def test_many_tensors_in_one_call():
    x = [torch.full((3,), float(i), device="npu") for i in range(60)]
    addresses = [t.data_ptr() for t in x]
    torch._foreach_add_(x, [t.clone() for t in x])
    assert [t[0].item() for t in x] == [2.0 * i for i in range(60)]
    assert [t.data_ptr() for t in x] == addresses
    assert [t[0].item() for t in torch._foreach_mul(x[:3] + x[:3], 2)] == [0, 4, 8, 0, 4, 8]


def test_sizes_that_depend_on_values():
    x = torch.tensor([0.0, 1.0, 0.0, 2.0], device="npu")
    assert x.nonzero().tolist() == [[1], [3]]
    assert x[x > 0].tolist() == [1, 2]
    assert torch.unique(x).tolist() == [0, 1, 2]


def test_copies_between_devices():
    x = torch.arange(24, dtype=torch.float64).view(2, 3, 4)
    for here in (x, x.transpose(0, 2), x[:, ::2], x.expand(2, 2, 3, 4)):
        there = here.to("npu", torch.float16)
        assert torch.equal(there.cpu(), here.half())
        assert torch.equal(there.to("cpu", torch.int64), here.long())
        back = torch.empty_like(here)
        assert torch.equal(back.copy_(there), here)
        assert torch.equal(torch.empty_like(there).copy_(here).cpu(), here.half())
        assert torch.equal(there.t() if here.dim() < 3 else there.transpose(0, 1).contiguous(), there.transpose(0, 1))
    last = torch.empty(2, 3, 4, 5, device="npu", memory_format=torch.channels_last)
    assert last.clone().stride() == last.stride() == torch.empty_like(last).stride()
    assert torch._copy_from_and_resize(torch.ones(3), torch.empty(0, device="npu")).tolist() == [1, 1, 1]


def test_scalars_may_be_the_cpus_and_tensors_not():
    x = torch.ones(3, device="npu")
    assert (x * torch.tensor(2.0)).tolist() == [2, 2, 2]
    assert (x.half() * torch.tensor(2.0)).dtype is torch.float16
    raises("same device.*npu:0 and cpu", lambda: x + torch.ones(3))
    raises("same device.*npu:0 and cpu", lambda: torch.ones(3).add_(x))
    first = torch.tensor([0])
    assert x[first].device.type == "npu"  # indices may be the CPU's, too
    x[first] = torch.tensor(2.0)
    assert x.tolist() == [2, 1, 1]
    raises("same device.*npu:0 and cpu", lambda: torch.ones(3)[first.npu()])
    raises("same device.*npu:0 and cpu", lambda: torch.ones(3).index_put_([first.npu()], torch.ones(1).npu()))
    raises("same device.*npu:0 and cpu", lambda: x.index_put_([first], torch.ones(1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits_that_the_cpu_has_no_kernel_for(dtype: Any) -> None:
    x = torch.rand(2, 3, 4, 4, 4).to(dtype)
    matrix = (x[0, 0, 0] + torch.eye(4)).to(dtype)
    pool = torch.nn.functional.avg_pool3d
    with pytest.raises(RuntimeError, match="not implemented for"):
        pool(x, 2)
    leaf, wide = x.npu().requires_grad_(), x.float().requires_grad_()
    pool(leaf, 2).square().sum().backward()
    pool(wide, 2).square().sum().backward()
    assert leaf.grad.dtype == dtype
    torch.testing.assert_close(leaf.grad.cpu().float(), wide.grad, rtol=2e-2, atol=1e-3)
    out = torch.empty(0, dtype=dtype, device="npu")
    assert torch.linalg.inv(matrix.npu(), out=out) is out
    assert torch.equal(out.cpu(), torch.linalg.inv(matrix.float()).to(dtype))
    there = (x - 0.5).npu()
    same = torch.ops.aten._add_relu_.Tensor(there, there)
    assert same is there
    assert torch.equal(there.cpu(), (2 * (x - 0.5)).relu())
    results = torch.linalg.qr(matrix.npu())
    assert [t.dtype for t in results] == [dtype, dtype]
    with pytest.raises(RuntimeError, match="Expected a floating point"):
        torch.linalg.inv(matrix.int().npu())


def _convolved(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    image, filters = (t.reshape(8, 64, 4, 8).detach().requires_grad_() for t in (x, weight))
    result = torch.nn.functional.conv2d(image, filters)
    return result, *torch.autograd.grad(result, (image, filters), torch.ones_like(result))


def _normalized(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    batch = x.reshape(256, 64).detach().requires_grad_()
    result = torch.nn.functional.batch_norm(batch, None, None, weight.flatten()[:64], training=True)
    return torch.autograd.grad(result, batch, weight.reshape(256, 64))


IN_FLOAT32: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mm": lambda a, b: a @ b.T,
    "linear": lambda a, b: torch.nn.functional.linear(a, b, b[:, 0]),
    "addmm_": lambda a, b: (a[:, :8] * 1).addmm_(a, b.T, beta=0.5),
    "bmm": lambda a, b: torch.bmm(a[None], b.T[None]),
    "baddbmm": lambda a, b: torch.baddbmm(a[None, :, :8], a[None], b.T[None]),
    "addbmm": lambda a, b: torch.addbmm(a[:, :8], a[None], b.T[None]),
    "mv": lambda a, b: a @ b[0],
    "addmv": lambda a, b: torch.addmv(a[:, 0], a, b[0], alpha=2),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "mm, out=": lambda a, b: torch.mm(a, b.T, out=a.new_empty(0)),
    "convolution": _convolved,
    "batch norm": _normalized,
    "cross entropy": lambda a, b: torch.nn.functional.nll_loss(a.T, b[0].abs().long() % 8),
    "binary cross entropy": lambda a, b: torch.nn.functional.binary_cross_entropy_with_logits(a, b.abs() % 1),
    "interpolation": lambda a, b: torch.nn.functional.interpolate(a[None], scale_factor=1.7, mode="linear"),
}


@pytest.mark.parametrize("call", IN_FLOAT32.values(), ids=IN_FLOAT32)
def test_float16_is_added_in_float32(call):
    random = torch.Generator().manual_seed(4)
    x, weight = (torch.randn(8, 2048, generator=random).half() for _ in range(2))
    found, expected = (tree_leaves(call(t.npu(), w.npu())) for t, w in ((x, weight), (x.float(), weight.float())))
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == torch.float16
        if call is _normalized:  # its forward pass rounds what the gradient reads
            torch.testing.assert_close(f.float(), e, rtol=5e-3, atol=5e-3)
        else:
            assert torch.equal(f, e.half())


def test_float16_beside_float32_keeps_its_own_dtypes():
    x, weight = torch.randn(4, 8, 3).half(), torch.randn(8)
    args = (weight, weight, None, None, True, 0.1, 1e-5)
    on_npu = [a.npu() if isinstance(a, Tensor) else a for a in args]
    same(torch.native_batch_norm(x, *args), torch.native_batch_norm(x.npu(), *on_npu))


MIXING_FLOATS: dict[str, tuple[int, Any]] = {  # the number is that of the operand whose dtype the result has
    "mm": (0, lambda a, b, c: a @ b),
    "mm, out=": (0, lambda a, b, c: torch.mm(a, b, out=a.new_empty(0))),
    "bmm": (0, lambda a, b, c: torch.bmm(a[None], b[None])),
    "linear": (2, lambda a, b, c: torch.nn.functional.linear(a, b.T.contiguous(), c)),
    "addmm": (2, lambda a, b, c: torch.addmm(c, a, b, alpha=2)),
    "addmm_": (2, lambda a, b, c: c.repeat(8, 1).addmm_(a, b)),
    "baddbmm": (2, lambda a, b, c: torch.baddbmm(c, a[None], b[None])),
    "addbmm": (2, lambda a, b, c: torch.addbmm(c, a[None], b[None])),
}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MIXTURES = [dtypes for dtypes in itertools.product(FLOATS, repeat=3) if len({*dtypes}) > 1]


@pytest.mark.parametrize(("first", "call"), MIXING_FLOATS.values(), ids=MIXING_FLOATS)
def test_products_take_operands_of_unlike_dtypes(first, call):
    random = torch.Generator().manual_seed(4)
    operands = [torch.randn(*shape, generator=random) for shape in ((8, 32), (32, 16), (16,))]
    for dtypes in MIXTURES:
        given = [tensor.to(dtype) for tensor, dtype in zip(operands, dtypes, strict=True)]
        expected, found = call(*(tensor.float() for tensor in given)), call(*(tensor.npu() for tensor in given))
        assert found.dtype == dtypes[first]
        tolerance = 1e-5 if found.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(found.cpu().float(), expected, rtol=tolerance, atol=tolerance)


def test_gradients_of_a_product_have_the_dtypes_of_its_operands():
    x, weight, bias = torch.randn(4, 8), torch.randn(6, 8).bfloat16(), torch.randn(6).bfloat16()
    leaves = [tensor.npu().requires_grad_() for tensor in (x, weight, bias)]
    expected = [tensor.float().requires_grad_() for tensor in (x, weight, bias)]
    found = torch.nn.functional.linear(*leaves)
    found.backward(torch.ones_like(found))
    torch.nn.functional.linear(*expected).sum().backward()
    for leaf, like in zip(leaves, expected, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        torch.testing.assert_close(leaf.grad.cpu().float(), like.grad, rtol=1e-2, atol=1e-2)


def test_products_refuse_other_mixtures():
    a = torch.ones(2, 2).npu()
    for other in (torch.float64, torch.int64, torch.complex64):
        for mine in FLOATS:
            with pytest.raises(RuntimeError, match="dtype"):
                a.to(mine) @ a.to(other)


def test_indices_and_classes_may_be_int32():
    functional = torch.nn.functional
    scores = torch.randn(6, 4, requires_grad=True)
    classes = torch.tensor([3, 0, 1, -100, 2, 0])
    index = torch.tensor([[0, 3, 1, 1]])

    def put(x: Tensor, at: Tensor) -> Tensor:
        return x.put(at, torch.ones(1, 4, device=x.device))

    calls: list[tuple[Callable[..., Tensor], Tensor, Tensor]] = [
        (functional.cross_entropy, scores, classes),
        (lambda x, c: functional.cross_entropy(x, c, label_smoothing=0.1), scores, classes),
        (functional.cross_entropy, torch.randn(1, 3, 2, 3), classes.view(1, 2, 3).clamp(-100, 2)),
        (functional.cross_entropy, torch.randn(6, 4).half(), classes),
        (functional.multi_margin_loss, scores, classes.abs() % 4),
        (functional.multilabel_margin_loss, scores, torch.tensor([[3, 0, -1, 1]] * 6)),
        (lambda x, c: x * functional.one_hot(c, 4), scores, classes.abs() % 4),
        (put, scores, index),
        (lambda x, at: x.gather(0, at), scores, index),
        (lambda x, at: x.scatter(0, at, 2.0), scores, index),
        (lambda x, at: x.scatter_add(0, at, x[:1]), scores, index),
        (lambda x, at: x.index_fill(0, at[0], 1.0), scores, index),
        (lambda x, at: x.index_select(0, at[0]), scores, index),
        (lambda x, at: x.take(at), scores, index),
        (lambda x, at: x.index_add(1, at[0], x), scores, index),
    ]
    for call, given, indices in calls:
        x, y = (given.detach().to(device).requires_grad_() for device in ("cpu", "npu"))
        expected, found = call(x, indices), call(y, indices.int().npu())
        same([expected, *torch.autograd.grad(expected.sum(), x)], [found, *torch.autograd.grad(found.sum(), y)])
    assert functional.one_hot(index.int().npu()).dtype == torch.int32
    assert torch.compile(functional.one_hot, backend="aot_eager", fullgraph=True)(index.npu(), 5).shape == (1, 4, 5)
    with pytest.raises(RuntimeError, match="Short"):
        functional.cross_entropy(scores.npu(), classes.npu().to(torch.int16))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16])
def test_histograms_of_integers(dtype):
    """By which transformers counts the tokens of each expert. PyTorch's CPU has them of floats alone."""
    x = torch.tensor([[0, 1, 1, 3], [2, 5, 4, 1]])
    expected = torch.histc(x.float(), bins=4, min=0, max=3)
    same(expected.to(dtype), torch.histc(x.to("npu", dtype), bins=4, min=0, max=3))
    same(torch.histc(x.double(), 3).to(dtype), torch.histc(x.t().to("npu", dtype), 3))
    out = torch.empty(0, device="npu", dtype=dtype)
    assert torch.histc(x.to("npu", dtype), bins=4, min=0, max=3, out=out) is out
    same(expected.to(dtype), out)
    raises("the dtype of the input", lambda: torch.histc(x.to("npu", dtype), out=out.double()))
    raises("not implemented for 'Bool'", lambda: torch.histc(x.npu() > 1))


def test_complex_numbers_are_conjugated_in_place():
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert x.npu().conj_physical_().tolist() == x.conj().tolist()
    results = [torch.empty(0, dtype=d, device="npu") for d in (x.dtype, torch.float32, x.dtype)]
    torch.svd(torch.diag(x).npu(), out=results)
    torch.testing.assert_close(results[1].cpu(), torch.svd(torch.diag(x))[1])


def test_a_result_that_is_marked_as_conjugated():
    """LAPACK's results are: the mark is set on what was given as ``out``."""
    a, b = torch.randn(3, 3, dtype=torch.complex64), torch.randn(3, 2, dtype=torch.complex64)
    lu, pivots = torch.linalg.lu_factor(a)
    out = torch.empty(0, dtype=a.dtype, device="npu")
    torch.linalg.lu_solve(lu.npu(), pivots.npu(), b.npu(), adjoint=True, out=out)
    wanted = torch.linalg.lu_solve(lu, pivots, b, adjoint=True)
    torch.testing.assert_close(out.cpu(), wanted, rtol=1e-4, atol=1e-5)
    out = torch.empty(0, device="npu")
    assert torch.copysign(torch.ones(2, device="npu"), -2.0, out=out).tolist() == [-1, -1]


def test_what_the_cpu_does_not_have_is_named():
    raises(
        "_cudnn_rnn_flatten_weight",
        lambda: torch._cudnn_rnn_flatten_weight([torch.ones(3).npu()], 1, 1, 1, 1, 1, 1, True, True),
    )
    raises(
        "'npu' device type for generator but found 'cpu'",
        lambda: torch.rand(2, device="npu", generator=torch.Generator()),
    )
    raises(
        "'cpu' device type for generator but found 'npu'",
        lambda: torch.rand(2, generator=torch.Generator("npu")),
    )


def test_random_numbers_can_be_had_again():
    def draw() -> list[Tensor]:
        x = torch.ones(64, device="npu")
        return [
            torch.rand(8, device="npu"),
            x.bernoulli(0.5),
            torch.nn.functional.dropout(x),
            torch.randperm(9, device="npu"),
        ]

    torch.npu.manual_seed(5)
    first, second = draw(), draw()
    state = torch.npu.get_rng_state()
    third = draw()
    torch.npu.manual_seed(5)
    assert all(map(torch.equal, first, draw()))
    assert not all(map(torch.equal, first, second))
    torch.npu.set_rng_state(state)
    assert all(map(torch.equal, third, draw()))
    before = torch.get_rng_state()
    draw()
    assert torch.equal(before, torch.get_rng_state())  # the CPU's numbers are not touched
    own = torch.Generator("npu").manual_seed(3)
    again = torch.Generator("npu").manual_seed(3)
    assert torch.equal(torch.rand(5, device="npu", generator=own), torch.rand(5, device="npu", generator=again))
    x = torch.randn(100_000, device="npu")
    assert abs(x.mean().item()) < 0.02
    assert abs(x.std().item() - 1) < 0.02


def test_sparse_tensors():
    torch.manual_seed(0)
    dense, other = torch.randn(5, 4).relu(), torch.randn(4, 3)
    for make in (Tensor.to_sparse, Tensor.to_sparse_csr):
        here = make(dense).requires_grad_()
        there = make(dense).to("npu").requires_grad_()
        y, z = here @ other, there @ other.npu()
        same(y.detach(), z.detach())
        y.sum().backward()
        z.sum().backward()
        same(here.grad.to_dense(), there.grad.to_dense())
        same(dense, there.detach().to_dense())
    coo = dense.to_sparse().npu()
    coo.mul_(2)
    same((dense * 2), (coo + coo.transpose(0, 1).transpose(0, 1)).coalesce().to_dense() / 2)
    a, b = dense.to_sparse_csr().requires_grad_(), dense.to_sparse_csr().npu().requires_grad_()
    torch.sparse.mm(a, other, "amax").sum().backward()
    torch.sparse.mm(b, other.npu(), "amax").sum().backward()
    same(a.grad.to_dense(), b.grad.to_dense())


def test_nothing_is_said_about_what_was_replaced():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import descend.npu.kernels

        descend.npu.kernels.install()  # a second time: nothing happens


def test_the_benchmark_measures_the_same_work_on_both_devices():
    calls = {device: npu.operators(device) for device in npu.DEVICES}
    for name in calls["cpu"]:
        here, there = (tensors(calls[device][name]()) for device in npu.DEVICES)
        assert [(t.dtype, t.shape) for t in here] == [(t.dtype, t.shape) for t in there]
    took = npu.take_turns({device: calls[device]["x + y"] for device in npu.DEVICES}, 2, 3)
    assert min(took.values()) > 0


def test_calls_are_recorded_with_their_tensors():
    if kernels.form() is boxed:
        pytest.skip("the kernels in Python do not record")
    x = torch.ones(3, 5, device="npu")
    kernels.recorders()[-1].record(True)
    try:
        torch.cat([x + x, x + x])
    finally:
        kernels.recorders()[-1].record(False)
    x + x  # no longer
    calls = {
        (op, *(given for _, given in tensors)): (count, took)
        for op, tensors, _, count, _, took in kernels.recorders()[-1].recorded()
    }
    count, took = calls["aten::add.Tensor", "float32[3, 5]", "float32[3, 5]"]
    assert count == 2
    assert 0 < took < 60e9
    assert calls["aten::cat", "float32[3, 5]", "float32[3, 5]"][0] == 1


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax], ids=["softmax", "log_softmax"])
def test_softmax_is_descends_and_float64_gradients_the_cpus(function):
    x, dy = (torch.randn(3, 5, 4) for _ in range(2))
    name = f"aten::_{function.__name__}"
    kernels.recorders()[-1].record(True)
    try:
        for dtype in (torch.float32, torch.float64):
            given = x.to(dtype).npu().requires_grad_()
            y = function(given, 1)
            (dx,) = torch.autograd.grad(y, given, dy.to(dtype).npu())
            leaf = x.to(dtype).requires_grad_()
            (expected,) = torch.autograd.grad(function(leaf, 1), leaf, dy.to(dtype))
            torch.testing.assert_close(dx.cpu(), expected)
    finally:
        kernels.recorders()[-1].record(False)
    if kernels.form() is not boxed:
        counts = {op: count for op, _, _, count, _, _ in kernels.recorders()[-1].recorded() if op.startswith(name)}
        assert counts == {f"{name}_backward_data": 1}
    wide = torch.randn(3, 4, dtype=torch.float64, device="npu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: function(t, 0), wide)
    assert torch.autograd.gradgradcheck(lambda t: function(t, 0), wide)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_in_its_other_forms(name, dtype):
    """Of 16 bits to float32, as on an Ascend and not on a CPU, and into a given tensor."""
    function, x = getattr(torch, name), torch.randn(3, 5).to(dtype)
    forward, backward = (getattr(torch.ops.aten, f"_{name}{part}") for part in ("", "_backward_data"))
    wide = function(x.float(), 0)
    for result in (forward(x.npu(), 0, True), function(x.npu(), 0, dtype=torch.float32)):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.cpu(), wide)
    given = torch.empty(3, 5, dtype=dtype, device="npu")
    assert forward.out(x.npu(), 0, False, out=given) is given
    torch.testing.assert_close(given.cpu().float(), wide, rtol=2**-7, atol=2**-7)
    dy = torch.randn(3, 5).to(dtype)
    y = given.cpu()
    right = {
        "softmax": lambda: (dy.double() - (dy.double() * y.double()).sum(0)) * y.double(),
        "log_softmax": lambda: dy.double() - y.double().exp() * dy.double().sum(0),
    }[name]()
    results = [backward(dy.npu(), given, 0, dtype), torch.empty(3, 5, dtype=dtype, device="npu")]
    into = {"softmax": "grad_input", "log_softmax": "out"}[name]
    backward.out(dy.npu(), given, 0, dtype, **{into: results[1]})
    for result in results:
        assert result.dtype == dtype
        torch.testing.assert_close(result.cpu().double(), right, rtol=2**-7, atol=2**-7)
