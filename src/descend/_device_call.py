"""What the kernels for CUDA tensors share with those who call them, and so know nothing of either."""

from __future__ import annotations

from typing import Any

from descend.errors import from_status


class Executor:
    """A call of CUDA tensors that phase 1 has prepared; its members are those of `descend.aclnn.Executor`."""

    def launch(self, name: str, workspace: Any, workspace_size: Any, stream: Any) -> None:
        """Phase 2 of operator ``name``."""
        raise NotImplementedError


def refuse_gradients(name: str, parameter: str, tensor: Any) -> None:
    """Raises AclnnError for a tensor whose gradients or forward-mode tangent a call would lose."""
    import torch
    from torch.autograd import forward_ad

    if tensor.requires_grad and torch.is_grad_enabled():
        why = (
            "requires gradients, which this call would not record; descend.torch's function of the same name does; "
            "else call it under torch.no_grad(), or detach() it."
        )
    elif forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        why = "has a forward-mode tangent, which this call would not carry on; detach() it."
    else:
        return
    raise from_status(161002, "ACLNN_ERR_PARAM_INVALID", f"{name}: {parameter} {why}")
