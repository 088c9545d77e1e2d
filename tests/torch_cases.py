"""Calls of the PyTorch operators that the tests share."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import descend.torch
from descend.contract import OPERATORS as TABLES
from descend.contract import Operator
from pages import is_gradient
from row_operator import shapes_of

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def here(tensor: Tensor) -> Tensor:
    """The tensor on the device of the tests (conftest.py): random numbers are made on the CPU, the same for all."""
    return tensor.to(torch.get_default_device())


def draw(shape: Sequence[int], generator: torch.Generator | int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers on the device of the tests, from a generator of the CPU's or a seed."""
    random = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator
    return here(torch.randn(tuple(shape), generator=random, dtype=dtype, device="cpu"))


class Foreign(Tensor):
    """A tensor subclass that handles only PyTorch's own functions, as masked and quantized tensors do."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "namespace", None) == "descend":
            raise TypeError(f"no {function} of a {cls.__name__}")
        return super().__torch_function__(function, types, args, kwargs or {})


@dataclass(frozen=True)
class Call:
    """A call of an operator: positional arguments, and those by keyword."""

    name: str
    args: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)

    @property
    def floats(self) -> list[int]:
        """The places of the floating tensors."""
        return [i for i, a in enumerate(self.args) if isinstance(a, Tensor) and a.is_floating_point()]

    def function(self) -> Callable[..., Any]:
        return getattr(descend.torch, self.name)

    def run(self, *args: Any) -> tuple[Any, ...]:
        """The results, always a tuple, None left in."""
        results = self.function()(*(args or self.args), **self.named)
        return results if isinstance(results, tuple) else (results,)

    def map(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The call with its floating tensors changed."""
        args = tuple(change(a) if i in self.floats else a for i, a in enumerate(self.args))
        return Call(self.name, args, self.named)

    def wanting(self, places: list[int]) -> Call:
        """The call with new leaves, of which those in some places require gradients."""
        leaves = [a.detach().clone() if isinstance(a, Tensor) else a for a in self.args]
        for place in places:
            leaves[place].requires_grad_()
        return Call(self.name, tuple(leaves), self.named)


def calls(dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, Call]:
    """Small calls of every operator, with every kind of argument. Their tensors are the same each time."""
    return made_calls(dtype, seed, torch.get_default_device())


