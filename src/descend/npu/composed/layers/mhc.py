"""npu_mhc_pre, npu_mhc_sinkhorn, npu_mhc_post and their gradients: hyper-connections on a manifold.

A layer has n streams x [..., n, D]. Pre makes its input and the factors of its connections from them, sinkhorn makes
h_res doubly stochastic, and post makes the next streams:

    mix    = (x * gamma) @ phi^T over n * D, inv_rms = 1 / sqrt(mean(x^2) + norm_eps)
    pre, post, res = the n, n and n * n columns of mix * inv_rms, times alpha[0..2], plus bias
    h_pre  = sigmoid(pre) + hc_eps,  h_post = 2 * sigmoid(post),  h_res = res
    h_in   = sum over i of h_pre[i] * x[i]
    y[j]   = sum over i of h_res[i, j] * x[i] + h_post[j] * h_out

With two alphas phi and bias have no columns for h_res, which is a single 0 then.

The document has y as h_res @ x; torch_npu's tests have the transposed matrix, as above. The document says that the
first intermediate result of sinkhorn is softmax(x) + eps. In torch_npu's test of the gradient it is softmax(x), and so
here, since the gradient is not told eps.

Documents: torch_npu.npu_mhc_pre, npu_mhc_sinkhorn, npu_mhc_post, npu_mhc_pre_backward, npu_mhc_sinkhorn_backward,
npu_mhc_post_backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_alike, check_float, check_shape, wide
from descend.npu.composed.refusal import refuse

MOST_ITERATIONS = 100
"""Of sinkhorn, by its document."""

Six = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def npu_mhc_pre(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    bias: Tensor,
    *,
    gamma: Tensor | None = None,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    out_flag: int = 0,
    inner_precise: int = 0,
) -> Six:
    """h_in [..., D], h_post [..., n], h_res [..., n, n]; if ``out_flag`` is 1 also inv_rms, mix and h_pre, else None.

    ``x`` is [B, S, n, D] or [T, n, D]. Products are in float32, whatever ``inner_precise`` says.
    """
    operator = "npu_mhc_pre"
    n = _check_pre(operator, x, phi, alpha, gamma)
    check_alike(operator, "x", x, bias=bias)
    check_shape(operator, "bias", bias, [len(phi)], "the rows of phi")
    for name, flag in (("out_flag", out_flag), ("inner_precise", inner_precise)):
        if flag not in (0, 1):
            refuse(operator, name, flag, "must be 0 or 1")
    streams, alpha, bias = wide(x), wide(alpha), wide(bias)
    mix = (streams if gamma is None else streams * gamma).flatten(-2) @ wide(phi).T
    inv_rms = torch.rsqrt(streams.square().mean((-2, -1)) + norm_eps)
    parts = (mix * inv_rms.unsqueeze(-1)).split([n, n, len(phi) - 2 * n], -1)
    pre, post, res = (part * scale + b for part, scale, b in zip(parts, _three(alpha), _parts(bias, n), strict=True))
    h_pre, h_post = pre.sigmoid() + hc_eps, 2 * post.sigmoid()
    h_res = res.unflatten(-1, (n, n)) if len(alpha) == 3 else res.new_zeros(1)
    h_in = (h_pre.unsqueeze(-2) @ streams).squeeze(-2).to(x.dtype)
    more = (inv_rms, mix, h_pre) if out_flag else (None, None, None)
    return h_in, h_post, h_res, *more


def npu_mhc_pre_backward(
    x: Tensor,
    phi: Tensor,
    alpha: Tensor,
    grad_h_in: Tensor | None,
    grad_h_post: Tensor | None,
    grad_h_res: Tensor | None,
    inv_rms: Tensor | None,
    h_mix: Tensor | None,
    h_pre: Tensor | None,
    h_post: Tensor,
    gamma: Tensor | None = None,
    hc_eps: float = 1e-6,
    grad_x_post: Tensor | None = None,
    inner_precise: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, phi, alpha, bias and gamma; that of x with ``grad_x_post`` added. None is a gradient of 0."""
    operator = "npu_mhc_pre_backward"
    n = _check_pre(operator, x, phi, alpha, gamma)
    if inv_rms is None or h_mix is None or h_pre is None:
        refuse(operator, "inv_rms, h_mix or h_pre", "None", "must be a result of npu_mhc_pre with out_flag=1")
    check_alike(
        operator, "x", x, grad_h_in=grad_h_in, grad_h_post=grad_h_post, grad_h_res=grad_h_res, inv_rms=inv_rms,
        h_mix=h_mix, h_pre=h_pre, h_post=h_post, grad_x_post=grad_x_post,
    )  # fmt: skip
    outer, size = list(x.shape[:-2]), x.shape[-1]
    shapes = {"inv_rms": (inv_rms, outer), "h_mix": (h_mix, [*outer, len(phi)])}
    shapes |= {name: (given, [*outer, n]) for name, given in (("h_pre", h_pre), ("h_post", h_post))}
    for name, (tensor, shape) in shapes.items():
        check_shape(operator, name, tensor, shape, "the forward's result")
    streams, scales = wide(x), _three(wide(alpha))
    d_in = _or_zeros(operator, "grad_h_in", grad_h_in, streams, [*outer, size])
    d_post = _or_zeros(operator, "grad_h_post", grad_h_post, streams, [*outer, n])
    whole = [*outer, n, n] if len(alpha) == 3 else [1]
    d_res = _or_zeros(operator, "grad_h_res", grad_h_res, streams, whole)
    d_res = d_res.flatten(-2) if len(alpha) == 3 else streams.new_zeros([*outer, 0])
    gate = wide(h_pre) - hc_eps
    d_pre = (streams @ d_in.unsqueeze(-1)).squeeze(-1) * gate * (1 - gate)
    d_post = d_post * wide(h_post) * (1 - wide(h_post) / 2)
    linear = (d_pre, d_post, d_res)
    dims = tuple(range(len(outer)))
    d_bias = torch.cat(linear, -1).sum(dims)
    inverse, mix = wide(inv_rms).unsqueeze(-1), wide(h_mix)
    normal = (mix * inverse).split([n, n, len(phi) - 2 * n], -1)
    d_alpha = torch.stack([(grad * part).sum() for grad, part in zip(linear, normal, strict=True)][: len(alpha)])
    d_normal = torch.cat([grad * scale for grad, scale in zip(linear, scales, strict=True)], -1)
    d_mix = d_normal * inverse
    through = (d_mix @ wide(phi)).unflatten(-1, (n, size))
    d_inverse = (d_normal * mix).sum(-1, keepdim=True)
    factor = (d_inverse * inverse**3 / -(n * size)).unsqueeze(-1)
    dx = (through if gamma is None else through * gamma) + factor * streams
    dx += wide(h_pre).unsqueeze(-1) * d_in.unsqueeze(-2)
    if grad_x_post is not None:
        check_shape(operator, "grad_x_post", grad_x_post, x.shape, "x")
        dx += grad_x_post
    scaled = (streams if gamma is None else streams * gamma).reshape(-1, n * size)
    d_phi = d_mix.reshape(-1, len(phi)).T @ scaled
    d_gamma = streams.new_zeros(n, size) if gamma is None else (streams * through).sum(dims)
    return dx.to(x.dtype), d_phi, d_alpha, d_bias, d_gamma


