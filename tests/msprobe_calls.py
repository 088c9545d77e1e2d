"""Calls of Descend's operators as msprobe dumps them, with results of Descend's kernels."""

from __future__ import annotations

import numpy as np

import descend
from msprobe_dumps import call, gradient

WINDOWS = {"compress_block_size": 32, "compress_stride": 16}


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def layer_norm(dtype):
    """Calls of PyTorch's layer norm, with and without statistics and parameters; results are of Descend's kernels."""
    x, dy, gamma, beta = (random(*s, dtype=dtype, seed=i) for i, s in enumerate([(6, 24)] * 2 + [(24,)] * 2))
    y, mean, rstd = descend.layer_norm(x, (24,), gamma, beta, 1e-3)
    gradients = list(descend.layer_norm_backward(dy, x, (24,), mean, rstd, gamma, beta))
    plain, *statistics = descend.layer_norm(x, (24,))
    (dx, _, _) = descend.layer_norm_backward(dy, x, (24,), *statistics)
    return {
        "Functional.layer_norm.0.forward": call([x, [24], gamma, beta, 1e-3], [y]),
        "Functional.layer_norm.0.backward": gradient([dy], gradients),
        "Functional.layer_norm.1.forward": call([x], [plain], normalized_shape=[24]),
        "Functional.layer_norm.1.backward": gradient([dy, None, None], [dx, None, None]),
        "Torch.layer_norm.0.forward": call([x, [24]], [y], bias=beta, weight=gamma, eps=1e-3, cudnn_enable=False),
        "Torch.native_layer_norm.0.forward": call([x, [24], gamma, beta, 1e-3], [y, mean, rstd]),
        "Torch.native_layer_norm.0.backward": gradient([dy, None, None], gradients),
        "Torch.native_layer_norm.1.forward": call([x, [24], gamma, beta, 1e-3], [y, None, rstd]),
        "Torch.native_layer_norm.1.backward": gradient([dy, None, None], gradients),
        "Aten.native_layer_norm.default.0.forward": call([x, [24], gamma, beta, 1e-3], [y, mean, rstd]),
        "Aten.native_layer_norm_backward.0.forward": call(
            [dy, x, [24], mean, rstd, gamma, beta, [True, False, True]], [gradients[0], None, gradients[2]]
        ),
    }


def rms_norm(dtype):
    x, dy, gamma = random(4, 3, 24, dtype=dtype), random(4, 3, 24, dtype=dtype, seed=1), random(24, dtype=dtype)
    y, rstd = descend.rms_norm(x, gamma)
    dx, dgamma = descend.rms_norm_grad(dy, x, rstd, gamma)
    smallest = float(np.finfo(np.float32).eps)
    small = (x * np.float32(2.0**-12)).astype(dtype)  # beside which an epsilon matters
    plain, plain_rstd = descend.rms_norm(small, np.ones(24, dtype), smallest)
    plain_dx, _ = descend.rms_norm_grad(dy, small, plain_rstd, np.ones(24, dtype))
    return {
        "NPU.npu_rms_norm.0.forward": call([x, gamma], [y, rstd]),
        "NPU.npu_rms_norm.0.backward": gradient([dy], [dx, dgamma]),
        "NPU.npu_rms_norm.1.forward": call([x, gamma], [y, None], epsilon=1e-6),
        "NPU.npu_rms_norm.1.backward": gradient([dy], [dx, dgamma]),
        "NPU.npu_rms_norm_backward.0.forward": call([dy, x, gamma, rstd], [dx, dgamma]),
        "Functional.rms_norm.0.forward": call([small, [24]], [plain]),
        "Torch._fused_rms_norm.0.forward": call([small, [24], None, None], [plain, plain_rstd]),
        "Torch._fused_rms_norm.0.backward": gradient([dy], [plain_dx, None]),
        "Torch._fused_rms_norm.1.forward": call([x, [24], gamma, 1e-6], [y]),
        "Torch._fused_rms_norm.1.backward": gradient([dy], [dx, dgamma]),
        "Torch._fused_rms_norm_backward.0.forward": call([dy, x, [24], rstd, gamma, [True, True]], [dx, dgamma]),
    }