@functools.cache
@torch.inference_mode(False)
def made_calls(dtype: torch.dtype, seed: int, _: torch.device) -> dict[str, Call]:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return here(torch.randn(shape, generator=random, dtype=torch.float64, device="cpu").to(dtype))

    def positive(*shape: int) -> Tensor:
        return here((torch.rand(shape, generator=random, dtype=torch.float64, device="cpu") + 0.5).to(dtype))

    mask = here(torch.rand((2, 1, 3, 5), generator=random, device="cpu") < 0.4)
    mask[0, 0, 0] = True  # a whole row
    y = normal(2, 2, 3, 5).float().softmax(-1).to(dtype)
    classes = here(torch.tensor([1, 3, 0, 4], device="cpu"))
    nsa = {"compress_block_size": 3, "compress_stride": 2}
    made = {
        "rms_norm": Call("rms_norm", (normal(2, 3, 4), normal(4), 1e-3)),
        "rms_norm-two": Call("rms_norm", (normal(3, 2, 2), normal(2, 2))),
        "rms_norm-one row": Call("rms_norm", (normal(6), normal(6))),
        "add_layer_norm": Call(
            "add_layer_norm", (normal(2, 3, 4), normal(2, 3, 4), normal(4), normal(4), normal(4), 1e-3, True)
        ),
        "add_layer_norm-two": Call("add_layer_norm", (normal(3, 4), normal(3, 4), normal(4), normal(4))),
        "add_layer_norm-and sum": Call(
            "add_layer_norm", (normal(3, 4), normal(3, 4), normal(4), normal(4), None, 1e-5, True)
        ),
        "add_layer_norm-three": Call(
            "add_layer_norm", (normal(3, 4), normal(3, 4), normal(4), normal(4), normal(3, 4), 1e-3)
        ),
        "add_layer_norm_grad-of sum": Call(
            "add_layer_norm_grad", (normal(3, 4), normal(3, 4), None, positive(3, 1), normal(3, 1), normal(4))
        ),
        "rms_norm_grad": Call("rms_norm_grad", (normal(2, 3, 4), normal(2, 3, 4), positive(2, 3, 1), normal(4))),
        "rms_norm_grad-flat": Call("rms_norm_grad", (normal(6), normal(6), positive(1), normal(6))),
        "layer_norm": Call("layer_norm", (normal(2, 3, 4), [4], normal(4), normal(4), 1e-3)),
        "layer_norm-plain": Call("layer_norm", (normal(3, 2, 2), [2, 2])),
        "layer_norm-weight": Call("layer_norm", (normal(3, 4), [4], normal(4))),
        "layer_norm-bias": Call("layer_norm", (normal(3, 4), [4], None, normal(4))),
        "layer_norm_backward": Call(
            "layer_norm_backward",
            (normal(2, 3, 4), normal(2, 3, 4), [4], normal(2, 3, 1), positive(2, 3, 1), normal(4), normal(4)),
        ),
        "layer_norm_backward-masked": Call(
            "layer_norm_backward",
            (normal(3, 4), normal(3, 4), [4], normal(3), positive(3), None, None, [True, False, True]),
        ),
        "group_norm": Call("group_norm", (normal(4, 4, 3), normal(4), normal(4), 4, 4, 3, 2)),
        "group_norm-plain": Call("group_norm", (normal(4, 4, 2, 1), None, None, 4, 4, 2, 1, 1e-3)),
        "group_norm-bias": Call("group_norm", (normal(4, 4), None, normal(4), 4, 4, 1, 2)),
        "group_norm_backward": Call(
            "group_norm_backward",
            (normal(4, 4, 3), normal(4, 4, 3), normal(4, 2), positive(4, 2), normal(4), 4, 4, 3, 2),
        ),
        "group_norm_backward-masked": Call(
            "group_norm_backward",
            (normal(8, 3), normal(24), normal(4), positive(4), None, 2, 4, 3, 2, [True, False, True]),
        ),
        "group_norm_silu": Call("group_norm_silu", (normal(2, 4, 3), normal(4), normal(4), 2)),
        "group_norm_silu-plain": Call("group_norm_silu", (normal(2, 4, 2, 1), None, None, 1, 1e-3)),
        "group_norm_swish": Call("group_norm_swish", (normal(2, 4, 3), normal(4), normal(4), 2)),
        "group_norm_swish-scaled": Call(
            "group_norm_swish", (normal(2, 4, 2, 1), normal(4), normal(4), 1, "NCHW", 1e-3, True, 1.7)
        ),
        "group_norm_swish-norm": Call(
            "group_norm_swish", (normal(4, 4, 3), normal(4), normal(4), 2, "NCHW", 1e-5, False)
        ),
        "group_norm_swish_grad": Call(
            "group_norm_swish_grad",
            (normal(2, 4, 3), normal(2, 2), positive(2, 2), normal(2, 4, 3), normal(4), normal(4), 2),
        ),
        "group_norm_swish_grad-masked": Call(
            "group_norm_swish_grad",
            (normal(2, 4), normal(4), positive(4), normal(2, 4), normal(4), normal(4), 2, "NCHW", 0.5, False, True),
        ),
        "cross_entropy_loss": Call("cross_entropy_loss", (normal(4, 5), classes, None, "none", 3, 0.0, 0.3, True)),
        "cross_entropy_loss-mean": Call("cross_entropy_loss", (normal(4, 5), classes, positive(5), "mean", -9, 0.2)),
        "cross_entropy_loss-sum": Call("cross_entropy_loss", (normal(4, 5), classes, None, "sum", -9, 0.2)),
        "cross_entropy_loss_grad": Call(
            "cross_entropy_loss_grad", (normal(1), normal(4, 5).log_softmax(1), classes, positive(5))
        ),
        "cross_entropy_loss_grad-all": Call(
            "cross_entropy_loss_grad",
            (normal(4), normal(4, 5), classes, positive(5), normal(4), normal(4), "none", 3, 0.2, 0.3),
        ),
        "cross_entropy_loss_grad-input": Call(
            "cross_entropy_loss_grad", (normal(1), normal(4, 5), classes, None, None, normal(4, 1), "sum", 3, 0.2)
        ),
        "rotary_position_embedding": Call(
            "rotary_position_embedding", (normal(2, 3, 4), normal(1, 3, 4), normal(1, 3, 4))
        ),
        "rotary_position_embedding-mixed": Call(
            "rotary_position_embedding", (normal(3, 4), normal(3, 4), normal(3, 4), 3)
        ),
        "rotary_position_embedding_grad": Call(
            "rotary_position_embedding_grad",
            (normal(2, 3, 4), normal(1, 3, 4), normal(1, 3, 4), normal(2, 3, 4), 2),
        ),
        "rotary_position_embedding_grad-alone": Call(
            "rotary_position_embedding_grad", (normal(2, 3, 4), normal(2, 1, 4), normal(2, 1, 4), None, 1)
        ),
        "scaled_masked_softmax": Call("scaled_masked_softmax", (normal(2, 2, 3, 5), mask, 0.7)),
        "scaled_masked_softmax-triangle": Call("scaled_masked_softmax", (normal(2, 4, 4), None, 1.0, True)),
        "scaled_masked_softmax_backward": Call("scaled_masked_softmax_backward", (normal(2, 2, 3, 5), y, mask, 0.7)),
        "scaled_masked_softmax_backward-plain": Call(
            "scaled_masked_softmax_backward", (normal(3, 5), normal(3, 5), None)
        ),
        "nsa_compress": Call("nsa_compress", (normal(11, 2, 3), normal(3, 2), [4, 4, 11]), nsa),
        "nsa_compress-one sequence": Call("nsa_compress", (normal(7, 2, 3), normal(3, 2)), nsa),
        "nsa_compress_grad": Call(
            "nsa_compress_grad", (normal(4, 2, 3), normal(11, 2, 3), normal(3, 2), [4, 4, 11]), nsa
        ),
        "nsa_compress_grad-lengths": Call(
            "nsa_compress_grad",
            (normal(4, 2, 3), normal(11, 2, 3), normal(3, 2), [4, 7]),
            {**nsa, "act_seq_len_type": 1},
        ),
        "apply_adam_w_v2": Call(
            "apply_adam_w_v2", (normal(2, 3), normal(2, 3), positive(2, 3), None, normal(2, 3), positive(1), 0.1)
        ),
        "apply_adam_w_v2-amsgrad": Call(
            "apply_adam_w_v2",
            (
                *(normal(3, 4), normal(3, 4), positive(3, 4), positive(3, 4), normal(3, 4), positive(1, 1)),
                *(0.1, 0.9, 0.99, 0.2, 1e-3, True, True),
            ),
        ),
        "gelu_v2-tanh": Call("gelu_v2", (normal(2, 3, 4), 1)),
        "gelu_backward_v2-broadcast": Call("gelu_backward_v2", (normal(3, 1), normal(2, 3, 4), "tanh")),
    }
    for name in sorted(TABLES.keys() - made.keys()):
        made[name] = from_table(TABLES[name], normal, positive)
    return made


