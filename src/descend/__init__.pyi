# Written by `python -m tools.generate` from the engine's tables; do not edit.
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, Protocol, TypeVar

from descend._native import empty_cache as empty_cache
from descend._native import get_num_threads as get_num_threads
from descend._native import set_num_threads as set_num_threads

class _SupportsDlpack(Protocol):
    """An array that DLPack can exchange: NumPy, PyTorch, JAX, ..."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

_Array = TypeVar("_Array", bound=_SupportsDlpack)

__version__: str

def add_layer_norm(
    x1: _Array,
    x2: _Array,
    gamma: _Array,
    beta: _Array,
    bias: _Array | None = None,
    epsilon: float = 1e-05,
    additional_output: bool = False,
    *,
    out: Sequence[_Array | EllipsisType | None] | None = None,
) -> tuple[_Array, _Array, _Array, _Array]:
    """Layer norm of a sum; and the sum.

    Formula:
        x         = x1 + x2 + bias
        mean, var = mean and biased variance of each row of x
        rstd      = 1 / sqrt(var + epsilon)
        y         = (x - mean) * rstd * gamma + beta

    Parameters:
        x1: One term of the sum. (Array, shape [A1, ..., An, R1, ..., Rk], rank 1 to 8; on atlas-inference the
            last of 32 bytes or more)
        x2: The other. (Array, shape as x1)
        gamma: Weight. (Array, shape [R1, ..., Rk])
        beta: Bias of the norm. (Array, shape as gamma)
        bias: A third term of the sum; may be null. (Array or None, shape [R1, ..., Rk] or as x1)
        epsilon: Added to the variance; at least 0. (float)
        additional_output: Whether the sum is a result, too. (bool)

    Returns:
        y: The norm. (shape as x1)
        mean: Mean of each row of the sum. (shape [A1, ..., An, 1, ..., 1])
        rstd: 1 / sqrt(variance + epsilon) of each such row. (shape as meanOut)
        x: The sum, rounded. (shape as x1)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate, ... for one to leave out that may be null.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma and beta have the last dimensions of x1; the rest counts the rows. bias has gamma's shape or x1's; null:
    nothing is added. y is computed from the sum before it is rounded to xOut. Without additionalOutput xOut is
    not written: host takes null for it, and the functional form returns None. Where they are allocated, y and x
    have the dtype of x1 and x2 or, if these differ, FLOAT (DOUBLE if one is). Strided tensors are fine, empty
    ones on host: the mean of a row without elements is 0, its rstd NaN. host also takes DOUBLE, any mix of
    floating dtypes, and meanOut and rstdOut of any shape with an element a row.

    Dtypes:
        x1 FLOAT, x2 FLOAT, gamma FLOAT, beta FLOAT, bias FLOAT, y_out FLOAT, mean_out FLOAT, rstd_out FLOAT,
            x_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        x1 FLOAT16, x2 FLOAT16, gamma FLOAT16, beta FLOAT16, bias FLOAT16, y_out FLOAT16, mean_out FLOAT, rstd_out
            FLOAT, x_out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        x1 BFLOAT16, x2 BFLOAT16, gamma BFLOAT16, beta BFLOAT16, bias BFLOAT16, y_out BFLOAT16, mean_out FLOAT,
            rstd_out FLOAT, x_out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x1 FLOAT, x2 FLOAT16/BFLOAT16, gamma FLOAT, beta FLOAT, bias FLOAT, y_out FLOAT, mean_out FLOAT, rstd_out
            FLOAT, x_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x1 FLOAT16/BFLOAT16, x2 FLOAT, gamma FLOAT, beta FLOAT, bias FLOAT, y_out FLOAT, mean_out FLOAT, rstd_out
            FLOAT, x_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x1 FLOAT16, x2 FLOAT16, gamma FLOAT, beta FLOAT, bias FLOAT16, y_out FLOAT16, mean_out FLOAT, rstd_out
            FLOAT, x_out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x1 BFLOAT16, x2 BFLOAT16, gamma FLOAT, beta FLOAT, bias BFLOAT16, y_out BFLOAT16, mean_out FLOAT, rstd_out
            FLOAT, x_out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x1 FLOAT/FLOAT16/DOUBLE/BFLOAT16, x2 FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            beta FLOAT/FLOAT16/DOUBLE/BFLOAT16, bias FLOAT/FLOAT16/DOUBLE/BFLOAT16, y_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, x_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: a tensor but biasOptional is null; on host xOut may be, without
            additionalOutput.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly; a negative epsilon; on atlas-inference a last dimension of less than 32 bytes.
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; on Huawei's products an empty tensor.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnAddLayerNorm in CANN's aclnn library.
    """

def add_layer_norm_grad(
    dy: _Array,
    x1: _Array,
    x2: _Array | None,
    rstd: _Array,
    mean: _Array,
    gamma: _Array,
    dsum: _Array | None = None,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Gradients of layer norm of a sum.

    Formula:
        xhat   = (x1 + x2 - mean) * rstd
        g      = dy * gamma
        dx     = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row)) + dsum
        dgamma = sum over rows of dy * xhat
        dbeta  = sum over rows of dy

    Parameters:
        dy: Gradient of the loss with respect to the forward's y. (Array, shape [A1, ..., An, R1, ..., Rk], rank 1
            to 8)
        x1: One term of the forward's sum. (Array, shape as dy)
        x2: The other; null on host: x1 is the sum. (Array or None, shape as dy)
        rstd: 1 / sqrt(variance + epsilon) of each row of the sum. (Array, shape [A1, ..., An, 1, ..., 1])
        mean: Mean of each such row, from the forward. (Array, shape as rstd)
        gamma: Weight of the forward. (Array, shape [R1, ..., Rk])
        dsum: Gradient of the loss with respect to the forward's x; may be null. (Array or None, shape as dy)

    Returns:
        dx: Gradient with respect to the sum, and so to x1 and x2. (shape as dy)
        dgamma: Gradient with respect to gamma. (shape as gamma)
        dbeta: Gradient with respect to beta. (shape as gamma)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma has the last dimensions of x1, and everything is a matrix [M, N]: N elements of gamma, M rows. dsum is
    the gradient that came in for the sum; null: there was none. dx is the gradient with respect to x1, to x2 and
    to a bias of their shape. Strided tensors are fine, empty ones on host: without rows dgamma and dbeta are 0.
    host also takes DOUBLE, any mix of floating dtypes, and mean and rstd of any shape with M elements.

    Dtypes:
        dy FLOAT, x1 FLOAT, x2 FLOAT, rstd FLOAT, mean FLOAT, gamma FLOAT, dsum FLOAT, dx_out FLOAT, dgamma_out
            FLOAT, dbeta_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        dy FLOAT16, x1 FLOAT16, x2 FLOAT16, rstd FLOAT, mean FLOAT, gamma FLOAT16, dsum FLOAT16, dx_out FLOAT16,
            dgamma_out FLOAT, dbeta_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference,
            ascend-950)
        dy BFLOAT16, x1 BFLOAT16, x2 BFLOAT16, rstd FLOAT, mean FLOAT, gamma BFLOAT16, dsum BFLOAT16, dx_out
            BFLOAT16, dgamma_out FLOAT, dbeta_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        dy FLOAT/FLOAT16/DOUBLE/BFLOAT16, x1 FLOAT/FLOAT16/DOUBLE/BFLOAT16, x2 FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dsum FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dbeta_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: a tensor but dsumOptional is null; on host x2 may be, too.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly; ranks and shapes; on Huawei's products an empty tensor.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnAddLayerNormGrad in CANN's aclnn library.
    """

