"""npu_linear, npu_bmmV2 and their gradients; npu_fused_matmul.

    linear(x, w, b) = x @ w^T + b          bmmV2(a, b, sizes) = a @ b, summed over dimensions that are 1 in sizes
    npu_fused_matmul: y = x1 @ x2 + bias, then + x3, * x3, relu, gelu_erf or gelu_tanh

Documents: torch_npu.npu_linear, npu_bmmV2; aclnnFusedMatmul.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from descend.npu.composed.arithmetic import broadcast, check_dtype, check_float, check_shape, gelu, wide
from descend.npu.composed.quantised.weight_quant import of_columns
from descend.npu.composed.refusal import refuse

AFTER = ("", "16cast32", "add", "mul", "relu", "gelu_erf", "gelu_tanh")


def npu_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[M, N], from ``input`` [M, K], ``weight`` [N, K] and ``bias`` [N]."""
    operator = "npu_linear"
    _check_matrices(operator, input=input, weight=weight)
    if weight.shape[1] != input.shape[1]:
        refuse(operator, "weight", f"of shape {list(weight.shape)}", f"must have {input.shape[1]} columns, as input")
    if bias is not None:
        check_shape(operator, "bias", bias, (weight.shape[0],), "the rows of weight")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != input.dtype:
            refuse(operator, name, tensor.dtype, f"must have the dtype of input, {input.dtype}")
    return wide_linear(input, weight, bias).to(input.dtype)


def wide_linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch.nn.functional.linear in the dtype of the arithmetic."""
    return functional.linear(wide(input), wide(weight), None if bias is None else wide(bias))


def npu_linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of input and weight."""
    operator = "npu_linear_backward"
    _check_matrices(operator, grad=grad, input=input, weight=weight)
    check_shape(operator, "grad", grad, (input.shape[0], weight.shape[0]), "input @ weight^T")
    dy = wide(grad)
    return (dy @ wide(weight)).to(grad.dtype), (dy.T @ wide(input)).to(grad.dtype)


def npu_fused_matmul(
    x1: Tensor, x2: Tensor, *, bias: Tensor | None = None, x3: Tensor | None = None, fused_op_type: str = ""
) -> Tensor:
    """[..., M, N] in the dtype of ``x1``, or with "16cast32" in float32. Batches broadcast."""
    operator = "npu_fused_matmul"
    check_float(operator, x1=x1, bias=bias, x3=x3)
    check_dtype(operator, "x2", x2, x1.dtype)
    if fused_op_type not in AFTER:
        refuse(operator, "fused_op_type", repr(fused_op_type), f"must be one of {', '.join(map(repr, AFTER))}")
    if x1.dim() < 2 or x2.dim() < 2 or x1.shape[-1] != x2.shape[-2]:
        refuse(operator, "x1 and x2", f"of shapes {list(x1.shape)} and {list(x2.shape)}", "must be matrices that fit")
    if (x3 is not None) != (fused_op_type in ("add", "mul")):
        refuse(
            operator,
            "x3",
            "given" if x3 is not None else None,
            "must be given with fused_op_type 'add' or 'mul', and only there",
        )
    if bias is not None and fused_op_type.startswith("gelu"):
        refuse(operator, "bias", "given", f"must be None with fused_op_type {fused_op_type!r}")
    y = wide(x1) @ wide(x2)
    if bias is not None:
        y = y + of_columns(operator, "bias", bias, y.shape[-1])
    if x3 is not None:
        check_shape(operator, "x3", x3, y.shape, "x1 @ x2")
        y = y + wide(x3) if fused_op_type == "add" else y * wide(x3)
    elif fused_op_type == "relu":
        y = y.relu()
    elif fused_op_type.startswith("gelu"):
        y = gelu(y, "tanh" if fused_op_type == "gelu_tanh" else "none")
    return y if fused_op_type == "16cast32" else y.to(x1.dtype)


def _check_matrices(operator: str, **matrices: Tensor) -> None:
    for name, matrix in matrices.items():
        if matrix.dim() != 2:
            refuse(operator, name, f"of shape {list(matrix.shape)}", "must have 2 dimensions")


def npu_bmmV2(self: Tensor, mat2: Tensor, output_sizes: Sequence[int]) -> Tensor:
    """A batched product; batches broadcast. ``output_sizes`` is empty or the result's shape: sums where it is 1."""
    return _product("npu_bmmV2", self, mat2, output_sizes)


def npu_bmm_v2_mat1_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: Sequence[int]) -> Tensor:
    """The gradient of the first matrix, of shape ``size``."""
    right = mat2.unsqueeze(0) if mat2.dim() == 1 else mat2.transpose(-2, -1)
    return _product("npu_bmm_v2_mat1_backward", _matrix_grad(grad, mat1, mat2), right, size)


def npu_bmm_v2_mat2_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: Sequence[int]) -> Tensor:
    """The gradient of the second matrix, of shape ``size``."""
    left = mat1.unsqueeze(-1) if mat1.dim() == 1 else mat1.transpose(-2, -1)
    as_matrix = [*size, 1] if mat2.dim() == 1 else size
    return _product("npu_bmm_v2_mat2_backward", left, _matrix_grad(grad, mat1, mat2), as_matrix).reshape(*size)


def _matrix_grad(grad: Tensor, mat1: Tensor, mat2: Tensor) -> Tensor:
    """The gradient, with a dimension added for each factor that is a vector."""
    if mat1.dim() == 1:
        return grad.unsqueeze(-2)
    return grad.unsqueeze(-1) if mat2.dim() == 1 else grad


def _product(operator: str, left: Tensor, right: Tensor, sizes: Sequence[int]) -> Tensor:
    ranks = sorted((left.dim(), right.dim()))
    for name, tensor in (("self", left), ("mat2", right)):
        if ranks[0] < 1 or ranks[1] < 2 or tensor.dtype == torch.int8:
            got = f"of shape {list(tensor.shape)} and {tensor.dtype}"
            refuse(operator, name, got, "must be a matrix, or a vector where the other is none, and not of int8")
    if left.dtype != right.dtype:
        refuse(operator, "mat2", right.dtype, f"must have the dtype of self, {left.dtype}")
    if left.shape[-1] != right.shape[-2 if right.dim() > 1 else 0] or not broadcast(left.shape[:-2], right.shape[:-2]):
        refuse(operator, "mat2", f"of shape {list(right.shape)}", f"must fit self, of shape {list(left.shape)}")
    product = wide(left) @ wide(right)
    if sizes:
        aligned = [1] * (product.dim() - len(sizes)) + list(sizes)
        fits = len(aligned) == product.dim()
        if not fits or any(size not in (1, whole) for size, whole in zip(aligned, product.shape, strict=True)):
            refuse(
                operator, "output_sizes", list(sizes), f"must have 1 or the sizes of the product, {list(product.shape)}"
            )
        product = product.sum_to_size(*sizes)
    return product.to(left.dtype)