def npu_mhc_sinkhorn(
    x: Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The doubly stochastic matrices; if ``out_flag`` is 1 also what the gradient needs, else None.

    The columns and rows of softmax(x) + eps are divided by their sums + eps, ``num_iters`` times, the rows once less.
    For x [B, S, n, n] or [T, n, n] the results of all steps are [2 * num_iters, n, n, B, S] or [..., T]. The sums have
    one n.
    """
    operator = "npu_mhc_sinkhorn"
    check_float(operator, x=x)
    if x.dim() not in (3, 4) or x.shape[-1] != x.shape[-2]:
        refuse(operator, "x", f"of shape {list(x.shape)}", "must be of shape [B, S, n, n] or [T, n, n]")
    if not 1 <= num_iters <= MOST_ITERATIONS:
        refuse(operator, "num_iters", num_iters, f"must be from 1 to {MOST_ITERATIONS}")
    if out_flag not in (0, 1):
        refuse(operator, "out_flag", out_flag, "must be 0 or 1")
    first = torch.softmax(wide(x), -1)
    now, steps, sums = first + eps, [first], [first.new_zeros(first.shape[:-1])]
    for step in range(1, 2 * num_iters):
        dim = -2 if step % 2 else -1
        total = now.sum(dim, keepdim=True) + eps
        now = now / total
        steps.append(now)
        sums.append(total.squeeze(dim))
    result = now.to(x.dtype)
    if not out_flag:
        return result, None, None
    outer = range(1, x.dim() - 1)
    by_step, by_sum = torch.stack(steps), torch.stack(sums)
    return (
        result,
        by_step.permute(0, -2, -1, *outer).contiguous(),
        by_sum.permute(0, -1, *outer).contiguous(),
    )


def npu_mhc_sinkhorn_backward(grad_y: Tensor, norm: Tensor | None, sum: Tensor | None) -> Tensor:
    """The gradient of x, from the other results of `npu_mhc_sinkhorn`."""
    operator = "npu_mhc_sinkhorn_backward"
    if grad_y.dim() not in (3, 4) or grad_y.shape[-1] != grad_y.shape[-2]:
        refuse(operator, "grad_y", f"of shape {list(grad_y.shape)}", "must be of shape [B, S, n, n] or [T, n, n]")
    check_alike(operator, "grad_y", grad_y, norm=norm, sum=sum)
    if norm is None or sum is None:
        refuse(operator, "norm or sum", "None", "must be a result of npu_mhc_sinkhorn with out_flag=1")
    outer, n = list(grad_y.shape[:-2]), grad_y.shape[-1]
    steps = len(norm) if norm.dim() else 0
    check_shape(operator, "norm", norm, [steps, n, n, *outer], "the forward's result")
    check_shape(operator, "sum", sum, [steps, n, *outer], "the forward's result")
    grad = wide(grad_y).permute(-2, -1, *range(len(outer)))
    for step in range(steps - 1, 0, -1):
        dim = 0 if step % 2 else 1
        grad = (grad - (grad * norm[step]).sum(dim, keepdim=True)) / sum[step].unsqueeze(dim)
    first = norm[0]
    grad = first * (grad - (grad * first).sum(1, keepdim=True))
    return grad.permute(*range(2, grad.dim()), 0, 1).contiguous().to(grad_y.dtype)


def npu_mhc_post(x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Tensor:
    """The next streams, shaped as ``x``. Without ``h_res`` they are x plus the second term."""
    _check_post("npu_mhc_post", x, h_res, h_out, h_post)
    streams = wide(x) if h_res is None else wide(h_res).transpose(-1, -2) @ wide(x)
    return (streams + wide(h_post).unsqueeze(-1) * wide(h_out).unsqueeze(-2)).to(x.dtype)


def npu_mhc_post_backward(
    grad_y: Tensor, x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, h_res, h_out and h_post; that of h_res also where there is none."""
    operator = "npu_mhc_post_backward"
    _check_post(operator, x, h_res, h_out, h_post)
    check_alike(operator, "x", x, grad_y=grad_y)
    check_shape(operator, "grad_y", grad_y, x.shape, "x")
    grad = wide(grad_y)
    dx = grad if h_res is None else wide(h_res) @ grad
    d_res = wide(x) @ grad.transpose(-1, -2)
    d_out = (wide(h_post).unsqueeze(-2) @ grad).squeeze(-2)
    d_post = (grad @ wide(h_out).unsqueeze(-1)).squeeze(-1)
    return dx.to(x.dtype), d_res, d_out.to(h_out.dtype), d_post.to(h_post.dtype)


def _three(alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return alpha[0], alpha[1], alpha[-1]


def _parts(bias: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    return bias[:n], bias[n : 2 * n], bias[2 * n :]


def _or_zeros(operator: str, name: str, grad: Tensor | None, like: Tensor, shape: list[int]) -> Tensor:
    if grad is None:
        return like.new_zeros(shape)
    check_shape(operator, name, grad, shape, "the forward's result")
    return wide(grad)


def _check_pre(operator: str, x: Tensor, phi: Tensor, alpha: Tensor, gamma: Tensor | None) -> int:
    """Checks what forward and gradient share, and returns n."""
    check_alike(operator, "x", x, phi=phi, alpha=alpha, gamma=gamma)
    if x.dim() not in (3, 4) or not x.numel():
        refuse(operator, "x", f"of shape {list(x.shape)}", "must be of shape [B, S, n, D] or [T, n, D], and not empty")
    n, size = x.shape[-2:]
    if list(alpha.shape) not in ([2], [3]):
        refuse(operator, "alpha", f"of shape {list(alpha.shape)}", "must be of shape [3], or without h_res [2]")
    rows = 2 * n + (n * n if len(alpha) == 3 else 0)
    check_shape(operator, "phi", phi, [rows, n * size], f"x and {len(alpha)} alphas")
    if gamma is not None:
        check_shape(operator, "gamma", gamma, [n, size], "a token of x")
    return n


def _check_post(operator: str, x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> None:
    check_alike(operator, "x", x, h_res=h_res, h_out=h_out, h_post=h_post)
    if x.dim() not in (3, 4):
        refuse(operator, "x", f"of shape {list(x.shape)}", "must be of shape [B, S, n, D] or [T, n, D]")
    outer, n = x.shape[:-2], x.shape[-2]
    if h_res is not None:
        check_shape(operator, "h_res", h_res, [*outer, n, n], "x, with n for D")
    check_shape(operator, "h_out", h_out, [*outer, x.shape[-1]], "x, without n")
    check_shape(operator, "h_post", h_post, [*outer, n], "x, without D")