def group_norm_swish(dtype):
    x, dy = random(2, 6, 5, 4, dtype=dtype), random(2, 6, 5, 4, dtype=dtype, seed=1)
    gamma, beta = random(6, dtype=dtype), random(6, dtype=dtype, seed=1)
    y, mean, rstd = descend.group_norm_swish(x, gamma, beta, 3, eps=1e-4, swish_scale=0.5)
    gradients = list(descend.group_norm_swish_grad(dy, mean, rstd, x, gamma, beta, 3, swish_scale=0.5))
    silu = list(descend.group_norm_swish(x, np.ones(6, dtype), np.zeros(6, dtype), 3))
    return {
        "NPU.npu_group_norm_swish.0.forward": call([x, 3, gamma, beta, 1e-4, 0.5], [y, mean, rstd]),
        "NPU.npu_group_norm_swish.0.backward": gradient([dy], gradients),
        "NPU.npu_group_norm_swish.1.forward": call([x, 3, gamma, beta], [y], eps=1e-4, swish_scale=0.5),
        "NPU.npu_group_norm_swish.1.backward": gradient([dy], gradients),
        "NPU.npu_group_norm_swish.2.forward": call([x, 3, np.ones(6, dtype), np.zeros(6, dtype), None, None], silu),
        "NPU.npu_group_norm_swish_grad.0.forward": call(
            [dy, x, 3, gamma, beta, mean, rstd, [True, True, False], 0.5], [*gradients[:2], None]
        ),
        "NPU.npu_group_norm_silu.0.forward": call([x, None, None, 3], silu),
    }


def scaled_masked_softmax(dtype):
    x, dy = random(2, 3, 8, 32, dtype=dtype), random(2, 3, 8, 32, dtype=dtype, seed=1)
    mask = random(2, 1, 8, 32, seed=2) > 0.5
    y, triangle = descend.scaled_masked_softmax(x, mask, 0.5), descend.scaled_masked_softmax(x, None, 1.0, True)
    dx = descend.scaled_masked_softmax_backward(dy, y, mask, 0.5)
    return {
        "NPU.npu_scaled_masked_softmax.0.forward": call([x, mask, 0.5, False], [y]),
        "NPU.npu_scaled_masked_softmax.0.backward": gradient([dy], [dx]),
        "NPU.npu_scaled_masked_softmax.1.forward": call([x, mask, 1], [triangle], fixed_triu_mask=True),
        "NPU.npu_scaled_masked_softmax_backward.0.forward": call([dy, y, mask, 0.5, False], [dx]),
    }


def nsa_compress(dtype):
    x, weight, lengths = random(96, 2, 16, dtype=dtype), random(32, 2, dtype=dtype), [48, 96]
    y = descend.nsa_compress(x, weight, lengths, **WINDOWS)
    dy = random(*y.shape, dtype=dtype, seed=1)
    gradients = list(descend.nsa_compress_grad(dy, x, weight, lengths, **WINDOWS))
    return {
        "torch_npu.npu_nsa_compress.0.forward": call([x, weight, 32, 16], [y], actual_seq_len=lengths),
        "torch_npu.npu_nsa_compress.0.backward": gradient([dy], gradients),
        "my.own.npu_nsa_compress_grad.0.forward": call([dy, x, weight, 32, 16], gradients, actual_seq_len=lengths),
    }