def add_rms_norm(
    x1: _Array,
    x2: _Array,
    gamma: _Array,
    epsilon: float = 1e-06,
    *,
    out: Sequence[_Array | EllipsisType | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """RMS norm of a sum: each row divided by its root mean square, times a weight; and the sum.

    Formula:
        x    = x1 + x2
        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * gamma

    Parameters:
        x1: One term of the sum. (Array, shape [A1, ..., An, R1, ..., Rk], rank 1 to 8)
        x2: The other. (Array, shape as x1)
        gamma: Weight. (Array, shape [R1, ..., Rk])
        epsilon: Added to the mean of the squares; at least 0. (float)

    Returns:
        y: The result. (shape as x1)
        rstd: What the gradient needs. (shape [A1, ..., An, 1, ..., 1])
        x: The sum, rounded. (shape as x1)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate, ... for one to leave out that may be null.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma has the last dimensions of x1; the rest counts the rows. y is computed from the sum before it is rounded
    to xOut. Without rstdOut the documents have gamma of shape [1, N], N the last dimension of x1, and 16 bits;
    xOut may then be null, too. Strided and empty tensors are fine; the rstd of a row without elements is NaN.
    host also takes DOUBLE, any mix of floating dtypes, rstdOut and xOut null or not, and rstdOut of any shape
    with an element a row.

    Dtypes:
        x1 FLOAT, x2 FLOAT, gamma FLOAT, y_out FLOAT, rstd_out FLOAT, x_out FLOAT (atlas-a3, atlas-a2-training,
            atlas-a2-inference, atlas-inference, ascend-950)
        x1 FLOAT16, x2 FLOAT16, gamma FLOAT16, y_out FLOAT16, rstd_out FLOAT, x_out FLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        x1 BFLOAT16, x2 BFLOAT16, gamma BFLOAT16, y_out BFLOAT16, rstd_out FLOAT, x_out BFLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        x1 FLOAT/FLOAT16/DOUBLE/BFLOAT16, x2 FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, x_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: x1, x2, gamma or yOut is null; on Huawei's products xOut is null and
            rstdOut is not.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly; ranks and shapes; a negative epsilon; on Huawei's products FLOAT without rstdOut.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnAddRmsNorm in CANN's aclnn library.
    """

def apply_adam_w_v2(
    var: _Array,
    m: _Array,
    v: _Array,
    max_grad_norm: _Array | None,
    grad: _Array,
    step: _Array,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.01,
    eps: float = 1e-08,
    amsgrad: bool = False,
    maximize: bool = False,
    *,
    out: Sequence[_Array | EllipsisType | None] | None = None,
) -> tuple[_Array, _Array, _Array, _Array]:
    """A step of AdamW: parameters, and the decaying means of gradients and of their squares.

    Formula:
        g   = grad, or -grad with maximize          t = step + 1
        m   = beta1 * m + (1 - beta1) * g
        v   = beta2 * v + (1 - beta2) * g^2
        u   = v, or with amsgrad max_grad_norm = max(max_grad_norm, v)
        var = (1 - lr * weight_decay) * var - lr * (m / (1 - beta1^t)) / (sqrt(u / (1 - beta2^t)) + eps)

    Parameters:
        var: The parameters. (Array, shape [A1, ..., An], rank 0 to 8)
        m: The mean of the gradients, which decays. (Array, shape as varRef)
        v: The mean of their squares, which decays; not negative. (Array, shape as varRef)
        max_grad_norm: The largest v so far; read with amsgrad alone, and needed then. (Array or None, shape as
            varRef)
        grad: The gradient. (Array, shape as varRef)
        step: How many steps were taken before this one, so 0 at the first; at least 0. (Array, shape [1], rank 0
            to 8)
        lr: The learning rate. (float)
        beta1: What m keeps. (float)
        beta2: What v keeps. (float)
        weight_decay: Times lr, the share that var loses. (float)
        eps: Added to the root. (float)
        amsgrad: Whether the largest v takes the place of v in the root. (bool)
        maximize: Whether the gradient is negated. (bool)

    Returns:
        var: The new parameters. (shape as varRef)
        m: The new mean of the gradients. (shape as varRef)
        v: The new mean of their squares. (shape as varRef)
        max_grad_norm: The new largest v, with amsgrad. (shape as varRef)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate, ... for one to leave out that may be null.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    In C the results take the place of varRef, mRef, vRef and maxGradNormOptionalRef. In Python they are arrays of
    their own; given as out, the inputs are changed in place. Without amsgrad max_grad_norm may be None, is not
    touched, and there is no result for it. step counts the steps before: the operator adds 1, as torch_npu
    expects it to. Strided and empty tensors are fine. host also takes DOUBLE, any floating dtype and INT32 for
    step, and results of other dtypes than their inputs'.

    Dtypes:
        var FLOAT/FLOAT16/BFLOAT16, m FLOAT/FLOAT16/BFLOAT16, v FLOAT/FLOAT16/BFLOAT16, max_grad_norm
            FLOAT/FLOAT16/BFLOAT16, grad FLOAT/FLOAT16/BFLOAT16, step FLOAT/INT64, var_out FLOAT/FLOAT16/BFLOAT16,
            m_out FLOAT/FLOAT16/BFLOAT16, v_out FLOAT/FLOAT16/BFLOAT16, max_grad_norm_out FLOAT/FLOAT16/BFLOAT16
            (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        var FLOAT/FLOAT16/DOUBLE/BFLOAT16, m FLOAT/FLOAT16/DOUBLE/BFLOAT16, v FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            max_grad_norm FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad FLOAT/FLOAT16/DOUBLE/BFLOAT16, step
            FLOAT/FLOAT16/INT32/INT64/DOUBLE/BFLOAT16, var_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, m_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, v_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, max_grad_norm_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: varRef, mRef, vRef, grad or step is null, or with amsgrad
            maxGradNormOptionalRef.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; a private format; a view outside its storage; an
            output that overlaps another tensor other than exactly; shapes that differ; a step that has not one
            element.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnApplyAdamWV2 in CANN's aclnn library.
    """

def cross_entropy_loss(
    input: _Array,
    target: _Array,
    weight: _Array | None = None,
    reduction: str | None = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
    *,
    out: Sequence[_Array | EllipsisType | None] | None = None,
) -> tuple[_Array, _Array, _Array, _Array]:
    """Cross entropy of scores with the class of each row: log softmax and the negative log likelihood in one.

    Formula:
        lse[n]        = log(sum over c of exp(input[n, c]))
        logProb[n, c] = input[n, c] - lse[n]
        loss[n]       = -(1 - s) * weight[t] * logProb[n, t] - s / C * sum over c of weight[c] * logProb[n, c]
        zloss[n]      = scale * lse[n]^2              t = target[n], s = labelSmoothing; of rows that are ignored 0
        mean: sum of loss / sum of weight[t], sum of zloss / rows that count; sum: their sums; none: as they are

    Parameters:
        input: Scores of each class, not normalized. (Array, shape [N, C])
        target: The class of each row, from 0 to C - 1, or ignoreIndex. (Array, shape [N])
        weight: Weight of each class; null: all are 1. (Array or None, shape [C])
        reduction: mean, sum or none; null: mean. (str or None)
        ignore_index: The target of rows that count for nothing. (int)
        label_smoothing: s, the part of the target that is shared among all classes, from 0 to 1. (float)
        lse_square_scale_for_zloss: The factor of zloss. On host alone; Atlas products take no notice of it.
            (float)
        return_zloss: Whether zlossOut is written, on host. (bool)

    Returns:
        loss: The loss. (shape [1], or [N] for none)
        log_prob: Logarithms of the probabilities, for the gradient. (shape as input)
        zloss: The part of the loss that keeps lse near 0. (shape [1], or [N] for none)
        lse_for_zloss: lse of each row, for the gradient. (shape [N])
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate, ... for one to leave out that may be null.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    A row whose target is ignoreIndex is ignored, whatever sign that has; one whose target is no class gets NaN.
    lossOut may also have rank 0 where it is reduced. zloss is for host alone, where a scale other than 0 adds it
    to loss: zlossOut is written where returnZloss is true, lseForZlossOut where the scale is not 0. On Atlas
    products both must be given, are not written, and may have any shape. On host null is taken for logProbOut,
    zlossOut and lseForZlossOut. Without logProbOut lseForZlossOut is written whatever the scale, and rows that
    are ignored are not read: their lse is 0. host also takes DOUBLE and any mix of floating dtypes.

    Dtypes:
        input FLOAT, target INT32/INT64, weight FLOAT, loss_out FLOAT, log_prob_out FLOAT, zloss_out FLOAT,
            lse_for_zloss_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input FLOAT16, target INT32/INT64, weight FLOAT, loss_out FLOAT16, log_prob_out FLOAT16, zloss_out
            FLOAT16, lse_for_zloss_out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input BFLOAT16, target INT32/INT64, weight FLOAT, loss_out BFLOAT16, log_prob_out BFLOAT16, zloss_out
            BFLOAT16, lse_for_zloss_out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input FLOAT/FLOAT16/DOUBLE/BFLOAT16, target INT32/INT64, weight FLOAT/FLOAT16/DOUBLE/BFLOAT16, loss_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, log_prob_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, zloss_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, lse_for_zloss_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: input, target, lossOut, logProbOut, zlossOut or lseForZlossOut is null; on
            host the last three may be.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly; shapes of the
            outputs.
        561002 ACLNN_ERR_INNER_TILING_ERROR: shapes of input, target and weightOptional; reductionOptional,
            labelSmoothing.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnCrossEntropyLoss in CANN's aclnn library.
    """

def cross_entropy_loss_grad(
    grad_loss: _Array,
    log_prob: _Array,
    target: _Array,
    weight: _Array | None = None,
    grad_zloss: _Array | None = None,
    lse_for_zloss: _Array | None = None,
    reduction: str | None = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    *,
    out: _Array | None = None,
) -> _Array:
    """Gradient of cross entropy with respect to the scores.

    Formula:
        g[n]      = gradLoss / sum of weight[t] over the rows that count (mean), gradLoss (sum), gradLoss[n] (none)
        a[n]      = g[n] * (1 - s) * weight[t]      b[n] = g[n] * s / C      t = target[n], s = labelSmoothing
        z[n]      = 2 * scale * lse[n] * (gradLoss + gradZloss), for mean / rows that count; 0 where scale is 0
        out[n, c] = exp(logProb[n, c]) * (a[n] + b[n] * sum of weight + z[n]) - b[n] * weight[c] - (a[n] if c = t)

    Parameters:
        grad_loss: Gradient of the loss that the forward returned. (Array, shape [] or [1], or [N] for none)
        log_prob: Logarithms of the probabilities, from the forward. (Array, shape [N, C])
        target: The class of each row, from 0 to C - 1, or ignoreIndex. (Array, shape [N])
        weight: Weight of each class; null: all are 1. (Array or None, shape [C])
        grad_zloss: Gradient of the forward's zloss; null or empty: 0. (Array or None, shape as gradLoss)
        lse_for_zloss: lse of each row, from the forward. (Array or None, shape [N], or [N, 1] with the forward's
            input)
        reduction: mean, sum or none; null: mean. (str or None)
        ignore_index: The target of rows that count for nothing. (int)
        label_smoothing: s, the part of the target that is shared among all classes, from 0 to 1. (float)
        lse_square_scale_for_zloss: The factor of zloss. On host alone; Atlas products take no notice of it.
            (float)

    Returns:
        out: Gradient with respect to the forward's input. (shape as logProb)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    A row whose target is ignoreIndex gets 0, also where no row counts; one whose target is no class gets NaN.
    gradLoss has one number, of rank 0 or 1, where the loss is reduced. out may be exactly logProb. On Atlas
    products labelSmoothing must be 0, and zloss is not computed. On host lseForZlossOptional may have shape [N,
    1]: logProb is then the forward's input, of which lse is taken away first, so that no logarithms of
    probabilities need to be kept. host also takes INT32, DOUBLE and any mix of floating dtypes.

    Dtypes:
        grad_loss FLOAT, log_prob FLOAT, target INT64, weight FLOAT, grad_zloss FLOAT, lse_for_zloss FLOAT, out
            FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        grad_loss FLOAT16, log_prob FLOAT16, target INT64, weight FLOAT, grad_zloss FLOAT16, lse_for_zloss
            FLOAT16, out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        grad_loss BFLOAT16, log_prob BFLOAT16, target INT64, weight FLOAT, grad_zloss BFLOAT16, lse_for_zloss
            BFLOAT16, out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        grad_loss FLOAT/FLOAT16/DOUBLE/BFLOAT16, log_prob FLOAT/FLOAT16/DOUBLE/BFLOAT16, target INT32/INT64,
            weight FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_zloss FLOAT/FLOAT16/DOUBLE/BFLOAT16, lse_for_zloss
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: gradLoss, logProb, target or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly; shapes of
            gradLoss, gradZlossOptional, lseForZlossOptional and out; labelSmoothing on Atlas products; no lse
            where the scale is not 0.
        561002 ACLNN_ERR_INNER_TILING_ERROR: shapes of logProb, target and weightOptional; reductionOptional,
            labelSmoothing.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnCrossEntropyLossGrad in CANN's aclnn library.
    """

def deep_norm(
    x: _Array,
    gx: _Array,
    beta: _Array,
    gamma: _Array,
    alpha: float = 0.3,
    epsilon: float = 1e-06,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Deep norm, which is layer norm of alpha * x + gx.

    Formula:
        z         = alpha * x + gx
        mean, var = mean and biased variance of each row of z
        rstd      = 1 / sqrt(var + epsilon)
        y         = (z - mean) * rstd * gamma + beta

    Parameters:
        x: What alpha scales: the residual. (Array, shape [A1, ..., An, R1, ..., Rk], rank 2 to 8)
        gx: What is added: the output of a layer. (Array, shape as x)
        beta: Bias. (Array, shape as gamma)
        gamma: Weight. (Array, shape [R1, ..., Rk])
        alpha: Factor of x. (float)
        epsilon: Added to the variance; at least 0. (float)

    Returns:
        mean: Mean of each row of z. (shape [A1, ..., An, 1, ..., 1])
        rstd: 1 / sqrt(variance + epsilon) of each row of z. (shape as meanOut)
        y: The result. (shape as x)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma and beta have the last dimensions of x, and everything is a matrix [M, N]: N elements of gamma, M rows.
    The variance does not cancel, however far from 0 the data lies. alpha is rounded to FLOAT unless a tensor is
    DOUBLE. Strided and empty tensors are fine; a row without elements has mean 0 and rstd NaN. host also takes
    DOUBLE, any mix of floating dtypes, x of rank 1, gamma of all its dimensions, and mean and rstd of any shape
    with M elements.

    Dtypes:
        x FLOAT, gx FLOAT, beta FLOAT, gamma FLOAT, mean_out FLOAT, rstd_out FLOAT, y_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        x FLOAT16, gx FLOAT16, beta FLOAT16, gamma FLOAT16, mean_out FLOAT, rstd_out FLOAT, y_out FLOAT16
            (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        x BFLOAT16, gx BFLOAT16, beta BFLOAT16, gamma BFLOAT16, mean_out FLOAT, rstd_out FLOAT, y_out BFLOAT16
            (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, gx FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: any of the seven tensors is null.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly; ranks and shapes; a negative epsilon.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnDeepNorm in CANN's aclnn library.
    """

def deep_norm_grad(
    dy: _Array,
    x: _Array,
    gx: _Array,
    gamma: _Array,
    mean: _Array,
    rstd: _Array,
    alpha: float = 0.3,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array, _Array]:
    """Gradients of deep norm, which is layer norm of alpha * x + gx.

    Formula:
        xhat   = (alpha * x + gx - mean) * rstd
        g      = dy * gamma
        dgx    = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
        dx     = alpha * dgx
        dbeta  = sum over rows of dy
        dgamma = sum over rows of dy * xhat

    Parameters:
        dy: Gradient of the loss with respect to the forward's output. (Array, shape as x)
        x: Input of the forward that alpha scales. (Array, shape [A1, ..., An, R1, ..., Rk], rank 2 to 8)
        gx: The forward's other input. (Array, shape as x)
        gamma: Weight of the forward. (Array, shape [R1, ..., Rk])
        mean: Mean of each row of alpha * x + gx. (Array, shape [A1, ..., An, 1, ..., 1])
        rstd: 1 / sqrt(variance + epsilon) of each such row, from the forward. (Array, shape as mean)
        alpha: Factor of x in the forward. (float)

    Returns:
        dx: Gradient with respect to x. (shape as x)
        dgx: Gradient with respect to gx. (shape as x)
        dbeta: Gradient with respect to the forward's bias. (shape as gamma)
        dgamma: Gradient with respect to gamma. (shape as gamma)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma has the last dimensions of x, and everything is a matrix [M, N]: N elements of gamma, M rows. alpha is
    rounded to FLOAT unless a tensor is DOUBLE. Strided and empty tensors are fine: without rows dbeta and dgamma
    are 0. host also takes DOUBLE, any mix of floating dtypes, x of rank 1, gamma of all its dimensions, and mean
    and rstd of any shape with M elements.

    Dtypes:
        dy FLOAT, x FLOAT, gx FLOAT, gamma FLOAT, mean FLOAT, rstd FLOAT, dx_out FLOAT, dgx_out FLOAT, dbeta_out
            FLOAT, dgamma_out FLOAT (atlas-a3, atlas-a2-training, atlas-inference, ascend-950)
        dy FLOAT16, x FLOAT16, gx FLOAT16, gamma FLOAT16, mean FLOAT, rstd FLOAT, dx_out FLOAT16, dgx_out FLOAT16,
            dbeta_out FLOAT, dgamma_out FLOAT (atlas-a3, atlas-a2-training, atlas-inference, ascend-950)
        dy BFLOAT16, x BFLOAT16, gx BFLOAT16, gamma BFLOAT16, mean FLOAT, rstd FLOAT, dx_out BFLOAT16, dgx_out
            BFLOAT16, dbeta_out FLOAT, dgamma_out FLOAT (atlas-a3, atlas-a2-training, ascend-950)
        dy FLOAT/FLOAT16/DOUBLE/BFLOAT16, x FLOAT/FLOAT16/DOUBLE/BFLOAT16, gx FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            dx_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgx_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dbeta_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: any of the ten tensors is null.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly; ranks and shapes.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnDeepNormGrad in CANN's aclnn library.
    """

def gelu_backward_v2(
    grad_output: _Array,
    x: _Array,
    approximate: str = "none",
    *,
    out: _Array | None = None,
) -> _Array:
    """Gradient of GELU with respect to its input.

    Formula:
        gradInput = gradOutput * (Phi(x) + x * exp(-x^2 / 2) / sqrt(2 pi))          x = self; approximate none
        gradInput = gradOutput * (s + x * s * (1 - s) * u')                         approximate tanh
                    u = 2 sqrt(2 / pi) * (x + 0.044715 * x^3)    u' = 2 sqrt(2 / pi) * (1 + 3 * 0.044715 * x^2)
                    s = sigmoid(u) = (1 + tanh(u / 2)) / 2

    Parameters:
        grad_output: Gradient of the loss with respect to the forward's result; may broadcast with self. (Array,
            shape as self)
        x: Input of the forward. (Array, shape [A1, ..., An], rank 0 to 8)
        approximate: none, by erf, or tanh. (str)

    Returns:
        grad_input: Gradient with respect to self. (shape as self)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided and empty tensors are fine. gradOutput and self may also be of different shapes that broadcast to one,
    and of different dtypes: gradInput is then FLOAT. host also takes DOUBLE and any mix of floating dtypes.

    Dtypes:
        grad_output FLOAT, x FLOAT, grad_input FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            atlas-inference, atlas-training, ascend-950)
        grad_output FLOAT16, x FLOAT16, grad_input FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference,
            atlas-inference, atlas-training, ascend-950)
        grad_output BFLOAT16, x BFLOAT16, grad_input BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        grad_output FLOAT, x FLOAT16, grad_input FLOAT (atlas-inference, atlas-training)
        grad_output FLOAT16, x FLOAT, grad_input FLOAT (atlas-inference, atlas-training)
        grad_output FLOAT, x FLOAT16/BFLOAT16, grad_input FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        grad_output FLOAT16/BFLOAT16, x FLOAT, grad_input FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        grad_output FLOAT16, x BFLOAT16, grad_input FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        grad_output BFLOAT16, x FLOAT16, grad_input FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        grad_output FLOAT/FLOAT16/DOUBLE/BFLOAT16, x FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_input
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: gradOutput, self, approximate or gradInput is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; a private format; a view outside its storage; an
            output that overlaps another tensor other than exactly; shapes of gradOutput and self that do not
            broadcast, or another one of gradInput; approximate other than none and tanh.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGeluBackwardV2 in CANN's aclnn library.
    """

def gelu_v2(
    x: _Array,
    approximate: int = 0,
    *,
    out: _Array | None = None,
) -> _Array:
    """GELU, the activation of BERT, GPT and others: x times the normal distribution's function of x.

    Formula:
        y = x * Phi(x) = x * (1 + erf(x / sqrt(2))) / 2                             approximate 0: none
        y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2                 approximate 1: tanh

    Parameters:
        x: What is activated. (Array, shape [A1, ..., An], rank 0 to 8)
        approximate: 0: none, by erf; 1: tanh. (int)

    Returns:
        y: The result. (shape as x)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided and empty tensors are fine. host also takes DOUBLE and any mix of floating dtypes.

    Dtypes:
        x FLOAT, y FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, atlas-training,
            ascend-950)
        x FLOAT16, y FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, atlas-training,
            ascend-950)
        x BFLOAT16, y BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, y FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: x or y is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps x other than exactly; shapes that differ;
            approximate other than 0 and 1.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGeluV2 in CANN's aclnn library.
    """

def gemma_rms_norm(
    x: _Array,
    gamma: _Array,
    epsilon: float = 1e-06,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array]:
    """RMS norm as Gemma has it: each row divided by its root mean square, times a weight plus 1.

    Formula:
        rstd = 1 / sqrt(mean(x * x over the row) + epsilon)
        y    = x * rstd * (1 + gamma)

    Parameters:
        x: What is normalised. (Array, shape [A1, ..., An, R1, ..., Rk], rank 1 to 8)
        gamma: Weight, less 1. (Array, shape [R1, ..., Rk])
        epsilon: Added to the mean of the squares; at least 0. (float)

    Returns:
        y: The result. (shape as x)
        rstd: What the gradient needs. (shape [A1, ..., An], or followed by 1s to x's rank)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma has the last dimensions of x; the rest counts the rows. 1 + gamma is computed in FLOAT, DOUBLE where a
    tensor is. Where rstd is allocated it is FLOAT, DOUBLE for DOUBLE input, and has x's rank with 1 for each
    dimension of gamma. Strided and empty tensors are fine. host also takes DOUBLE and any mix of floating dtypes
    for gamma and the outputs.

    Dtypes:
        x FLOAT, gamma FLOAT, y_out FLOAT, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        x FLOAT16, gamma FLOAT16, y_out FLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        x BFLOAT16, gamma BFLOAT16, y_out BFLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            rstd_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: x, gamma, yOut or rstdOut is null.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly.
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; a negative epsilon.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGemmaRmsNorm in CANN's aclnn library.
    """

def group_norm(
    input: _Array,
    gamma: _Array | None,
    beta: _Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    eps: float = 1e-05,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Group norm: groups of channels less their mean, divided by their standard deviation.

    Formula:
        mean, var = mean and biased variance of each group of self
        rstd      = 1 / sqrt(var + eps)
        out       = (self - mean) * rstd * gamma + beta

    Parameters:
        input: What is normalised. (Array, shape [N, C, ...], rank 2 to 8)
        gamma: Weight; null: all ones. (Array or None, shape [C])
        beta: Bias; null: all zeros. (Array or None, shape [C])
        n: The samples. (int)
        c: The channels. (int)
        hxw: The elements of a channel, 1 if there is no further dimension. (int)
        group: Groups that the channels fall into; divides C. (int)
        eps: Added to the variance; more than 0. (float)

    Returns:
        out: The result. (shape as self)
        mean: Mean of each group, which the gradient needs. (shape [N, group])
        rstd: 1 / sqrt(variance + eps) of each group, which the gradient needs. (shape [N, group])
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    self is seen as [N, C, HxW]; a group is C / group neighbouring channels of one sample. gamma null is all ones,
    beta null all zeros. The variance does not cancel, however far from 0 the data lies. Where mean and rstd are
    allocated they are FLOAT [N, group], DOUBLE for DOUBLE input. Strided and empty tensors are fine; a group
    without elements has mean 0 and rstd NaN. host also takes DOUBLE, any mix of floating dtypes, mean and rstd of
    any shape, and an eps of 0.

    Dtypes:
        input FLOAT, gamma FLOAT, beta FLOAT, out FLOAT, mean_out FLOAT, rstd_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference, atlas-training, ascend-950)
        input FLOAT16, gamma FLOAT16, beta FLOAT16, out FLOAT16, mean_out FLOAT16, rstd_out FLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference, atlas-training, ascend-950)
        input BFLOAT16, gamma BFLOAT16, beta BFLOAT16, out BFLOAT16, mean_out BFLOAT16, rstd_out BFLOAT16
            (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: self, out, meanOut or rstdOut is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; a private format; a view outside its storage; an
            output that overlaps another tensor other than exactly; ranks and shapes; N, C or HxW that are not
            those of self; group not positive or no divisor of C; eps not positive, on host a negative one; on
            every product but host an out of another format than self.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGroupNorm in CANN's aclnn library.
    """

def group_norm_backward(
    grad_out: _Array,
    input: _Array,
    mean: _Array,
    rstd: _Array,
    gamma: _Array | None,
    n: int,
    c: int,
    hxw: int,
    group: int,
    output_mask: Sequence[bool] | _SupportsDlpack = (True, True, True),
    *,
    out: Sequence[_Array | EllipsisType | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Gradients of group norm with respect to its input, its weight and its bias.

    Formula:
        xhat         = (input - mean) * rstd
        g            = gradOut * gamma
        gradInput    = rstd * (g - mean(g) - xhat * mean(g * xhat)), means over the group
        gradGammaOut = sum of gradOut * xhat over N and HxW
        gradBetaOut  = sum of gradOut over N and HxW

    Parameters:
        grad_out: Gradient of the loss with respect to the forward's output. (Array, shape N * C * HxW elements,
            usually as input)
        input: Input of the forward. (Array, shape N * C * HxW elements, usually [N, C, ...])
        mean: Mean of each group, from the forward. (Array, shape N * group elements, usually [N, group])
        rstd: 1 / sqrt(variance + eps) of each group, from the forward. (Array, shape N * group elements, usually
            [N, group])
        gamma: Weight of the forward; null: all ones. (Array or None, shape C elements, usually [C])
        n: The samples. (int)
        c: The channels. (int)
        hxw: The elements of a channel, 1 if there is no further dimension. (int)
        group: Groups that the channels fall into; divides C. (int)
        output_mask: Which of the three outputs are computed. (Sequence[bool] | Array)

    Returns:
        grad_input: Gradient with respect to input. (shape as input)
        grad_gamma: Gradient with respect to gamma. (shape as gamma)
        grad_beta: Gradient with respect to beta. (shape as gamma)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate, ... for one to leave out that may be null.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    The elements of gradOut and input, whatever their shapes, are [N, C, HxW]; a group is C / group neighbouring
    channels of one sample. gamma null is all ones. An output whose mask is false is ignored altogether: it may be
    null, is not touched, and the functional form returns None for it. Strided and empty tensors are fine: without
    samples gradGammaOut and gradBetaOut are 0. Where they are allocated they are as gamma, without it FLOAT [C],
    DOUBLE for DOUBLE input. host also takes DOUBLE, any mix of floating dtypes for mean, rstd, gamma and the
    outputs, and any number of channels.

    Dtypes:
        grad_out FLOAT, input FLOAT, mean FLOAT, rstd FLOAT, gamma FLOAT, grad_input FLOAT, grad_gamma_out FLOAT,
            grad_beta_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-training, ascend-950)
        grad_out FLOAT16, input FLOAT16, mean FLOAT16, rstd FLOAT16, gamma FLOAT16, grad_input FLOAT16,
            grad_gamma_out FLOAT16, grad_beta_out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference,
            atlas-training, ascend-950)
        grad_out BFLOAT16, input BFLOAT16, mean BFLOAT16, rstd BFLOAT16, gamma BFLOAT16, grad_input BFLOAT16,
            grad_gamma_out BFLOAT16, grad_beta_out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        grad_out FLOAT16, input FLOAT16, mean FLOAT, rstd FLOAT, gamma FLOAT, grad_input FLOAT16, grad_gamma_out
            FLOAT, grad_beta_out FLOAT (ascend-950)
        grad_out BFLOAT16, input BFLOAT16, mean FLOAT, rstd FLOAT, gamma FLOAT, grad_input BFLOAT16,
            grad_gamma_out FLOAT, grad_beta_out FLOAT (ascend-950)
        grad_out FLOAT, input FLOAT, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_input FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_gamma_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_beta_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        grad_out FLOAT16, input FLOAT16, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_input FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_gamma_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_beta_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        grad_out BFLOAT16, input BFLOAT16, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_input FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_gamma_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_beta_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        grad_out DOUBLE, input DOUBLE, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_input FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_gamma_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_beta_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: gradOut, input, mean, rstd or outputMask is null; an output whose mask is
            true is null.
        161002 ACLNN_ERR_PARAM_INVALID: an outputMask that has not 3 entries, which is looked at before any
            output; dtypes outside the table; a private format; a view outside its storage; an output that
            overlaps another tensor other than exactly; numbers of elements and shapes; group not positive or no
            divisor of C; on every product but host more than 240000 channels, or more than 8000 a group.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGroupNormBackward in CANN's aclnn library.
    """

def group_norm_silu(
    input: _Array,
    gamma: _Array | None,
    beta: _Array | None,
    group: int,
    eps: float = 1e-05,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Group norm, then SiLU.

    Formula:
        mean, var = mean and biased variance of each group of self
        rstd      = 1 / sqrt(var + eps)
        z         = (self - mean) * rstd * gamma + beta
        out       = z / (1 + exp(-z))

    Parameters:
        input: What is normalised. (Array, shape [N, C, ...], rank 2 to 8)
        gamma: Weight; null: all ones. (Array or None, shape [C])
        beta: Bias; null: all zeros. (Array or None, shape [C])
        group: Groups that the channels fall into; divides C. (int)
        eps: Added to the variance; more than 0. (float)

    Returns:
        out: The result. (shape as self)
        mean: Mean of each group, which the gradient needs. (shape [N, group])
        rstd: 1 / sqrt(variance + eps) of each group, which the gradient needs. (shape [N, group])
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    self is seen as [N, C, HxW]: dimension 0 is N, dimension 1 is C, the rest HxW (1 if there is none); a group is
    C / group neighbouring channels of one sample. gamma null is all ones, beta null all zeros. Where mean and
    rstd are allocated they are FLOAT [N, group], DOUBLE for DOUBLE input. Strided inputs and empty tensors are
    fine; a group without elements has mean 0 and rstd NaN. Its gradient is GroupNormSwishGrad's with a swishScale
    of 1. host also takes DOUBLE, any mix of floating dtypes, strided outputs, mean and rstd of any shape, and an
    eps of 0.

    Dtypes:
        input FLOAT, gamma FLOAT, beta FLOAT, out FLOAT, mean_out FLOAT, rstd_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        input FLOAT16, gamma FLOAT16, beta FLOAT16, out FLOAT16, mean_out FLOAT16, rstd_out FLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        input BFLOAT16, gamma BFLOAT16, beta BFLOAT16, out BFLOAT16, mean_out BFLOAT16, rstd_out BFLOAT16
            (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input FLOAT16, gamma FLOAT, beta FLOAT, out FLOAT16, mean_out FLOAT16, rstd_out FLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference)
        input BFLOAT16, gamma FLOAT, beta FLOAT, out BFLOAT16, mean_out BFLOAT16, rstd_out BFLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference)
        input FLOAT16, gamma FLOAT, beta FLOAT, out FLOAT16, mean_out FLOAT, rstd_out FLOAT (ascend-950)
        input BFLOAT16, gamma FLOAT, beta FLOAT, out BFLOAT16, mean_out FLOAT, rstd_out FLOAT (ascend-950)
        input FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: self, out, meanOut or rstdOut is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; a private format; a view outside its storage; an
            output that overlaps another tensor other than exactly; ranks and shapes; group not positive or no
            divisor of C; eps not positive, on host a negative one; on every product but host a strided output,
            and without gamma and beta statistics of another dtype than self.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGroupNormSilu in CANN's aclnn library.
    """

def group_norm_swish(
    x: _Array,
    gamma: _Array,
    beta: _Array,
    num_groups: int,
    data_format: str | None = "NCHW",
    eps: float = 1e-05,
    activate_swish: bool = True,
    swish_scale: float = 1.0,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Group norm, then swish: z * sigmoid(swish_scale * z).

    Formula:
        mean, var = mean and biased variance of each group of x
        rstd = 1 / sqrt(var + eps)
        z    = (x - mean) * rstd * gamma + beta
        y    = z / (1 + exp(-swish_scale * z)) if activate_swish else z

    Parameters:
        x: What is normalised. (Array, shape [N, C, ...], rank 2 to 8)
        gamma: Weight. (Array, shape [C])
        beta: Bias. (Array, shape [C])
        num_groups: Groups that the channels fall into; divides C. (int)
        data_format: Not read. (str or None)
        eps: Added to the variance; at least 0. (float)
        activate_swish: Whether swish follows. (bool)
        swish_scale: What z is multiplied by in the sigmoid. (float)

    Returns:
        y: The result. (shape as x)
        mean: Mean of each group, which the gradient needs. (shape N * num_groups elements)
        rstd: 1 / sqrt(variance + eps) of each group, which the gradient needs. (shape N * num_groups elements)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    x is seen as [N, C, HxW]: dimension 0 is N, dimension 1 is C, the rest HxW (1 if there is none); a group is C
    / num_groups neighbouring channels of one sample. The variance does not cancel, however far from 0 the data
    lies. Where mean and rstd are allocated they are FLOAT [N, num_groups], DOUBLE for DOUBLE input. Strided and
    empty tensors are fine; a group without elements has mean 0 and rstd NaN. ascend-950 is as atlas-a3, by the
    page aclnnGroupNormSwish of the public repository cann/ops-nn. host also takes DOUBLE and any mix of floating
    dtypes.

    Dtypes:
        x FLOAT, gamma FLOAT, beta FLOAT, y_out FLOAT, mean_out FLOAT, rstd_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        x FLOAT16, gamma FLOAT16, beta FLOAT16, y_out FLOAT16, mean_out FLOAT16, rstd_out FLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        x FLOAT16, gamma FLOAT, beta FLOAT, y_out FLOAT16, mean_out FLOAT, rstd_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        x BFLOAT16, gamma BFLOAT16, beta BFLOAT16, y_out BFLOAT16, mean_out BFLOAT16, rstd_out BFLOAT16 (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        x BFLOAT16, gamma FLOAT, beta FLOAT, y_out BFLOAT16, mean_out FLOAT, rstd_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, gamma FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta FLOAT/FLOAT16/DOUBLE/BFLOAT16,
            y_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: any of the six tensors is null.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly.
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; num_groups not positive or no divisor of C; a
            negative eps.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGroupNormSwish in CANN's aclnn library.
    """

def group_norm_swish_grad(
    dy: _Array,
    mean: _Array,
    rstd: _Array,
    x: _Array,
    gamma: _Array,
    beta: _Array,
    num_groups: int,
    data_format: str | None = "NCHW",
    swish_scale: float = 1.0,
    dgamma_is_require: bool = True,
    dbeta_is_require: bool = True,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Gradients of group norm followed by swish, with respect to its input, weight and bias.

    Formula:
        xhat   = (x - mean) * rstd
        z      = xhat * gamma + beta
        sig    = 1 / (1 + exp(-swish_scale * z))
        dz     = dy * sig * (1 + swish_scale * z * (1 - sig))
        dbeta  = sum of dz over N and HxW
        dgamma = sum of dz * xhat over N and HxW
        dx     = rstd * (dz * gamma - mean(dz * gamma) - xhat * mean(dz * gamma * xhat)), means over the group

    Parameters:
        dy: Gradient of the loss with respect to the forward's output. (Array, shape as x)
        mean: Mean of each group, from the forward. (Array, shape N * num_groups elements)
        rstd: 1 / sqrt(variance + eps) of each group, from the forward. (Array, shape N * num_groups elements)
        x: Input of the forward. (Array, shape [N, C, ...], rank 2 to 8)
        gamma: Weight of the forward. (Array, shape [C])
        beta: Bias of the forward. (Array, shape [C])
        num_groups: Groups that the channels fall into; divides C. (int)
        data_format: Not read. (str or None)
        swish_scale: What z is multiplied by in the sigmoid. (float)
        dgamma_is_require: Whether the gradient of gamma is computed. (bool)
        dbeta_is_require: Whether the gradient of beta is computed. (bool)

    Returns:
        dx: Gradient with respect to x. (shape as x)
        dgamma: Gradient with respect to gamma. (shape [C])
        dbeta: Gradient with respect to beta. (shape [C])
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    x is seen as [N, C, HxW]: dimension 0 is N, dimension 1 is C, the rest HxW (1 if there is none); a group is C
    / num_groups neighbouring channels of one sample. Nothing overflows on the way to the sigmoid, however large
    swish_scale * z is. A gradient of gamma or beta that is not required is not computed: its tensor is checked,
    but not touched, and the functional form returns None for it. ascend-950 is as atlas-a3, by the page
    aclnnGroupNormSwishGrad of the public repository cann/ops-nn. host also takes DOUBLE, any mix of floating
    dtypes for mean, rstd, gamma, beta and the outputs, empty tensors (dgamma and dbeta are then 0), and groups of
    more than 4000 channels.

    Dtypes:
        dy FLOAT, mean FLOAT, rstd FLOAT, x FLOAT, gamma FLOAT, beta FLOAT, dx_out FLOAT, dgamma_out FLOAT,
            dbeta_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        dy FLOAT16, mean FLOAT16, rstd FLOAT16, x FLOAT16, gamma FLOAT16, beta FLOAT16, dx_out FLOAT16, dgamma_out
            FLOAT16, dbeta_out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        dy BFLOAT16, mean BFLOAT16, rstd BFLOAT16, x BFLOAT16, gamma BFLOAT16, beta BFLOAT16, dx_out BFLOAT16,
            dgamma_out BFLOAT16, dbeta_out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        dy FLOAT, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, x FLOAT, gamma
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dbeta_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        dy FLOAT16, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, x FLOAT16, gamma
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dbeta_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        dy BFLOAT16, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, x BFLOAT16, gamma
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dbeta_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)
        dy DOUBLE, mean FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, x DOUBLE, gamma
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, beta FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dgamma_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dbeta_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: any of the nine tensors is null, whatever the flags.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly.
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; num_groups not positive or no divisor of C; on
            every product but host an empty tensor or more than 4000 channels a group.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnGroupNormSwishGrad in CANN's aclnn library.
    """

def layer_norm(
    input: _Array,
    normalized_shape: int | Sequence[int] | _SupportsDlpack,
    weight: _Array | None = None,
    bias: _Array | None = None,
    eps: float = 1e-05,
    *,
    out: Sequence[_Array | EllipsisType | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Layer norm: each row less its mean, divided by its standard deviation, times a weight, plus a bias.

    Formula:
        mean, var = mean and biased variance of each row
        rstd      = 1 / sqrt(var + eps)
        out       = (input - mean) * rstd * weight + bias

    Parameters:
        input: What is normalised. (Array, shape [A1, ..., Ai, R1, ..., Rk], rank 1 to 8)
        normalized_shape: [R1, ..., Rk], 1 to 8 numbers. (int | Sequence[int] | Array)
        weight: Weight; null: all ones. (Array or None, shape [R1, ..., Rk])
        bias: Bias; null: all zeros. (Array or None, shape [R1, ..., Rk])
        eps: Added to the variance; at least 0. (float)

    Returns:
        out: The result. (shape as input)
        mean: Mean of each row, which the gradient needs; may be null. (shape M elements, usually [A1, ..., Ai, 1,
            ..., 1])
        rstd: 1 / sqrt(variance + eps) of each row, which the gradient needs; may be null. (shape M elements,
            usually [A1, ..., Ai, 1, ..., 1])
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate, ... for one to leave out that may be null.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    normalizedShape is the last dimensions of input, and everything is a matrix [M, N]: N its product, M rows. The
    variance does not cancel, however far from 0 the data lies. Where mean and rstd are allocated they are FLOAT,
    DOUBLE for DOUBLE input, and have input's rank with 1 for each dimension of normalizedShape. Strided and empty
    tensors are fine; a row without elements has mean 0 and rstd NaN. ascend-950 is as atlas-a3, by the page
    aclnnLayerNorm of the public repository cann/ops-nn. host also takes DOUBLE and any mix of floating dtypes.

    Dtypes:
        input FLOAT, weight FLOAT, bias FLOAT, out FLOAT, mean_out FLOAT/FLOAT16/BFLOAT16, rstd_out
            FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input FLOAT16, weight FLOAT16, bias FLOAT16, out FLOAT16, mean_out FLOAT/FLOAT16/BFLOAT16, rstd_out
            FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input FLOAT16, weight FLOAT, bias FLOAT, out FLOAT16, mean_out FLOAT/FLOAT16/BFLOAT16, rstd_out
            FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input BFLOAT16, weight BFLOAT16, bias BFLOAT16, out BFLOAT16, mean_out FLOAT/FLOAT16/BFLOAT16, rstd_out
            FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input BFLOAT16, weight FLOAT, bias FLOAT, out BFLOAT16, mean_out FLOAT/FLOAT16/BFLOAT16, rstd_out
            FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        input FLOAT, weight FLOAT, bias FLOAT, out FLOAT, mean_out FLOAT/FLOAT16, rstd_out FLOAT/FLOAT16
            (atlas-inference, atlas-training)
        input FLOAT16, weight FLOAT16, bias FLOAT16, out FLOAT16, mean_out FLOAT/FLOAT16, rstd_out FLOAT/FLOAT16
            (atlas-inference, atlas-training)
        input FLOAT16, weight FLOAT, bias FLOAT, out FLOAT16, mean_out FLOAT/FLOAT16, rstd_out FLOAT/FLOAT16
            (atlas-inference, atlas-training)
        input FLOAT/FLOAT16/DOUBLE/BFLOAT16, weight FLOAT/FLOAT16/DOUBLE/BFLOAT16, bias
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: input, normalizedShape or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: a dtype that no row of the table has in that place; a combination that is
            no row; a private format; a view outside its storage; an output that overlaps another tensor other
            than exactly; normalizedShape of no or more than 8 numbers or not the last dimensions of input; shapes
            that do not match; a negative eps.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnLayerNorm in CANN's aclnn library.
    """

def layer_norm_backward(
    grad_out: _Array,
    input: _Array,
    normalized_shape: int | Sequence[int] | _SupportsDlpack,
    mean: _Array,
    rstd: _Array,
    weight: _Array | None = None,
    bias: _Array | None = None,
    output_mask: Sequence[bool] | _SupportsDlpack = (True, True, True),
    *,
    out: Sequence[_Array | EllipsisType | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Gradients of layer norm with respect to its input, its weight and its bias.

    Formula:
        xhat       = (input - mean) * rstd
        g          = gradOut * weight
        gradInput  = rstd * (g - mean(g over the row) - xhat * mean(g * xhat over the row))
        gradWeight = sum over rows of gradOut * xhat
        gradBias   = sum over rows of gradOut

    Parameters:
        grad_out: Gradient of the loss with respect to the forward's output. (Array, shape as input)
        input: Input of the forward. (Array, shape [A1, ..., Ai, R1, ..., Rk], rank 1 to 8)
        normalized_shape: [R1, ..., Rk], 1 to 8 numbers. (int | Sequence[int] | Array)
        mean: Mean of each row, from the forward. (Array, shape M elements, usually [A1, ..., Ai, 1, ..., 1])
        rstd: 1 / sqrt(variance + eps) of each row, from the forward. (Array, shape as mean)
        weight: Weight of the forward; null: all ones. (Array or None, shape [R1, ..., Rk])
        bias: Bias of the forward; not read. (Array or None, shape [R1, ..., Rk])
        output_mask: Which of the three outputs are computed. (Sequence[bool] | Array)

    Returns:
        grad_input: Gradient with respect to input. (shape as input)
        grad_weight: Gradient with respect to weight. (shape N elements, usually [R1, ..., Rk])
        grad_bias: Gradient with respect to bias. (shape as gradWeightOut)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate, ... for one to leave out that may be null.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    normalizedShape is the last dimensions of input, and everything is a matrix [M, N]: N its product, M rows.
    Without weight g is gradOut; bias is not read. An output whose mask is false is ignored altogether: it may be
    null, is not touched, and the functional form returns None for it. Results are computed once and rounded once,
    in each output's own dtype; where they are allocated, gradWeight and gradBias have the dtypes of weight and
    bias (of the other where there is only one, else FLOAT, DOUBLE for DOUBLE input). Strided and empty tensors
    are fine: without rows gradWeight and gradBias are 0. ascend-950 is as atlas-a3: the errors that the page
    aclnnLayerNormBackward of the public repository cann/ops-nn lists are the same for both. host also takes
    DOUBLE and any mix of floating dtypes.

    Dtypes:
        grad_out FLOAT, input FLOAT, mean FLOAT/FLOAT16/BFLOAT16, rstd FLOAT/FLOAT16/BFLOAT16, weight FLOAT, bias
            FLOAT/FLOAT16/BFLOAT16, grad_input_out FLOAT/FLOAT16/BFLOAT16, grad_weight_out FLOAT/FLOAT16/BFLOAT16,
            grad_bias_out FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        grad_out FLOAT16, input FLOAT16, mean FLOAT/FLOAT16/BFLOAT16, rstd FLOAT/FLOAT16/BFLOAT16, weight
            FLOAT/FLOAT16, bias FLOAT/FLOAT16/BFLOAT16, grad_input_out FLOAT/FLOAT16/BFLOAT16, grad_weight_out
            FLOAT/FLOAT16/BFLOAT16, grad_bias_out FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_out BFLOAT16, input BFLOAT16, mean FLOAT/FLOAT16/BFLOAT16, rstd FLOAT/FLOAT16/BFLOAT16, weight
            FLOAT/BFLOAT16, bias FLOAT/FLOAT16/BFLOAT16, grad_input_out FLOAT/FLOAT16/BFLOAT16, grad_weight_out
            FLOAT/FLOAT16/BFLOAT16, grad_bias_out FLOAT/FLOAT16/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_out FLOAT, input FLOAT, mean FLOAT/FLOAT16, rstd FLOAT/FLOAT16, weight FLOAT, bias FLOAT/FLOAT16,
            grad_input_out FLOAT/FLOAT16, grad_weight_out FLOAT/FLOAT16, grad_bias_out FLOAT/FLOAT16
            (atlas-inference, atlas-training)
        grad_out FLOAT16, input FLOAT16, mean FLOAT/FLOAT16, rstd FLOAT/FLOAT16, weight FLOAT/FLOAT16, bias
            FLOAT/FLOAT16, grad_input_out FLOAT/FLOAT16, grad_weight_out FLOAT/FLOAT16, grad_bias_out
            FLOAT/FLOAT16 (atlas-inference, atlas-training)
        grad_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, input FLOAT/FLOAT16/DOUBLE/BFLOAT16, mean
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, rstd FLOAT/FLOAT16/DOUBLE/BFLOAT16, weight
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, bias FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_input_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_weight_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, grad_bias_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: gradOut, input, normalizedShape, mean, rstd or outputMask is null; an
            output whose mask is true is null.
        161002 ACLNN_ERR_PARAM_INVALID: an outputMask that has not 3 entries, which is looked at before any
            output; a dtype that no row of the table has in that place; a combination that is no row; a private
            format; a view outside its storage; an output that overlaps another tensor other than exactly;
            normalizedShape of no or more than 8 numbers or not the last dimensions of input; shapes that do not
            match.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnLayerNormBackward in CANN's aclnn library.
    """

def log_softmax(
    x: _Array,
    dim: int = -1,
    *,
    out: _Array | None = None,
) -> _Array:
    """The logarithm of softmax along a dimension.

    Formula:
        out = (self - max(self)) - log(sum(exp(self - max(self))))          maximum and sum along dim

    Parameters:
        x: What is normalized. (Array, shape [A1, ..., An], rank 0 to 8)
        dim: The dimension, from -n to n - 1. (int)

    Returns:
        out: The result. (shape as self)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided and empty tensors are fine. out may have another dtype than self.

    Dtypes:
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950, host)
        x FLOAT/FLOAT16/DOUBLE, out FLOAT/FLOAT16/DOUBLE (atlas-inference, atlas-training)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: self or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; a private format; a view outside its storage; an
            output that overlaps self other than exactly; shapes that differ; dim.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnLogSoftmax in CANN's aclnn library.
    """

def log_softmax_backward(
    grad_output: _Array,
    output: _Array,
    dim: int = -1,
    *,
    out: _Array | None = None,
) -> _Array:
    """Gradient of log softmax along a dimension.

    Formula:
        out = gradOutput - exp(output) * sum(gradOutput)          sum along dim

    Parameters:
        grad_output: Gradient of the loss with respect to the forward's result. (Array, shape [A1, ..., An], rank
            0 to 8)
        output: The forward's result, log softmax. (Array, shape as gradOutput)
        dim: The dimension, from -n to n - 1. (int)

    Returns:
        out: Gradient with respect to the forward's input. (shape as gradOutput)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided and empty tensors are fine. out may have another dtype than the inputs, also DOUBLE. host also takes
    inputs in DOUBLE and in any mix of floating dtypes.

    Dtypes:
        grad_output FLOAT, output FLOAT, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_output FLOAT, output FLOAT, out FLOAT/FLOAT16/DOUBLE (atlas-inference, atlas-training)
        grad_output FLOAT16, output FLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_output FLOAT16, output FLOAT16, out FLOAT/FLOAT16/DOUBLE (atlas-inference, atlas-training)
        grad_output BFLOAT16, output BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_output FLOAT/FLOAT16/DOUBLE/BFLOAT16, output FLOAT/FLOAT16/DOUBLE/BFLOAT16, out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: gradOutput, output or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; gradOutput and output of different ones; a
            private format; a view outside its storage; an output that overlaps another tensor other than exactly;
            shapes that differ; dim.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnLogSoftmaxBackward in CANN's aclnn library.
    """

def nsa_compress(
    input: _Array,
    weight: _Array,
    act_seq_len: int | Sequence[int] | _SupportsDlpack | None = None,
    *,
    layout: str | None = "TND",
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    out: _Array | None = None,
) -> _Array:
    """The compression of native sparse attention: windows of tokens, each reduced to one by a learned weight.

    Formula:
        output[c, n, :] = sum over w < W of weight[w, n] * input[start(c) + w, n, :]

    Parameters:
        input: Tokens of all sequences, one sequence after the other. (Array, shape [T, N, D])
        weight: Weight of each position and head. (Array, shape [W, N])
        act_seq_len: Where the sequences end, not decreasing, the last at T; empty, and on host null: one
            sequence. (int | Sequence[int] | Array or None)
        layout: 'TND' or null. (str or None)
        compress_block_size: W, tokens in a window. (int)
        compress_stride: S, tokens from one window to the next. (int)
        act_seq_len_type: 0: the numbers are cumulative; 1, on host only: each sequence's length. (int)

    Returns:
        output: One token for each window. (shape [windows, N, D])
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Windows of W = compressBlockSize tokens, one every S = compressStride, in each sequence of len tokens: 0 if
    len < W, else (len - W) / S + 1. c numbers the windows of all sequences, start(c) is the first token of window
    c. W and S are multiples of 16, W >= S, and D is a multiple of 16. host also takes FLOAT and DOUBLE, any W and
    S from 1, any D, actSeqLenType 1, lengths that end before T, empty tensors, and no windows at all.

    Dtypes:
        input FLOAT16, weight FLOAT16, output FLOAT16 (atlas-a2-training, host)
        input BFLOAT16, weight BFLOAT16, output BFLOAT16 (atlas-a2-training, host)
        input FLOAT, weight FLOAT, output FLOAT (host)
        input DOUBLE, weight DOUBLE, output DOUBLE (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: input, weight or output is null; on Atlas products actSeqLenOptional is
            null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly; layoutOptional
            neither null nor 'TND'; weight that is not [W, N].
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks, which are looked at first; W, S, D, actSeqLenType; lengths
            that are negative, decrease or do not end at T; output whose first dimension is not the number of
            windows; on Atlas products an empty tensor.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnNsaCompress in CANN's aclnn library.
    """

def nsa_compress_grad(
    output_grad: _Array,
    input: _Array,
    weight: _Array,
    act_seq_len: int | Sequence[int] | _SupportsDlpack | None = None,
    *,
    compress_block_size: int,
    compress_stride: int,
    act_seq_len_type: int = 0,
    layout: str | None = "TND",
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array]:
    """Gradients of the compression of native sparse attention with respect to its input and its weight.

    Formula:
        weightGrad[w, n]   = sum over c, d of outputGrad[c, n, d] * input[start(c) + w, n, d]
        inputGrad[t, n, :] = sum over (c, w) with start(c) + w = t of weight[w, n] * outputGrad[c, n, :]

    Parameters:
        output_grad: Gradient of the loss with respect to the forward's output. (Array, shape [windows, N, D])
        input: Input of the forward. (Array, shape [T, N, D])
        weight: Weight of the forward. (Array, shape [W, N])
        act_seq_len: Where the sequences end, not decreasing, the last at T; null or empty: one sequence. (int |
            Sequence[int] | Array or None)
        compress_block_size: W, tokens in a window. (int)
        compress_stride: S, tokens from one window to the next. (int)
        act_seq_len_type: 0: the numbers are cumulative; 1, on host only: each sequence's length. (int)
        layout: 'TND' or null. (str or None)

    Returns:
        input_grad: Gradient with respect to input. (shape as input)
        weight_grad: Gradient with respect to weight. (shape as weight)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Windows of W = compressBlockSize tokens, one every S = compressStride, in each sequence of len tokens: 0 if
    len < W, else (len - W) / S + 1. c numbers the windows of all sequences, start(c) is the first token of window
    c. Tokens that no window covers get 0. W and S are multiples of 16, W > S, and D is a multiple of 16. host
    also takes FLOAT and DOUBLE, any W and S from 1, any D, actSeqLenType 1, lengths that end before T, empty
    tensors, and no windows at all.

    Dtypes:
        output_grad FLOAT16, input FLOAT16, weight FLOAT16, input_grad FLOAT16, weight_grad FLOAT16
            (atlas-a2-training, host)
        output_grad BFLOAT16, input BFLOAT16, weight BFLOAT16, input_grad BFLOAT16, weight_grad BFLOAT16
            (atlas-a2-training, host)
        output_grad FLOAT, input FLOAT, weight FLOAT, input_grad FLOAT, weight_grad FLOAT (host)
        output_grad DOUBLE, input DOUBLE, weight DOUBLE, input_grad DOUBLE, weight_grad DOUBLE (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: outputGrad, input, weight, inputGrad or weightGrad is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly; layoutOptional
            neither null nor 'TND'; weight that is not [W, N].
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks, which are looked at first; W, S, D, actSeqLenType; lengths
            that are negative, decrease or do not end at T; outputGrad whose first dimension is not the number of
            windows; on Atlas products an empty tensor.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnNsaCompressGrad in CANN's aclnn library.
    """

def rms_norm(
    x: _Array,
    gamma: _Array,
    epsilon: float = 1e-06,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array]:
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
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma has the last dimensions of x; the rest counts the rows. Where rstd is allocated it is FLOAT, DOUBLE for
    DOUBLE input, and has x's rank with 1 for each dimension of gamma. Strided and empty tensors are fine, but for
    an empty gamma on ascend-950, where rstd must have x's rank: so says the page aclnnRmsNorm of the public
    repository cann/ops-nn, the one document that has it. host also takes DOUBLE and any mix of floating dtypes
    for gamma and the outputs.

    Dtypes:
        x FLOAT16, gamma FLOAT, y_out FLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        x BFLOAT16, gamma FLOAT, y_out BFLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        x FLOAT16, gamma FLOAT16, y_out FLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            atlas-inference, ascend-950)
        x FLOAT, gamma FLOAT, y_out FLOAT, rstd_out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            atlas-inference, ascend-950)
        x BFLOAT16, gamma BFLOAT16, y_out BFLOAT16, rstd_out FLOAT (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
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
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; a negative epsilon; on ascend-950 an empty gamma.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnRmsNorm in CANN's aclnn library.
    """

def rms_norm_grad(
    dy: _Array,
    x: _Array,
    rstd: _Array,
    gamma: _Array,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array]:
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
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    gamma has the last dimensions of x, and everything is a matrix [M, N]: N elements of gamma, M rows.
    atlas-inference does not take infinities or NaN in its inputs; phase 1 cannot see that. ascend-950 also takes
    empty tensors (dgamma is then 0) and strided inputs, x of rank 2 to 8, rstd and gamma of rank 1 to 7: so says
    the page aclnnRmsNormGrad of the public repository cann/ops-nn, the one document that has it. host also takes
    DOUBLE, any mix of floating dtypes for rstd, gamma and the outputs, empty tensors and strided ones.

    Dtypes:
        dy FLOAT16, x FLOAT16, rstd FLOAT, gamma FLOAT, dx_out FLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        dy BFLOAT16, x BFLOAT16, rstd FLOAT, gamma FLOAT, dx_out BFLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        dy FLOAT16, x FLOAT16, rstd FLOAT, gamma FLOAT16, dx_out FLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        dy FLOAT, x FLOAT, rstd FLOAT, gamma FLOAT, dx_out FLOAT, dgamma_out FLOAT (atlas-a3, atlas-a2-training,
            atlas-a2-inference, atlas-inference, ascend-950)
        dy BFLOAT16, x BFLOAT16, rstd FLOAT, gamma BFLOAT16, dx_out BFLOAT16, dgamma_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
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
        561002 ACLNN_ERR_INNER_TILING_ERROR: ranks and shapes; on the Atlas products an empty tensor or a
            non-contiguous input, and on atlas-inference a last axis of dy, x or gamma shorter than 32 bytes.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnRmsNormGrad in CANN's aclnn library.
    """

def rotary_position_embedding(
    x: _Array,
    cos: _Array,
    sin: _Array,
    mode: int = 0,
    *,
    out: _Array | None = None,
) -> _Array:
    """Rotary position embedding: each pair of a row's elements turned by an angle of its own.

    Formula:
        out_a = x_a * cos_a - x_b * sin_a        a, b: the two members of each pair
        out_b = x_b * cos_b + x_a * sin_b

    Parameters:
        x: What is turned: rows of D = 2 P elements. (Array, shape [B, S, N, 2 P])
        cos: Cosines of the angles. (Array, shape [B or 1, S or 1, N or 1, 2 P]; on atlas-a3, atlas-a2-training
            and atlas-a2-inference as a layout has it)
        sin: Sines of the angles. (Array, shape as cos)
        mode: Where the two members of a pair are: 0 at i and i + D/2 (half), 1 at 2 i and 2 i + 1 (interleave), 2
            as 0 in each half of the row (quarter), 3 as 1 in x and as 0 in all others (interleave-half). On Atlas
            products 0 and 1. (int)

    Returns:
        out: The result. (shape as x)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    The mode tells where the members of a pair are. cos and sin are broadcast along the dimensions in which they
    have size 1. Strided and empty tensors are fine. On Atlas products the shapes are those of the layouts BNSD,
    BSND, SBND and TND: cos and sin have size 1 for the heads or for batch and heads or for none, in mode 1 for
    both; D is less than 896, batch and heads less than 1000, in mode 1 their product. ascend-950 takes rank 4
    with cos and sin of size 1 wherever, TND with those of each token, and D up to 1024. host takes any rank from
    1 to 8, any sizes, cos and sin of size 1 wherever, DOUBLE, and any mix of floating dtypes.

    Dtypes:
        x FLOAT, cos FLOAT, sin FLOAT, out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x FLOAT16, cos FLOAT16, sin FLOAT16, out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        x BFLOAT16, cos BFLOAT16, sin BFLOAT16, out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950)
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, cos FLOAT/FLOAT16/DOUBLE/BFLOAT16, sin FLOAT/FLOAT16/DOUBLE/BFLOAT16, out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: x, cos, sin or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly.
        561002 ACLNN_ERR_INNER_TILING_ERROR: shapes, and mode.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnRotaryPositionEmbedding in CANN's aclnn library.
    """

def rotary_position_embedding_grad(
    dy: _Array,
    cos: _Array,
    sin: _Array,
    x: _Array | None = None,
    mode: int = 0,
    *,
    out: Sequence[_Array | None] | None = None,
) -> tuple[_Array, _Array, _Array]:
    """Gradients of rotary position embedding with respect to its input, and to the cosines and sines.

    Formula:
        dx_a   = dy_a * cos_a + dy_b * sin_b              a, b: the two members of each pair
        dx_b   = dy_b * cos_b - dy_a * sin_a
        dcos   = sum over what cos is broadcast to of dy * x
        dsin_a = sum over the same of -dy_a * x_b
        dsin_b = sum over the same of dy_b * x_a

    Parameters:
        dy: Gradient of the loss with respect to the forward's result. (Array, shape [B, S, N, 2 P])
        cos: Cosines of the forward. (Array, shape [B or 1, S or 1, N or 1, 2 P]; on atlas-a3, atlas-a2-training
            and atlas-a2-inference as a layout has it)
        sin: Sines of the forward. (Array, shape as cos)
        x: Input of the forward; null: dcos and dsin are not computed. (Array or None, shape as dy)
        mode: Where the two members of a pair are: 0 at i and i + D/2 (half), 1 at 2 i and 2 i + 1 (interleave), 2
            as 0 in each half of the row (quarter), 3 as 1 in x and as 0 in all others (interleave-half). On Atlas
            products 0 and 1. (int)

    Returns:
        dx: Gradient with respect to x. (shape as dy)
        dcos: Gradient with respect to cos. (shape as cos)
        dsin: Gradient with respect to sin. (shape as cos)
        Arrays of the first argument's library; with `out`, a tuple of arrays to write to, None for one to
            allocate.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Without x, which is optional, dcos and dsin are not computed: their tensors are neither checked nor written,
    but on Atlas products they must be given. The mode tells where the members of a pair are; in mode 3 dcos is
    the sum of dy and of x's members one half after the other. Strided and empty tensors are fine: where nothing
    is summed dcos and dsin are 0. On Atlas products the shapes are those of the forward, and with x batch * heads
    is at most 1024 in mode 0, but for ascend-950. host takes any rank from 1 to 8, any sizes, cos and sin of size
    1 wherever, DOUBLE, and any mix of floating dtypes.

    Dtypes:
        dy FLOAT, cos FLOAT, sin FLOAT, x FLOAT, dx_out FLOAT, dcos_out FLOAT, dsin_out FLOAT (atlas-a3,
            atlas-a2-training, atlas-a2-inference, ascend-950)
        dy FLOAT16, cos FLOAT16, sin FLOAT16, x FLOAT16, dx_out FLOAT16, dcos_out FLOAT16, dsin_out FLOAT16
            (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        dy BFLOAT16, cos BFLOAT16, sin BFLOAT16, x BFLOAT16, dx_out BFLOAT16, dcos_out BFLOAT16, dsin_out BFLOAT16
            (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        dy FLOAT/FLOAT16/DOUBLE/BFLOAT16, cos FLOAT/FLOAT16/DOUBLE/BFLOAT16, sin FLOAT/FLOAT16/DOUBLE/BFLOAT16, x
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dx_out FLOAT/FLOAT16/DOUBLE/BFLOAT16, dcos_out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16, dsin_out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: dy, cos, sin, dxOut, dcosOut or dsinOut is null; on host without x the
            last two may be.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly.
        561002 ACLNN_ERR_INNER_TILING_ERROR: shapes, and mode.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnRotaryPositionEmbeddingGrad in CANN's aclnn library.
    """

def scaled_masked_softmax(
    x: _Array,
    mask: _Array | None,
    scale: float = 1.0,
    fix_triu_mask: bool = False,
    *,
    out: _Array | None = None,
) -> _Array:
    """Softmax over the last axis of a scaled input, some positions masked.

    Formula:
        z = -10000       where mask is true
        z = scale * x    elsewhere
        y = exp(z - max(z)) / sum(exp(z - max(z)))

    Parameters:
        x: Input, such as attention scores. (Array, shape [B, N, S1, S2], S2 from 1 to 4096)
        mask: True where x is masked; on host null masks nothing. (Array or None, shape [B or 1, N or 1, S1, S2])
        scale: What x is multiplied by. (float)
        fix_triu_mask: Mask what lies above the diagonal instead; on host only. (bool)

    Returns:
        y: The softmax. (shape as x)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    A row that is masked as a whole gives equal numbers. Strided and empty tensors are fine. ascend-950, of which
    the page aclnnScaledMaskedSoftmax of the public repository cann/ops-nn says nothing and the operator's
    definition there does, is as atlas-a3. host also takes DOUBLE, any rank from 1, any length of the last axis,
    any mask that broadcasts, no mask (None: nothing is masked), and fixTriuMask true: mask is then ignored, and
    element (i, j) of the last two axes masked where j > i.

    Dtypes:
        x FLOAT, mask BOOL, y FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950, host)
        x FLOAT16, mask BOOL, y FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950, host)
        x BFLOAT16, mask BOOL, y BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950, host)
        x DOUBLE, mask BOOL, y DOUBLE (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: x, mask or y is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly; shapes;
            fixTriuMask true, but for host.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnScaledMaskedSoftmax in CANN's aclnn library.
    """

def scaled_masked_softmax_backward(
    grad_output: _Array,
    y: _Array,
    mask: _Array | None,
    scale: float = 1.0,
    fix_triu_mask: bool = False,
    *,
    out: _Array | None = None,
) -> _Array:
    """Gradient of the scaled, masked softmax with respect to its input.

    Formula:
        out = 0                                                       where mask is true
        out = scale * (gradOutput * y - y * sum(gradOutput * y))      elsewhere

    Parameters:
        grad_output: Gradient of the loss with respect to the forward's output. (Array, shape [B, N, S1, S2], S2
            from 0 to 4096)
        y: Output of the forward. (Array, shape as gradOutput)
        mask: True where the forward masked; on host null masks nothing. (Array or None, shape [B or 1, N or 1,
            S1, S2])
        scale: The forward's scale. (float)
        fix_triu_mask: Mask what lies above the diagonal instead; on host only. (bool)

    Returns:
        out: Gradient with respect to the forward's input. (shape as gradOutput)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    The sum runs over the whole last axis, masked positions included: a NaN there makes the rest of its row NaN.
    Where mask is true the result is 0, whatever gradOutput and y hold. Strided and empty tensors are fine.
    ascend-950, of which the page aclnnScaledMaskedSoftmaxBackward of the public repository cann/ops-nn says
    nothing and the operator's definition there does, is as atlas-a3. host also takes DOUBLE, any rank from 1, any
    length of the last axis, any mask that broadcasts, no mask (None: nothing is masked), and fixTriuMask true:
    mask is then ignored, and element (i, j) of the last two axes masked where j > i.

    Dtypes:
        grad_output FLOAT, y FLOAT, mask BOOL, out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950, host)
        grad_output FLOAT16, y FLOAT16, mask BOOL, out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference,
            ascend-950, host)
        grad_output BFLOAT16, y BFLOAT16, mask BOOL, out BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950, host)
        grad_output DOUBLE, y DOUBLE, mask BOOL, out DOUBLE (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: gradOutput, y, mask or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly; shapes;
            fixTriuMask true, but for host.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnScaledMaskedSoftmaxBackward in CANN's aclnn library.
    """

def softmax(
    x: _Array,
    dim: int = -1,
    *,
    out: _Array | None = None,
) -> _Array:
    """Softmax along a dimension.

    Formula:
        out = exp(self - max(self)) / sum(exp(self - max(self)))          maximum and sum along dim

    Parameters:
        x: What is normalized. (Array, shape [A1, ..., An], rank 0 to 8)
        dim: The dimension, from -n to n - 1. (int)

    Returns:
        out: The result. (shape as self)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided and empty tensors are fine. out may have another dtype than self.

    Dtypes:
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950, host)
        x FLOAT/FLOAT16/DOUBLE, out FLOAT/FLOAT16/DOUBLE (atlas-200i-500-a2, atlas-inference, atlas-training)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: self or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; a private format; a view outside its storage; an
            output that overlaps self other than exactly; shapes that differ; dim.

    Source: the documentation of aclnnSoftmax in CANN's aclnn library.
    """

def softmax_backward(
    grad_output: _Array,
    output: _Array,
    dim: int = -1,
    *,
    out: _Array | None = None,
) -> _Array:
    """Gradient of softmax along a dimension.

    Formula:
        out = gradOutput * output - sum(gradOutput * output) * output          sum along dim

    Parameters:
        grad_output: Gradient of the loss with respect to the forward's result. (Array, shape [A1, ..., An], rank
            0 to 8)
        output: The forward's result, softmax. (Array, shape as gradOutput)
        dim: The dimension, from -n to n - 1. (int)

    Returns:
        out: Gradient with respect to the forward's input. (shape as gradOutput)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided and empty tensors are fine. out may have another dtype than the inputs, also DOUBLE. host also takes
    inputs in DOUBLE and in any mix of floating dtypes.

    Dtypes:
        grad_output FLOAT, output FLOAT, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_output FLOAT, output FLOAT, out FLOAT/FLOAT16/DOUBLE (atlas-inference, atlas-training)
        grad_output FLOAT16, output FLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_output FLOAT16, output FLOAT16, out FLOAT/FLOAT16/DOUBLE (atlas-inference, atlas-training)
        grad_output BFLOAT16, output BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (atlas-a3, atlas-a2-training,
            atlas-a2-inference, ascend-950)
        grad_output FLOAT/FLOAT16/DOUBLE/BFLOAT16, output FLOAT/FLOAT16/DOUBLE/BFLOAT16, out
            FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: gradOutput, output or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table; gradOutput and output of different ones; a
            private format; a view outside its storage; an output that overlaps another tensor other than exactly;
            shapes that differ; dim.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnSoftmaxBackward in CANN's aclnn library.
    """

def swi_glu(
    x: _Array,
    dim: int = -1,
    *,
    out: _Array | None = None,
) -> _Array:
    """The gated unit of Llama and others: swish of one half of x, times the other half.

    Formula:
        out = a * sigmoid(a) * b        a, b: the first and second half of x along dim

    Parameters:
        x: Both halves along dim, here the last dimension. (Array, shape [A1, ..., An, 2 H], rank 1 to 8; on
            atlas-inference H has whole 64 bytes)
        dim: Dimension of x that is cut in two, from -n to n - 1. (int)

    Returns:
        out: The result. (shape [A1, ..., An, H])
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided and empty tensors are fine, the latter but for atlas-inference. There half of what dim and the
    dimensions after it have must also be a multiple of 64 bytes. host also takes DOUBLE and any mix of floating
    dtypes.

    Dtypes:
        x FLOAT, out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        x FLOAT16, out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference, ascend-950)
        x BFLOAT16, out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        x FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16 (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: x or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor; dim; a size along dim that is odd;
            shapes; on atlas-inference an empty tensor, and halves that are no multiple of 64 bytes.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnSwiGlu in CANN's aclnn library.
    """

def swi_glu_grad(
    y_grad: _Array,
    x: _Array,
    dim: int = -1,
    *,
    out: _Array | None = None,
) -> _Array:
    """Gradient of SwiGLU with respect to its input.

    Formula:
        sig   = sigmoid(a)                      a, b: the first and second half of x along dim
        out_a = yGrad * (sig + sig * (1 - sig) * a) * b
        out_b = yGrad * sig * a                 out_a, out_b: the halves of out

    Parameters:
        y_grad: Gradient of the loss with respect to the forward's result. (Array, shape [A1, ..., An, H])
        x: Input of the forward. (Array, shape [A1, ..., An, 2 H], rank 1 to 8; on atlas-inference H has whole 64
            bytes)
        dim: Dimension of x that the forward cut in two, from -n to n - 1. (int)

    Returns:
        out: Gradient with respect to x. (shape as x)
        Arrays of the first argument's library; with `out`, the array to write to.

    Works as the product `host`: no restriction but mathematics. Raises AclnnError (a ValueError for wrong
    values, a MemoryError where there is no memory), TypeError for wrong types.

    Strided tensors are fine. Empty ones are refused but for host. On atlas-inference half of what dim and the
    dimensions after it have must be a multiple of 64 bytes. host also takes DOUBLE and any mix of floating
    dtypes.

    Dtypes:
        y_grad FLOAT, x FLOAT, out FLOAT (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference,
            ascend-950)
        y_grad FLOAT16, x FLOAT16, out FLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, atlas-inference,
            ascend-950)
        y_grad BFLOAT16, x BFLOAT16, out BFLOAT16 (atlas-a3, atlas-a2-training, atlas-a2-inference, ascend-950)
        y_grad FLOAT/FLOAT16/DOUBLE/BFLOAT16, x FLOAT/FLOAT16/DOUBLE/BFLOAT16, out FLOAT/FLOAT16/DOUBLE/BFLOAT16
            (host)

    Errors:
        161001 ACLNN_ERR_PARAM_NULLPTR: yGrad, x or out is null.
        161002 ACLNN_ERR_PARAM_INVALID: dtypes outside the table or different from each other; a private format; a
            view outside its storage; an output that overlaps another tensor other than exactly; dim; a size along
            dim that is odd; shapes; but for host an empty tensor; on atlas-inference halves that are no multiple
            of 64 bytes.
        561003 ACLNN_ERR_INNER_FIND_KERNEL_ERROR: the product has no such operator.

    Source: the documentation of aclnnSwiGluGrad in CANN's aclnn library.
    """
