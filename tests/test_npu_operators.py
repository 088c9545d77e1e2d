"""The ten operators through the real torch_npu, on Descend in CANN's place, beside their definitions in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

torch = pytest.importorskip("torch")
torch_npu = pytest.importorskip("torch_npu")

from torch import Tensor, nn  # noqa: E402

import forks  # noqa: E402
from test_torch_npu import close, group_norm_swish, leaves, normal, nsa_compress, rms_norm  # noqa: E402

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)
each_float = pytest.mark.parametrize("dtype", FLOATS)
each_half = pytest.mark.parametrize("dtype", HALVES)


@pytest.fixture(autouse=True)
def done() -> Iterator[None]:
    """What torch_npu has queued is done before a test ends."""
    yield
    torch.npu.synchronize()


def on_npu(*tensors: Tensor) -> list[Tensor]:
    return [tensor.npu().requires_grad_(tensor.is_floating_point()) for tensor in tensors]


def check(outputs: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Values by the definition, and tensors where they belong."""
    for output in outputs:
        assert output.device.type == "npu"
    close([output.detach().cpu() for output in outputs], expected, dtype)


def gradients(y: Tensor, given: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, inputs, given)


@each_float
@pytest.mark.parametrize("shape", [(4, 64), (2, 3, 5, 17), (300, 256)])
def test_rms_norm(shape, dtype):
    x, dy = (normal(*shape, dtype=dtype, seed=i) for i in range(2))
    gamma = normal(shape[-1], dtype=torch.float32, seed=2)
    inputs, exact = on_npu(x, gamma), leaves(x, gamma)
    y, rstd = torch_npu.npu_rms_norm(*inputs, epsilon=1e-3)
    expected = rms_norm(*exact, 1e-3)
    check([y], [expected], dtype)
    check([rstd], [(exact[0].square().mean(-1, keepdim=True) + 1e-3).rsqrt()], torch.float32)
    check(gradients(y, dy.npu(), inputs), gradients(expected, dy.double(), exact), dtype)


