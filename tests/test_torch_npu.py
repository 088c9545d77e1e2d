"""descend.torch_npu beside the operators written out in PyTorch: signatures, results, gradients, errors."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import descend  # noqa: E402
from cases import run_python  # noqa: E402
from descend import torch_npu  # noqa: E402
from torch_cases import draw  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")
SIGNATURES = {
    "npu_add_layer_norm": "(x1, x2, gamma, beta, epsilon=1e-05, additional_output=False)",
    "npu_add_layer_norm_backward": "(dy_opt, x1, x2, rstd, mean, gamma, dsum_opt)",
    "npu_deep_norm": "(x, gx, beta, gamma, alpha=0.3, epsilon=1e-06)",
    "npu_deep_norm_backward": "(dy, x, gx, gamma, mean, rstd, alpha=0.3)",
    "npu_add_rms_norm": "(x1, x2, gamma, epsilon=1e-06)",
    "npu_apply_adam_w": (
        "(beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon, grad, max_grad_norm, amsgrad, maximize, "
        "*, out)"
    ),
    "npu_gemma_rms_norm": "(self, gamma, epsilon=1e-06)",
    "npu_rms_norm": "(self, gamma, epsilon=1e-06)",
    "npu_rms_norm_backward": "(dy, self, gamma, rstd)",
    "npu_group_norm_silu": "(input, weight, bias, group, eps=1e-05)",
    "npu_group_norm_swish": "(input, num_groups, weight, bias, eps=1e-05, swish_scale=1.0)",
    "npu_group_norm_swish_grad": (
        "(grad, input, num_groups, weight, bias, mean, rstd, grad_input_mask, swish_scale=1.0)"
    ),
    "npu_rotary_mul": "(self, r1, r2, rotary_mode='half', rotate=None)",
    "npu_rotary_mul_backward": "(grad, self, r1, r2, rotary_mode='half')",
    "npu_scaled_masked_softmax": "(x, mask, scale=1, fixed_triu_mask=False)",
    "npu_scaled_masked_softmax_backward": "(y_grad, y, mask, scale, fixed_triu_mask)",
    "npu_swiglu": "(self, dim=-1)",
    "npu_swiglu_backward": "(grad_output, self, dim=-1)",
    "npu_gelu": "(self, *, approximate='none')",
    "npu_gelu_backward": "(grad_output, self, *, approximate='none')",
    "npu_cross_entropy_loss": (
        "(input, target, weight=None, reduction='mean', ignore_index=-100, label_smoothing=0.0, "
        "lse_square_scale_for_zloss=0.0, return_zloss=False)"
    ),
    "npu_cross_entropy_loss_backward": (
        "(grad_loss, log_prob, target, weight=None, grad_zloss=None, lse_for_zloss=None, reduction='mean', "
        "ignore_index=-100, label_smoothing=0.0, lse_square_scale_for_zloss=0.0)"
    ),
    "npu_nsa_compress": "(input, weight, compress_block_size, compress_stride, *, actual_seq_len=None)",
    "npu_nsa_compress_grad": "(grad, input, weight, compress_block_size, compress_stride, *, actual_seq_len=None)",
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def normal(*shape: int, dtype: Any = torch.float64, seed: int = 0) -> Tensor:
    return draw(shape, seed + sum(shape), torch.float64).to(dtype)


def close(ours: Any, theirs: Any, dtype: torch.dtype) -> None:
    """Within a few roundings of what was computed in float64."""
    for a, b in zip(ours, theirs, strict=True):
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(a.double(), b.double(), rtol=8 * unit, atol=8 * unit * b.detach().abs().max().item())


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * gamma


def group_norm_swish(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, scale: float
) -> Tensor:
    z = nn.functional.group_norm(x, groups, weight, bias, eps)
    return z * torch.sigmoid(scale * z)


def nsa_compress(x: Tensor, weight: Tensor, stride: int, ends: list[int]) -> Tensor:
    width = len(weight)
    starts = [s for a, b in zip([0, *ends], ends, strict=False) for s in range(a, b - width + 1, stride)]
    return torch.stack([(x[s : s + width] * weight.unsqueeze(-1)).sum(0) for s in starts])


def gradients(y: Tensor, given: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y, leaves, given)


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.double().requires_grad_() for t in tensors]


# --- names and signatures ------------------------------------------------------------------------------------------


def test_importing_descend_does_not_import_it():
    code = "import sys, descend; print('torch' in sys.modules, 'descend.torch_npu' in sys.modules)"
    assert run_python(code).stdout == "False False\n"


def test_the_names_are_torch_npus():
    assert sorted(SIGNATURES) == sorted(torch_npu.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures_are_torch_npus(name):
    signature = inspect.signature(getattr(torch_npu, name))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == SIGNATURES[name]
    assert getattr(torch_npu, name).__doc__


# --- results and gradients -----------------------------------------------------------------------------------------


@each_dtype
def test_rms_norm(dtype):
    x, gamma, given = normal(3, 4, 8, dtype=dtype), normal(8, dtype=dtype), normal(3, 4, 8, dtype=dtype, seed=1)
    a, b = leaves(x, gamma)
    golden = rms_norm(a, b)
    wanted = gradients(golden, given.double(), a, b)
    x.requires_grad_()
    gamma.requires_grad_()
    y, rstd = torch_npu.npu_rms_norm(x, gamma)
    assert (y.dtype, tuple(rstd.shape)) == (dtype, (3, 4, 1))
    assert rstd.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    close([y], [golden], dtype)
    close(gradients(y, given, x, gamma), wanted, dtype)
    dx, dgamma = torch_npu.npu_rms_norm_backward(given, x, gamma, rstd)
    assert dgamma.dtype is rstd.dtype
    close([dx, dgamma], wanted, dtype)


@each_dtype
def test_add_rms_norm(dtype):
    """The gradient that comes in for the sum is added to that of its norm."""
    x1, x2, given, more = (normal(3, 4, 8, dtype=dtype, seed=seed) for seed in range(4))
    gamma = normal(8, dtype=dtype)
    held = leaves(x1, x2, gamma)
    total = held[0] + held[1]
    golden = rms_norm(total, held[2])
    wanted = torch.autograd.grad([golden, total], held, [given.double(), more.double()])
    for tensor in (x1, x2, gamma):
        tensor.requires_grad_()
    y, rstd, x = torch_npu.npu_add_rms_norm(x1, x2, gamma)
    assert (y.dtype, x.dtype, tuple(rstd.shape)) == (dtype, dtype, (3, 4, 1))
    close([y, x], [golden, total], dtype)
    close(torch.autograd.grad([y, x], [x1, x2, gamma], [given, more]), wanted, dtype)


@each_dtype
def test_add_layer_norm(dtype):
    """gamma of two dimensions: mean and rstd have a 1 for both."""
    x1, x2, given, more = (normal(3, 4, 8, dtype=dtype, seed=seed) for seed in range(4))
    gamma, beta = (normal(4, 8, dtype=dtype, seed=seed) for seed in (4, 5))
    held = leaves(x1, x2, gamma, beta)
    total = held[0] + held[1]
    golden = nn.functional.layer_norm(total, (4, 8), *held[2:])
    wanted = torch.autograd.grad([golden, total], held, [given.double(), more.double()])
    for tensor in (x1, x2, gamma, beta):
        tensor.requires_grad_()
    y, mean, rstd, x = torch_npu.npu_add_layer_norm(x1, x2, gamma, beta, additional_output=True)
    assert (y.dtype, x.dtype, mean.shape, rstd.shape) == (dtype, dtype, (3, 1), (3, 1))
    close([y, x], [golden, total], dtype)
    close(torch.autograd.grad([y, x], [x1, x2, gamma, beta], [given, more]), wanted, dtype)
    with torch.no_grad():
        plain = torch_npu.npu_add_layer_norm(x1, x2, gamma, beta)
        assert torch.equal(plain[0], y)
        assert plain[3].shape == x.shape
        found = torch_npu.npu_add_layer_norm_backward(given, x1, x2, rstd, mean, gamma, more)
        close(found, wanted, dtype)
        through_sum = torch_npu.npu_add_layer_norm_backward(None, x1, x2, rstd, mean, gamma, more)
        close(through_sum, (more, more, 0 * gamma, 0 * gamma), dtype)


@each_dtype
def test_deep_norm(dtype):
    x, gx, given = (normal(3, 4, 8, dtype=dtype, seed=seed) for seed in range(3))
    gamma, beta = (normal(8, dtype=dtype, seed=seed) for seed in (3, 4))
    held = leaves(x, gx, beta, gamma)
    golden = nn.functional.layer_norm(0.5 * held[0] + held[1], (8,), held[3], held[2], 1e-6)
    wanted = torch.autograd.grad(golden, held, given.double())
    for tensor in (x, gx, beta, gamma):
        tensor.requires_grad_()
    mean, rstd, y = torch_npu.npu_deep_norm(x, gx, beta, gamma, 0.5)
    assert (y.dtype, mean.shape, rstd.shape) == (dtype, (3, 4, 1), (3, 4, 1))
    close([y], [golden], dtype)
    close(torch.autograd.grad(y, [x, gx, beta, gamma], given), wanted, dtype)
    close(torch_npu.npu_deep_norm_backward(given, x, gx, gamma, mean, rstd, 0.5), wanted, dtype)


@each_dtype
def test_gemma_rms_norm(dtype):
    x, gamma, given = normal(3, 4, 8, dtype=dtype), normal(8, dtype=dtype), normal(3, 4, 8, dtype=dtype, seed=1)
    a, b = leaves(x, gamma)
    golden = rms_norm(a, 1 + b)
    wanted = gradients(golden, given.double(), a, b)
    x.requires_grad_()
    gamma.requires_grad_()
    y, rstd = torch_npu.npu_gemma_rms_norm(x, gamma)
    assert (y.dtype, tuple(rstd.shape)) == (dtype, (3, 4, 1))
    close([y], [golden], dtype)
    close(gradients(y, given, x, gamma), wanted, dtype)


@each_dtype
@pytest.mark.parametrize(("eps", "scale"), [(1e-5, 1.0), (None, None), (1e-3, 1.7)])
def test_group_norm_swish(dtype, eps, scale):
    x, weight, bias = normal(2, 6, 3, 4, dtype=dtype), normal(6, dtype=dtype), normal(6, dtype=dtype, seed=2)
    given = normal(2, 6, 3, 4, dtype=dtype, seed=1)
    held = leaves(x, weight, bias)
    golden = group_norm_swish(held[0], 3, *held[1:], 1e-5 if eps is None else eps, 1.0 if scale is None else scale)
    wanted = gradients(golden, given.double(), *held)
    for tensor in (x, weight, bias):
        tensor.requires_grad_()
    y, mean, rstd = torch_npu.npu_group_norm_swish(x, 3, weight, bias, eps, scale)
    assert y.dtype is mean.dtype is rstd.dtype is dtype
    assert mean.shape == rstd.shape == (2, 3)
    close([y], [golden], dtype)
    close(gradients(y, given, x, weight, bias), wanted, dtype)
    if dtype.itemsize > 2:  # 16-bit statistics are too inexact for the backward
        close(
            torch_npu.npu_group_norm_swish_grad(given, x, 3, weight, bias, mean, rstd, [True] * 3, scale), wanted, dtype
        )


@each_dtype
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_silu(dtype, affine):
    x, given = normal(2, 6, 3, 4, dtype=dtype), normal(2, 6, 3, 4, dtype=dtype, seed=1)
    parameters = [normal(6, dtype=dtype, seed=seed) for seed in (2, 3)] if affine else []
    held = leaves(x, *parameters)
    golden = group_norm_swish(held[0], 3, *(held[1:] or (None, None)), 1e-5, 1.0)
    wanted = gradients(golden, given.double(), *held)
    for tensor in (x, *parameters):
        tensor.requires_grad_()
    out, mean, rstd = torch_npu.npu_group_norm_silu(x, *(parameters or (None, None)), 3)
    assert out.dtype is mean.dtype is rstd.dtype is dtype
    assert mean.shape == rstd.shape == (2, 3)
    close([out], [golden], dtype)
    close(gradients(out, given, x, *parameters), wanted, dtype)


def test_group_norm_swish_grad_gives_what_is_asked():
    x, parameter, statistic = normal(2, 6, 4), normal(6), normal(2, 3).square() + 1
    every = torch_npu.npu_group_norm_swish_grad(x, x, 3, parameter, parameter, statistic, statistic, [True] * 3)
    for mask in ([True, False, False], [False, True, False], [False, False, True], (False, True, True)):
        some = torch_npu.npu_group_norm_swish_grad(x, x, 3, parameter, parameter, statistic, statistic, mask)
        for wanted, one, other in zip(mask, some, every, strict=True):
            assert torch.equal(one, other) if wanted else one is None


@each_dtype
@pytest.mark.parametrize("triangle", [False, True])
def test_scaled_masked_softmax(dtype, triangle):
    x, given = normal(2, 3, 5, 5, dtype=dtype), normal(2, 3, 5, 5, dtype=dtype, seed=1)
    mask = normal(2, 1, 5, 5) > 0.5
    used = torch.ones(5, 5, dtype=torch.bool).triu(1) if triangle else mask
    (held,) = leaves(x)
    golden = (held * 0.5).masked_fill(used, -10000.0).softmax(-1)
    (wanted,) = gradients(golden, given.double(), held)
    x.requires_grad_()
    y = torch_npu.npu_scaled_masked_softmax(x, mask, 0.5, triangle)
    close([y], [golden], dtype)
    close(gradients(y, given, x), [wanted], dtype)
    close([torch_npu.npu_scaled_masked_softmax_backward(given, y, mask, 0.5, triangle)], [wanted], dtype)


def test_softmax_without_a_scale():
    x, mask = normal(1, 1, 4, 4), torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    close([torch_npu.npu_scaled_masked_softmax(x, mask)], [x.softmax(-1)], torch.float64)


@each_dtype
@pytest.mark.parametrize("mode", ["half", "interleave", "quarter", "interleave-half"])
def test_rotary_mul(dtype, mode):
    x, r1, r2 = (normal(*shape, dtype=dtype) for shape in ((2, 3, 4, 8), (1, 3, 1, 8), (1, 3, 1, 8)))
    held = leaves(x, r1, r2)
    wide, cos, sin = held
    if mode == "interleave":
        golden = wide * cos + torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2) * sin
    elif mode == "interleave-half":
        a, b = wide[..., ::2], wide[..., 1::2]
        golden = torch.cat((a, b), -1) * cos + torch.cat((-b, a), -1) * sin
    else:
        parts = wide.chunk(2 if mode == "half" else 4, -1)
        turned = [p for a, b in zip(parts[::2], parts[1::2], strict=True) for p in (-b, a)]
        golden = wide * cos + torch.cat(turned, -1) * sin
    given = normal(2, 3, 4, 8, dtype=dtype, seed=1)
    wanted = gradients(golden, given.double(), *held)
    close(torch_npu.npu_rotary_mul_backward(given, x, r1, r2, mode), wanted, dtype)
    for tensor in (x, r1, r2):
        tensor.requires_grad_()
    y = torch_npu.npu_rotary_mul(x, r1, r2, mode)
    assert y.dtype is dtype
    close([y], [golden], dtype)
    close(gradients(y, given, x, r1, r2), wanted, dtype)


def test_rotary_mul_by_a_matrix_and_of_other_dtypes_and_words_that_there_are_not():
    x, r1, r2 = normal(2, 3, 4, dtype=torch.bfloat16), normal(2, 1, 4), normal(2, 1, 4)
    matrix = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 1], [-1, 0, 0, 0], [0, -1, 0, 0]], dtype=torch.bfloat16)
    y = torch_npu.npu_rotary_mul(x, r1, r2)
    assert y.dtype is torch.bfloat16
    close([torch_npu.npu_rotary_mul(x, r1, r2, rotate=matrix)], [y], torch.bfloat16)
    with pytest.raises(ValueError, match="npu_rotary_mul: rotary_mode is 'third', but must be one of 'half'"):
        torch_npu.npu_rotary_mul(x, r1, r2, "third")
    with pytest.raises(ValueError, match="npu_gelu: approximate is 'third', but must be one of 'none', 'tanh'"):
        torch_npu.npu_gelu(x, approximate="third")


@each_dtype
@pytest.mark.parametrize("dim", [-1, 0])
def test_swiglu(dtype, dim):
    x = normal(4, 3, 6, dtype=dtype)
    (held,) = leaves(x)
    a, b = held.chunk(2, dim)
    golden = nn.functional.silu(a) * b
    given = normal(*golden.shape, dtype=dtype, seed=1)
    wanted = gradients(golden, given.double(), held)
    x.requires_grad_()
    y = torch_npu.npu_swiglu(x, dim)
    assert y.dtype is dtype
    close([y], [golden], dtype)
    close(gradients(y, given, x), wanted, dtype)
    close([torch_npu.npu_swiglu_backward(given, x, dim)], wanted, dtype)


@each_dtype
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(dtype, approximate):
    x = normal(4, 3, 6, dtype=dtype)
    (held,) = leaves(x)
    golden = nn.functional.gelu(held, approximate=approximate)
    given = normal(*golden.shape, dtype=dtype, seed=1)
    wanted = gradients(golden, given.double(), held)
    x.requires_grad_()
    y = torch_npu.npu_gelu(x, approximate=approximate)
    assert y.dtype is dtype
    close([y], [golden], dtype)
    close(gradients(y, given, x), wanted, dtype)
    close([torch_npu.npu_gelu_backward(given, x, approximate=approximate)], wanted, dtype)


@each_dtype
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_loss(dtype, reduction):
    x, weight = normal(6, 5, dtype=dtype), normal(5, dtype=dtype, seed=2).abs()
    target = torch.tensor([1, 0, 4, -100, 2, 2], device=x.device)
    (held,) = leaves(x)
    golden = nn.functional.cross_entropy(held, target, weight.double(), reduction=reduction, label_smoothing=0.1)
    golden = golden.reshape(-1)
    given = normal(*golden.shape, dtype=dtype, seed=1)
    wanted = gradients(golden, given.double(), held)
    x.requires_grad_()
    loss, log_prob, zloss, lse = torch_npu.npu_cross_entropy_loss(x, target, weight, reduction, label_smoothing=0.1)
    assert loss.dtype is dtype
    assert zloss.shape == lse.shape == (0,)
    close([loss, log_prob], [golden, held.log_softmax(-1)], dtype)
    close(gradients(loss, given, x), wanted, dtype)
    attributes = {"reduction": reduction, "label_smoothing": 0.1}
    found = torch_npu.npu_cross_entropy_loss_backward(
        given, log_prob.detach(), target, weight, zloss, lse, **attributes
    )
    close([found], wanted, dtype)
    each = torch_npu.npu_cross_entropy_loss(
        x, target, reduction="sum", lse_square_scale_for_zloss=0.25, return_zloss=True
    )
    close([each[2]], [0.25 * held.logsumexp(-1)[target >= 0].square().sum().reshape(1)], dtype)


@each_dtype
@pytest.mark.parametrize("ends", [None, [4, 4, 19], [0, 7, 19]])
def test_nsa_compress(dtype, ends):
    x, weight = normal(19, 2, 4, dtype=dtype), normal(4, 2, dtype=dtype)
    held = leaves(x, weight)
    golden = nsa_compress(*held, 3, ends or [19])
    given = normal(*golden.shape, dtype=dtype, seed=1)
    wanted = gradients(golden, given.double(), *held)
    x.requires_grad_()
    weight.requires_grad_()
    y = torch_npu.npu_nsa_compress(x, weight, 4, 3, actual_seq_len=ends)
    close([y], [golden], dtype)
    close(gradients(y, given, x, weight), wanted, dtype)
    close(torch_npu.npu_nsa_compress_grad(given, x, weight, 4, 3, actual_seq_len=ends), wanted, dtype)


def test_the_backward_functions_are_differentiable():
    dy, x, gamma, rstd = (normal(*s, seed=i) for i, s in enumerate([(3, 4), (3, 4), (4,), (3, 1)]))
    for tensor in (dy, x, gamma, rstd):
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(torch_npu.npu_rms_norm_backward, (dy, x, gamma, rstd))


def test_they_compile_without_breaks():
    x, weight = normal(2, 4, 3), normal(4)

    def step(x: Tensor) -> Tensor:
        return torch_npu.npu_group_norm_swish(torch_npu.npu_rms_norm(x, x[0, 0])[0], 2, weight, weight)[0]

    close([torch.compile(step, fullgraph=True, backend="aot_eager")(x)], [step(x)], torch.float64)


# --- errors --------------------------------------------------------------------------------------------------------

WRONG = {
    r"npu_rms_norm: gamma has shape \[9\], but must equal the last dimensions of self": lambda: torch_npu.npu_rms_norm(
        torch.ones(2, 8), torch.ones(9)
    ),
    r"npu_rms_norm: all tensors must be on one device, but there are self on .*, gamma on meta\.": lambda: (
        torch_npu.npu_rms_norm(torch.ones(2, 8), torch.ones(8, device="meta"))
    ),
    r"npu_rms_norm_backward: dy has shape \[2, 7\], but must have that of self": lambda: (
        torch_npu.npu_rms_norm_backward(*(torch.ones(s) for s in ((2, 7), (2, 8), (8,), (2,))))
    ),
    r"npu_group_norm_swish: num_groups is 3, but must divide the 8 channels of input": lambda: (
        torch_npu.npu_group_norm_swish(torch.ones(2, 8), 3, torch.ones(8), torch.ones(8))
    ),
    r"npu_group_norm_swish_grad: bias has shape \[7\]": lambda: torch_npu.npu_group_norm_swish_grad(
        *(torch.ones(2, 8), torch.ones(2, 8), 2, torch.ones(8), torch.ones(7), torch.ones(2, 2), torch.ones(2, 2)),
        (True, True, True),
    ),
    r"npu_group_norm_swish_grad: grad_input_mask has length 2, but must have length 3\.": lambda: (
        torch_npu.npu_group_norm_swish_grad(
            *(torch.ones(2, 8), torch.ones(2, 8), 2, torch.ones(8), torch.ones(8), torch.ones(2, 2), torch.ones(2, 2)),
            (True, True),
        )
    ),
    r"npu_scaled_masked_softmax: mask has shape \[7\]": lambda: torch_npu.npu_scaled_masked_softmax(
        torch.ones(2, 8), torch.ones(7, dtype=torch.bool)
    ),
    r"npu_scaled_masked_softmax_backward: y has shape \[2, 7\], but must have that of y_grad": lambda: (
        torch_npu.npu_scaled_masked_softmax_backward(
            torch.ones(2, 8), torch.ones(2, 7), torch.ones(2, 8, dtype=torch.bool), 1, False
        )
    ),
    r"npu_nsa_compress: actual_seq_len has 2 at index 1 after 3": lambda: torch_npu.npu_nsa_compress(
        torch.ones(9, 2, 3), torch.ones(4, 2), 4, 1, actual_seq_len=[3, 2]
    ),
    r"npu_nsa_compress_grad: grad has shape \[9, 2, 3\]": lambda: torch_npu.npu_nsa_compress_grad(
        torch.ones(9, 2, 3), torch.ones(9, 2, 3), torch.ones(4, 2), 4, 1
    ),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_errors_name_the_functions_own_parameters(sentence):
    with pytest.raises(ValueError, match=f"^{sentence}") as raised:
        WRONG[sentence]()
    assert "mask has length" in sentence or raised.value.status in (161002, 561002)
    assert isinstance(raised.value, descend.errors.AclnnError) or "mask has length" in sentence


@each_dtype
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_w(dtype, amsgrad):
    var, m, grad = (normal(4, 5, seed=i).to(dtype) for i in range(3))
    v, most = (normal(4, 5, seed=i).abs().to(dtype) for i in (3, 4))
    exact = [t.to(torch.float64, copy=True) for t in (var, m, v, grad, most)]
    call = (0.9**3, 0.99**3, 0.1, 0.01, 0.9, 0.99, 1e-6, grad, most, amsgrad, True)
    kept = most.clone()
    results = torch_npu.npu_apply_adam_w(*call, out=(var, m, v))
    assert results[0] is var
    assert torch.equal(most, kept)
    wanted = descend.torch.apply_adam_w_v2(
        *exact[:3], exact[4], exact[3], torch.tensor(3), 0.1, 0.9, 0.99, 0.01, 1e-6, amsgrad, True
    )
    if dtype is torch.float64:  # 1 - beta2 has some digits less, and the other numbers are made with it
        torch.testing.assert_close(results, wanted[:3], rtol=1e-12, atol=1e-13)
    else:
        close(results, wanted[:3], dtype)
    for name, wrong in (("beta1_power", (2.0, *call[1:])), ("beta2", (*call[:5], 1.0, *call[6:]))):
        with pytest.raises(ValueError, match=f"npu_apply_adam_w: {name} is"):
            torch_npu.npu_apply_adam_w(*wrong, out=(var, m, v))
