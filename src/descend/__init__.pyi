# Written by `python -m descend._stubs` from the engine's tables; do not edit.
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from descend._native import empty_cache as empty_cache
from descend._native import get_num_threads as get_num_threads
from descend._native import set_num_threads as set_num_threads

class SupportsDlpack(Protocol):
    """An array that DLPack can exchange: NumPy, PyTorch, JAX, ..."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

Array = TypeVar("Array", bound=SupportsDlpack)

__version__: str

def rms_norm_grad(
    dy: Array,
    x: Array,
    rstd: Array,
    gamma: Array,
    *,
    out: Sequence[Array | None] | None = None,
) -> tuple[Array, Array]:
    """Gradients of RMS norm with respect to its input and its weight.

    Formula:
        xhat   = x * rstd
        g      = dy * gamma
        dx     = rstd * (g - xhat * mean(g * xhat over the row))
        dgamma = sum over rows of dy * xhat

    Parameters:
        dy: Gradient of the loss with respect to the forward's output. (Array, shape as x)
        x: Input of the forward. (Array, shape [A1, ..., An, R1, ..., Rk], rank 1 to 8)
        rstd: 1 / sqrt(mean(x * x) + epsilon) of each row, from the forward. (Array, shape [A1, ..., An], trailing
            dimensions of 1 aside)
        gamma: Weight of the forward. (Array, shape [R1, ..., Rk])

    Returns:
        dx: Gradient with respect to x. (shape as x)
        dgamma: Gradient with respect to gamma; FLOAT, DOUBLE for DOUBLE input where it is allocated. (shape as
            gamma)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values), TypeError for wrong types.

    gamma has the last dimensions of x, and everything is a matrix [M, N]: N elements of gamma, M rows. atlas-
    inference does not take infinities or NaN in its inputs; phase 1 cannot see that. host also takes DOUBLE, any
    mix of floating dtypes for rstd, gamma and the outputs, empty tensors (dgamma is then 0) and strided ones.

    Dtypes:
        dy FLOAT16, x FLOAT16, rstd FLOAT, gamma FLOAT, dx_out FLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference)
        dy BFLOAT16, x BFLOAT16, rstd FLOAT, gamma FLOAT, dx_out BFLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference)
        dy FLOAT16, x FLOAT16, rstd FLOAT, gamma FLOAT16, dx_out FLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference)
        dy FLOAT, x FLOAT, rstd FLOAT, gamma FLOAT, dx_out FLOAT, dgamma_out FLOAT (atlas-a3, atlas-a2-training,
            atlas-a2-inference, atlas-inference)
        dy BFLOAT16, x BFLOAT16, rstd FLOAT, gamma BFLOAT16, dx_out BFLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference)
        dy FLOAT, x FLOAT, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        dy FLOAT16, x FLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        dy BFLOAT16, x BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        dy DOUBLE, x DOUBLE, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: any of the six tensors is null.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly.
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; on Atlas products an empty tensor or a non-
            contiguous input, and on atlas-inference a last axis of dy, x or gamma shorter than 32 bytes.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnRmsNormGrad in CANN's aclnn library.
    """

def rms_norm(
    x: Array,
    gamma: Array,
    epsilon: float = 1e-06,
    *,
    out: Sequence[Array | None] | None = None,
) -> tuple[Array, Array]:
    """RMS norm: each row divided by its root mean square, times a weight.

    Formula:
        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Parameters:
        x: What is normalised. (Array, shape [A1, ..., An, R1, ..., Rk], rank 1 to 8)
        gamma: Weight. (Array, shape [R1, ..., Rk])
        epsilon: Added to the mean of the squares; at least 0. (float)

    Returns:
        y: The result. (shape as x)
        rstd: What the gradient needs. (shape [A1, ..., An], or followed by 1s to x's rank)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values), TypeError for wrong types.

    gamma has the last dimensions of x; the rest counts the rows. Where rstd is allocated it is FLOAT, DOUBLE for
    DOUBLE input, and has x's rank with 1 for each dimension of gamma. Strided and empty tensors are fine; host
    also takes DOUBLE and any mix of floating dtypes for gamma and the outputs.

    Dtypes:
        x FLOAT16, gamma FLOAT, y_out FLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference)
        x BFLOAT16, gamma FLOAT, y_out BFLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference)
        x FLOAT16, gamma FLOAT16, y_out FLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            atlas-inference)
        x FLOAT, gamma FLOAT, y_out FLOAT, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-
            inference)
        x BFLOAT16, gamma BFLOAT16, y_out BFLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training,
            atlas-a2-inference)
        x FLOAT, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        x FLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        x BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        x DOUBLE, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: x, gamma, yOut or rstdOut is null.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly.
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; a negative epsilon.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnRmsNorm in CANN's aclnn library.
    """