def added_norms(dtype):
    """Norms of a sum; x + gx has a gradient, too."""
    x, gx, dy, dsum = (random(6, 24, dtype=dtype, seed=i) for i in range(4))
    gamma, beta = random(24, dtype=dtype), random(24, dtype=dtype, seed=1)
    y, rstd, total = descend.add_rms_norm(x, gx, gamma, 1e-3)
    layer, mean, layer_rstd, layer_total = descend.add_layer_norm(x, gx, gamma, beta, None, 1e-3, True)
    statistics = [s.reshape(6, 1) for s in (mean, layer_rstd)]
    both = descend.add_layer_norm_grad(dy, x, gx, layer_rstd, mean, gamma, dsum)
    one = descend.add_layer_norm_grad(dy, x, gx, layer_rstd, mean, gamma)
    deep = list(descend.deep_norm(x, gx, beta, gamma, 0.5, 1e-3))
    return {
        "NPU.npu_add_rms_norm.0.forward": call([x, gx, gamma], [y, rstd, total], epsilon=1e-3),
        "NPU.npu_gemma_rms_norm.0.forward": call([x, gamma, 1e-3], list(descend.gemma_rms_norm(x, gamma, 1e-3))),
        "NPU.npu_add_layer_norm.0.forward": call([x, gx, gamma, beta, 1e-3, True], [layer, *statistics, layer_total]),
        "NPU.npu_add_layer_norm.0.backward": gradient([dy, dsum], [both[0], both[0], *both[1:]]),
        "NPU.npu_add_layer_norm.1.forward": call([x, gx, gamma, beta, 1e-3], [layer, None, None]),
        "NPU.npu_add_layer_norm.1.backward": gradient([dy, None], [one[0], one[0], *one[1:]]),
        "NPU.npu_add_layer_norm_backward.0.forward": call(
            [dy, x, gx, *statistics[::-1], gamma, dsum], [both[0], both[0], *both[1:]]
        ),
        "NPU.npu_deep_norm.0.forward": call([x, gx, beta, gamma, 0.5], deep, epsilon=1e-3),
        "NPU.npu_deep_norm_backward.0.forward": call(
            [dy, x, gx, gamma, *deep[:2], 0.5], list(descend.deep_norm_grad(dy, x, gx, gamma, *deep[:2], 0.5))
        ),
    }


def group_norm(dtype):
    x, dy = random(2, 6, 5, 4, dtype=dtype), random(2, 6, 5, 4, dtype=dtype, seed=1)
    gamma, beta = random(6, dtype=dtype), random(6, dtype=dtype, seed=1)
    y, mean, rstd = descend.group_norm(x, gamma, beta, 2, 6, 20, 3, 1e-3)
    gradients = list(descend.group_norm_backward(dy, x, mean, rstd, gamma, 2, 6, 20, 3))
    plain, *statistics = descend.group_norm(x, None, None, 2, 6, 20, 3)
    plain_dx = descend.group_norm_backward(dy, x, *statistics, None, 2, 6, 20, 3)[0]
    return {
        "Functional.group_norm.0.forward": call([x, 3, gamma, beta, 1e-3], [y]),
        "Functional.group_norm.0.backward": gradient([dy, None, None], gradients),
        "Torch.group_norm.0.forward": call([x, 3], [plain]),
        "Torch.group_norm.0.backward": gradient([dy, None, None], [plain_dx, None, None]),
        "Torch.native_group_norm.0.forward": call([x, gamma, beta, 2, 6, 20, 3, 1e-3], [y, mean, rstd]),
        "Torch.native_group_norm.0.backward": gradient([dy, None, None], gradients),
        "Aten.native_group_norm_backward.default.0.forward": call(
            [dy, x, mean, rstd, gamma, 2, 6, 20, 3, [True, True, False]], [*gradients[:2], None]
        ),
    }


