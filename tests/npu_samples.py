"""PyTorch's own samples of its operators (OpInfo), on device npu and on the CPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

# Operators whose results have no defined values: uninitialised memory.
EMPTY = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# Device npu has random numbers of its own; test_npu_programs.py tests them.
RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform", "rand_like"),
    *("randint", "randint_like", "randn", "randn_like", "pca_lowrank", "svd_lowrank"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout"),
    *("nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d"),
    *("nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "nn.functional.rrelu"),
}
# Different from PyTorch's CPU: Descend's own operators, a device as argument, indices that must be on the CPU.
APART = {
    "native_layer_norm",
    "nn.functional.layer_norm",
    "native_group_norm",
    "nn.functional.group_norm",
    "nn.functional.gelu",  # by tanh on the device
    "to",
    "tensor_split",
    "nn.functional.scaled_dot_product_attention",
}
ALL = {op.name for op in op_db}


def always(op: Any) -> bool:
    return True


FITS: dict[str, Callable[[Any], bool]] = {
    "gradients": lambda op: op.supports_autograd,
    "out": lambda op: op.supports_out,
}


@dataclass(frozen=True)
class Sample:
    """One call of an operator, as a function of its tensors and other arguments."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    named: dict[str, Any]
    broadcasts: bool

    def run(self, **more: Any) -> Any:
        return self.function(*self.args, **self.named, **more)

    def on(self, device: str) -> Sample:
        """The same call on copies of the tensors."""
        named = {k: device if k == "device" else v for k, v in self.named.items()}
        args, named = tree_map_only(Tensor, functools.partial(copied_to, device), (self.args, named))
        return Sample(self.name, self.function, args, named, self.broadcasts)

    def device(self) -> str:
        """Where its tensors are, or what it makes is to be."""
        found = [t.device.type for t in self.tensors()] or [str(self.named.get("device", "cpu"))]
        return found[0]

    def tensors(self) -> list[Tensor]:
        return tensors((self.args, self.named))


def tensors(results: Any) -> list[Tensor]:
    return [t for t in tree_leaves(results) if isinstance(t, Tensor)]


def samples(dtype: torch.dtype, kind: str, few: int) -> Iterator[Sample]:
    """A few samples of each operator. ``kind``: what is compared.

    It is values, non-contiguous, random (operators with random numbers), gradients, in-place or out.
    """
    for op in op_db:
        function = op.inplace_variant if kind == "in-place" else op
        left_out = EMPTY | APART | (ALL - RANDOM if kind == "random" else RANDOM)
        if op.name in left_out or dtype not in op.dtypes or function is None or not FITS.get(kind, always)(op):
            continue
        torch.manual_seed(0)
        # op.sample_inputs would ask for the stack at each sample, which takes most of the time within pytest.
        found = op.sample_inputs_func(op, "cpu", dtype, kind == "gradients")
        for sample in itertools.islice(found, few):
            if kind == "non-contiguous":
                if any(t.layout is not torch.strided for t in tensors((sample.input, sample.args, sample.kwargs))):
                    continue
                sample = sample.noncontiguous()
            name = f"{op.name} {op.variant_test_name}".strip()
            yield Sample(name, function, (sample.input, *sample.args), sample.kwargs, sample.broadcasts_input)


def copied_to(device: str, tensor: Tensor) -> Tensor:
    """The tensor on a device, with the same strides, offset and bits, in memory of its own of the same size."""
    if tensor.layout is not torch.strided:
        return tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage(), 0, (count,), (1,))
    there = memory.to(device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    there = there.conj() if tensor.is_conj() else there
    there = torch._neg_view(there) if tensor.is_neg() else there
    return there.detach().requires_grad_(tensor.requires_grad)
