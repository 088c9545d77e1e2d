"""LogSoftmaxBackward along the last dimension: what is measured, and how each peer does the same job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.operator import Call, root_mean_square
from benchmarks.softmax_backward import SoftmaxBackward

if TYPE_CHECKING:
    from torch import Tensor


class LogSoftmaxBackward(SoftmaxBackward):
    """Rows and columns of all tensors."""

    name = "log_softmax_backward"
    forward = "log_softmax"
    picture = None  # the README has the masked one

    def terms(self, dy: Any, y: Any) -> float:
        """The size of what the difference is of."""
        return root_mean_square(dy)

    def formula(self, dy: Tensor, y: Tensor) -> Tensor:
        """The operator as one would write it in PyTorch, computed in float32."""
        wide = dy.float()
        return (wide - y.float().exp() * wide.sum(-1, keepdim=True)).to(y.dtype)

    def jax_formula(self, dy: Any, y: Any) -> Call:
        """The same formula in JAX."""
        import jax.numpy as jnp

        from benchmarks.frameworks import jitted

        def backward(dy: Any, y: Any) -> Any:
            wide = dy.astype(jnp.float32)
            return (wide - jnp.exp(y.astype(jnp.float32)) * wide.sum(-1, keepdims=True)).astype(y.dtype)

        return jitted(backward, dy, y)


OPERATOR = LogSoftmaxBackward()