def softmax(dtype):
    x, dy = random(3, 5, 8, dtype=dtype), random(3, 5, 8, dtype=dtype, seed=1)
    calls = {}
    for name, forward, backward in (
        ("softmax", descend.softmax, descend.softmax_backward),
        ("log_softmax", descend.log_softmax, descend.log_softmax_backward),
    ):
        first, last = forward(x, 0), forward(x, -1)
        dx = backward(dy, last, -1)
        calls |= {
            f"Functional.{name}.0.forward": call([x], [first]),  # of three dimensions PyTorch takes the first
            f"Functional.{name}.0.backward": gradient([dy], [backward(dy, first, 0)]),
            f"Functional.{name}.1.forward": call([x, -1], [last], _stacklevel=5, dtype="torch.float32"),
            f"Torch.{name}.0.forward": call([x, 2, "torch.float32"], [last]),
            f"Torch.{name}.0.backward": gradient([dy], [dx]),
            f"Tensor.{name}.0.forward": call([x], [last], dim=-1),
            f"Aten._{name}.default.0.forward": call([x, 0, False], [first]),
            f"Torch._{name}_backward_data.0.forward": call([dy, last, -1, "torch.float32"], [dx]),
        }
    return calls


def cross_entropy(dtype):
    x, weight, target = random(6, 9, dtype=dtype), random(9) ** 2 + np.float32(0.5), np.array([3, 8, -100, 0, 1, 2])
    loss, log_prob, *_ = descend.cross_entropy_loss(x, target, weight, "sum")
    dx = descend.cross_entropy_loss_grad(np.ones(1, dtype), log_prob, target, weight, reduction="sum")
    classes = np.abs(target) % 9
    smooth = descend.cross_entropy_loss(x, classes, None, "mean", 8, 0.1)[0]
    each = descend.cross_entropy_loss(x, target, reduction="none")[0]
    scaled = descend.cross_entropy_loss(x, target, None, "mean", -100, 0.1, 0.01, True)
    gradients = np.full(1, 0.5, dtype), np.full(1, 0.25, dtype)
    scaled_dx = descend.cross_entropy_loss_grad(
        gradients[0], scaled[1], target, None, gradients[1], scaled[3], "mean", -100, 0.1, 0.01
    )
    image = np.ascontiguousarray(x.reshape(2, 3, 9).transpose(0, 2, 1))  # [N, C, d]
    return {
        "NPU.npu_cross_entropy_loss.0.forward": call([x, target, weight, "sum"], [loss, log_prob, None, None]),
        "NPU.npu_cross_entropy_loss.0.backward": gradient([np.ones(1, dtype), None], [dx]),
        "NPU.npu_cross_entropy_loss.1.forward": call(
            [x, target], list(scaled), label_smoothing=0.1, lse_square_scale_for_zloss=0.01, return_zloss=True
        ),
        "NPU.npu_cross_entropy_loss.1.backward": gradient(list(gradients), [scaled_dx]),
        "NPU.npu_cross_entropy_loss_backward.0.forward": call(
            [np.ones(1, dtype), log_prob, target, weight], [dx], reduction="sum"
        ),
        "Functional.cross_entropy.0.forward": call([x, target, weight], [np.asarray(loss[0])], reduction="sum"),
        "Functional.cross_entropy.1.forward": call(
            [x, classes], [np.asarray(smooth[0])], ignore_index=8, label_smoothing=0.1
        ),
        "Functional.cross_entropy.2.forward": call([image, target.reshape(2, 3)], [each.reshape(2, 3)], reduce=False),
        "Functional.cross_entropy.3.forward": call(
            [x[0], np.asarray(target[0])], [np.asarray(each[0])], size_average=False
        ),
    }