def from_table(operator: Operator, normal: Callable[..., Tensor], positive: Callable[..., Tensor]) -> Call:
    """A call of an operator on rows, of shapes that its table says."""
    shapes, args = shapes_of(operator, (2, 3, 4), 1), []
    for p in operator.functional_parameters:
        make = positive if p.python == "rstd" else normal
        args.append(make(*shapes[p.python]) if p.kind == "tensor" else ast.literal_eval(p.default or "None"))
    return Call(operator.name, tuple(args))


NAMES = tuple(calls())
OPERATORS = tuple(name for name in NAMES if "-" not in name)
FORWARDS = tuple(name for name in NAMES if not is_gradient(name))


def present(results: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return tuple(r for r in results if r is not None)


def at(call: Call, places: tuple[int, ...]) -> Callable[..., tuple[Tensor, ...]]:
    """The call as a function of the tensors in some places."""

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(places, values, strict=True))
        return present(call.run(*(given.get(place, arg) for place, arg in enumerate(call.args))))

    return function


def scalar(call: Call) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """A scalar that reads all results, as a function of the floating tensors; and these."""
    function = at(call, tuple(call.floats))
    inputs = tuple(call.args[place] for place in call.floats)
    return lambda *values: functools.reduce(torch.add, ((r * r.cos()).sum() for r in function(*values))), inputs


def assert_all_close(results: Any, expected: Any) -> None:
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)