@each_float
def test_rms_norm_backward(dtype):
    x, gamma, dy = (normal(*s, dtype=dtype, seed=i) for i, s in enumerate(((6, 48), (48,), (6, 48))))
    exact = leaves(x, gamma)
    rstd = (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    dx, dgamma = torch_npu.npu_rms_norm_backward(dy.npu(), x.npu(), gamma.npu(), rstd.float().npu())
    assert dgamma.dtype == torch.float32
    check([dx, dgamma], gradients(rms_norm(*exact), dy.double(), exact), dtype)


@each_half
def test_rms_norm_of_what_is_not_contiguous(dtype):
    """As in Qwen3: heads are normalized and then transposed, so that the gradient has other strides. The gradient of a
    sum has strides of 0."""
    x, dy = normal(2, 5, 3, 16, dtype=dtype, seed=0), normal(2, 3, 5, 16, dtype=dtype, seed=1)
    gamma = normal(16, dtype=dtype, seed=2)
    inputs, exact = on_npu(x.transpose(0, 1), gamma), leaves(x.transpose(0, 1), gamma)
    y, expected = torch_npu.npu_rms_norm(*inputs)[0], rms_norm(*exact, 1e-6)
    transposed = gradients(y.permute(1, 2, 0, 3), dy.npu(), inputs)
    check(transposed, gradients(expected.permute(1, 2, 0, 3), dy.double(), exact), dtype)
    y, expected = torch_npu.npu_rms_norm(*inputs)[0], rms_norm(*exact, 1e-6)
    check(torch.autograd.grad(y.sum(), inputs), torch.autograd.grad(expected.sum(), exact), dtype)


@each_float
def test_add_rms_norm(dtype):
    """Its own function, the gradients that Descend adds to it, and the one in place."""
    x1, x2, dy, dx = (normal(6, 48, dtype=dtype, seed=i) for i in range(4))
    gamma = normal(48, dtype=dtype, seed=4)
    inputs, exact = on_npu(x1, x2, gamma), leaves(x1, x2, gamma)
    y, rstd, x = torch_npu.npu_add_rms_norm(*inputs, epsilon=1e-3)
    total = exact[0] + exact[1]
    expected = rms_norm(total, exact[2], 1e-3)
    check([y, x], [expected, total], dtype)
    check([rstd], [(total.square().mean(-1, keepdim=True) + 1e-3).rsqrt()], torch.float32)
    wanted = torch.autograd.grad([expected, total], exact, [dy.double(), dx.double()])
    check(torch.autograd.grad([y, x], inputs, [dy.npu(), dx.npu()]), wanted, dtype)
    if hasattr(torch_npu, "npu_add_rms_norm_v2"):
        first, second = x1.npu(), x2.npu()
        of_v2 = torch_npu.npu_add_rms_norm_v2(first, second, gamma.npu(), 1e-3)
        for a, b in ((of_v2, rstd), (first, y), (second, x)):
            assert torch.equal(a.cpu(), b.detach().cpu())


@each_float
def test_gemma_rms_norm(dtype):
    x, dy = (normal(6, 48, dtype=dtype, seed=i) for i in range(2))
    gamma = normal(48, dtype=dtype, seed=2)
    inputs, exact = on_npu(x, gamma), leaves(x, gamma)
    y, rstd = torch_npu.npu_gemma_rms_norm(*inputs, 1e-3)
    expected = rms_norm(exact[0], 1 + exact[1], 1e-3)
    check([y], [expected], dtype)
    check([rstd], [(exact[0].square().mean(-1, keepdim=True) + 1e-3).rsqrt()], torch.float32)
    check(gradients(y, dy.npu(), inputs), gradients(expected, dy.double(), exact), dtype)


@each_float
def test_layer_norm_module(dtype):
    x, dy = (normal(2, 3, 32, dtype=dtype, seed=i) for i in range(2))
    weight, bias = (normal(32, dtype=torch.float32, seed=i) for i in (2, 3))
    module = nn.LayerNorm(32)
    module.weight.data, module.bias.data = weight, bias
    module = module.npu()
    (given,), exact = on_npu(x), leaves(x, weight, bias)
    y = module(given)
    expected = nn.functional.layer_norm(exact[0], (32,), *exact[1:])
    check([y], [expected], dtype)
    check(gradients(y, dy.npu(), [given, *module.parameters()]), gradients(expected, dy.double(), exact), dtype)


@each_float
def test_native_layer_norm_and_backward(dtype):
    x, dy = (normal(5, 4, 6, dtype=dtype, seed=i) for i in range(2))
    weight, bias = (normal(4, 6, dtype=dtype, seed=i) for i in (2, 3))
    y, mean, rstd = torch.native_layer_norm(x.npu(), (4, 6), weight.npu(), bias.npu(), 1e-5)
    exact = leaves(x, weight, bias)
    expected = torch.native_layer_norm(exact[0], (4, 6), exact[1], exact[2], 1e-5)
    check([y], expected[:1], dtype)
    check([mean, rstd], expected[1:], torch.float32)
    backward = torch.ops.aten.native_layer_norm_backward
    given = [t.npu() for t in (dy, x)]
    for mask in ([True, True, True], [True, False, False], [False, True, True]):
        found = backward(*given, (4, 6), mean, rstd, weight.npu(), bias.npu(), mask)
        wanted = [g for g, m in zip(gradients(expected[0], dy.double(), exact), mask, strict=True) if m]
        check([g for g, m in zip(found, mask, strict=True) if m], wanted, dtype)
        expected = torch.native_layer_norm(exact[0], (4, 6), exact[1], exact[2], 1e-5)


@each_float
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_group_norm_swish(scale, dtype):
    x, dy = (normal(2, 6, 5, dtype=dtype, seed=i) for i in range(2))
    weight, bias = (normal(6, dtype=dtype, seed=i) for i in (2, 3))
    inputs, exact = on_npu(x, weight, bias), leaves(x, weight, bias)
    y, mean, rstd = torch_npu.npu_group_norm_swish(inputs[0], 3, *inputs[1:], eps=1e-5, swish_scale=scale)
    expected = group_norm_swish(exact[0], 3, exact[1], exact[2], 1e-5, scale)
    check([y], [expected], dtype)
    rows = x.double().reshape(2, 3, -1)
    check([mean, rstd], [rows.mean(-1), (rows.var(-1, unbiased=False) + 1e-5).rsqrt()], dtype)
    check(gradients(y, dy.npu(), inputs), gradients(expected, dy.double(), exact), dtype)


@each_half
@pytest.mark.parametrize("ends", [[96], [40, 96]])
def test_nsa_compress(ends, dtype):
    x, weight = normal(96, 2, 16, dtype=dtype), normal(32, 2, dtype=dtype, seed=1)
    inputs, exact = on_npu(x, weight), leaves(x, weight)
    y = torch_npu.npu_nsa_compress(*inputs, 32, 16, actual_seq_len=ends)
    expected = nsa_compress(*exact, 16, ends)
    check([y], [expected], dtype)
    dy = normal(*expected.shape, dtype=dtype, seed=2)
    check(gradients(y, dy.npu(), inputs), gradients(expected, dy.double(), exact), dtype)


@each_float
def test_scaled_masked_softmax(dtype):
    """On this product torch_npu asks for it by its type, through aclopCompileAndExecute."""
    shape = (2, 2, 32, 32)
    x, dy = (normal(*shape, dtype=dtype, seed=i) for i in range(2))
    mask = normal(*shape, seed=2) > 0.5
    (given,), (exact,) = on_npu(x), leaves(x)
    y = torch_npu.npu_scaled_masked_softmax(given, mask.npu(), 0.5, False)
    expected = torch.softmax((exact * 0.5).masked_fill(mask, -10000.0), -1)
    check([y], [expected], dtype)
    check(gradients(y, dy.npu(), [given]), gradients(expected, dy.double(), [exact]), dtype)


# --- errors ----------------------------------------------------------------------------------------------------------
# One ends torch_npu's queue, and with it the use of the device: a process of its own for each.


@pytest.mark.parametrize("queue", ["0", "1", "2"])
def test_an_error_is_torch_npus_exception_with_our_sentence(queue):
    code = """
import torch, torch_npu
try:
    torch_npu.npu_rms_norm(torch.ones(4, 8).npu(), torch.ones(7).npu())
    torch.npu.synchronize()
except RuntimeError as error:
    print(error)
"""
    done = forks.run(code, check=True, environment={"TASK_QUEUE_ENABLE": queue}, loaded="torch_npu")
    assert "aclnnRmsNorm: gamma has shape [7]" in done.stdout


def test_descend_under_pytorchs_norms_on_the_cpu():
    """`enable`, before torch_npu is imported or after it, is about CPU tensors: device npu computes as before."""
    code = """
import sys, torch
if sys.argv[1] == "before":
    import descend.torch
    descend.torch.enable()
import torch_npu, descend.torch
from torch.nn import functional as F
x, weight = torch.randn(6, 48), torch.randn(48)

def step(device):
    leaves = [t.detach().to(device).requires_grad_() for t in (x, weight)]
    results = [F.layer_norm(leaves[0], (48,), leaves[1]), F.rms_norm(leaves[0], (48,), leaves[1])]
    gradients = torch.autograd.grad(sum(y.square().sum() for y in results), leaves)
    return results[1].grad_fn.name(), [t.cpu() for t in (*results, *gradients)]

descend.torch.enable()
name, on_cpu = step("cpu")
assert name == "FusedRmsNormBackward0", name
name, on_npu = step("npu")
assert name != "FusedRmsNormBackward0", name
descend.torch.disable()
assert step("cpu")[0] != "FusedRmsNormBackward0"
same, after = step("npu")
assert same == name
assert all(map(torch.equal, on_npu, after))
torch.testing.assert_close(on_npu, on_cpu, rtol=1e-4, atol=1e-4)
torch.npu.synchronize()
"""
    for when in ("before", "after"):
        forks.run(code, when, check=True)