def activations(dtype):
    x, dy, gated = random(4, 24, dtype=dtype), random(4, 24, dtype=dtype, seed=1), random(4, 48, dtype=dtype)
    erf, tanh = (descend.gelu_v2(x, approximate) for approximate in (0, 1))
    d_erf, d_tanh = (descend.gelu_backward_v2(dy, x, approximate) for approximate in ("none", "tanh"))
    half = descend.swi_glu_grad(dy, gated)
    return {
        "Functional.gelu.0.forward": call([x], [erf]),
        "Functional.gelu.0.backward": gradient([dy], [d_erf]),
        "Functional.gelu.1.forward": call([x], [tanh]),  # as aclnnGelu computes it
        "Functional.gelu.1.backward": gradient([dy], [d_tanh]),
        "Functional.gelu.2.forward": call([x], [tanh], approximate="tanh"),
        "Aten.gelu.default.0.forward": call([x], [erf]),
        "Aten.gelu_backward.0.forward": call([dy, x], [d_tanh], approximate="tanh"),
        "NPU.npu_gelu.0.forward": call([x], [erf]),
        "NPU.npu_gelu.0.backward": gradient([dy], [d_erf]),
        "NPU.npu_gelu.1.forward": call([x], [tanh], approximate="tanh"),
        "NPU.npu_gelu_backward.0.forward": call([dy, x], [d_tanh], approximate="tanh"),
        "NPU.npu_swiglu.0.forward": call([gated], [descend.swi_glu(gated)]),
        "NPU.npu_swiglu.0.backward": gradient([dy], [half]),
        "NPU.npu_swiglu.1.forward": call([x], [descend.swi_glu(x, 0)], dim=0),
        "NPU.npu_swiglu_backward.0.forward": call([dy, gated, 1], [half]),
    }


def rotary(dtype):
    x, dy = random(2, 3, 5, 8, dtype=dtype), random(2, 3, 5, 8, dtype=dtype, seed=1)
    cos, sin = random(1, 3, 1, 8, dtype=dtype, seed=2), random(1, 3, 1, 8, dtype=dtype, seed=3)
    wide = cos.astype(np.float32), sin.astype(np.float32)  # torch_npu takes them in the dtype of x
    half, interleave = (descend.rotary_position_embedding(x, cos, sin, mode) for mode in (0, 1))
    gradients = list(descend.rotary_position_embedding_grad(dy, cos, sin, x, 1))
    turn = np.zeros((8, 8), dtype)
    turn[[0, 1, 2, 3], [4, 5, 6, 7]], turn[[4, 5, 6, 7], [0, 1, 2, 3]] = 1, -1
    return {
        "NPU.npu_rotary_mul.0.forward": call([x, *wide], [half]),
        "NPU.npu_rotary_mul.1.forward": call([x, cos, sin, "interleave"], [interleave]),
        "NPU.npu_rotary_mul.1.backward": gradient([dy], gradients),
        "NPU.npu_rotary_mul.2.forward": call([x, cos, sin], [half], rotate=turn),
        "NPU.npu_rotary_mul_backward.0.forward": call([dy, x, cos, sin, "interleave"], gradients),
        "MindSpeed.npu_rotary_position_embedding.0.forward": call([x, cos, sin, 1], [interleave]),
    }


def adam_w(dtype):
    var, grad = random(40, dtype=dtype), random(40, dtype=dtype, seed=1)
    m, v, most = random(40, seed=2), random(40, seed=3) ** 2, random(40, seed=4) ** 2
    numbers = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-6}
    given = [0.9**3, 0.99**3, 0.01, 0.1, 0.9, 0.99, 1e-6, grad]
    calls = {}
    for place, amsgrad in enumerate((False, True)):
        step, largest = np.array([3.0], np.float32), most if amsgrad else None
        moved = descend.apply_adam_w_v2(var, m, v, largest, grad, step, **numbers, amsgrad=amsgrad, maximize=amsgrad)
        calls[f"NPU.npu_apply_adam_w.{place}.forward"] = call(
            [*given, largest, amsgrad, amsgrad], list(moved[:3]), out=[var, m, v]
        )
    return calls


FAMILIES = [
    layer_norm,
    rms_norm,
    added_norms,
    group_norm_swish,
    group_norm,
    scaled_masked_softmax,
    softmax,
    cross_entropy,
    activations,
    rotary,
    adam_w,
    nsa_compress,
]
"""Each makes calls of the functions of some operators; all together call every function."""
