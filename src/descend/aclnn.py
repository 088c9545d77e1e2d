"""The two-phase API, as the documents have it: two functions an operator.

    size, executor = aclnn.rms_norm_grad_get_workspace_size(dy, x, rstd, gamma, dx_out, dgamma_out)
    workspace = acl.malloc(size)
    stream = acl.Stream()
    aclnn.rms_norm_grad(workspace, size, executor, stream)
    stream.synchronize()

Parameters are named and ordered as in the documents, in snake_case; null is None; outputs are passed in. The first
phase reads only metadata and checks the whole contract of the current product (`descend.acl.set_product`); a status
other than 0 raises `AclnnError` with the status, its name and a sentence. `portability` asks every product at once.

CUDA tensors of PyTorch take the same way: the workspace is then a tensor on their device (or an address there), the
stream a `torch.cuda.Stream`, or None for the current one.
"""

from __future__ import annotations

from descend import errors as _errors
from descend._generate import get_workspace_size as _get_workspace_size
from descend._generate import launch as _launch
from descend._native import Executor
from descend.contract import OPERATORS as _OPERATORS
from descend.portability import TensorSpec, Verdict, portability

AclnnError = _errors.AclnnError

for _operator in _OPERATORS.values():
    globals()[f"{_operator.name}_get_workspace_size"] = _get_workspace_size(_operator)
    globals()[_operator.name] = _launch(_operator)
del _operator

__all__ = [
    "AclnnError",
    "Executor",
    "TensorSpec",
    "Verdict",
    "portability",
    *(n for o in _OPERATORS for n in (f"{o}_get_workspace_size", o)),
]
