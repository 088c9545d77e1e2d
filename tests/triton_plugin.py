"""A pytest plugin: the tests of the CPU kernels, made with the Triton kernels in Triton's interpreter.

``TRITON_INTERPRET=1 pytest -p triton_plugin tests/test_rms_norm_grad.py``. `descend.<operator>` and both phases of a
call on ``host`` run the kernels on the arrays' own memory; what is about something else (products, threads, instruction
sets, streams) and what would take the interpreter too long is left out.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

assert os.environ.get("TRITON_INTERPRET") == "1", "this plugin is for Triton's interpreter: TRITON_INTERPRET=1"

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

import cases  # noqa: E402
import descend  # noqa: E402
import descend.triton  # noqa: E402
from descend import _cuda, acl, aclnn  # noqa: E402
from descend.contract import OPERATORS  # noqa: E402

_convert = interpreter._convert_float


def _rounded(data: Any, source: Any, target: Any, mode: Any) -> Any:
    """The interpreter cuts float32 off at bfloat16's length; devices round to nearest-even."""
    if source == tl.float32 and target == tl.bfloat16:
        return np.ascontiguousarray(data, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    return _convert(data, source, target, mode)


interpreter._convert_float = _rounded


def tensor(array: Any) -> Any:
    """An array as a tensor on the same memory (a copy where PyTorch cannot say its strides); anything else as it is."""
    if not isinstance(array, np.ndarray):
        return array
    if any(s < 0 or s % array.itemsize for s in array.strides):
        array = array.copy()
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array(result: Any) -> Any:
    """A tensor as an array on the same memory."""
    if not isinstance(result, torch.Tensor):
        return result
    if result.dtype is torch.bfloat16:
        return result.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return result.numpy()


def _bring_home(given: Any, written: Any) -> None:
    if isinstance(given, np.ndarray) and not np.shares_memory(given, array(written)):
        given[...] = array(written)


def functional(name: str) -> Callable[..., Any]:
    """``descend.<name>``, on NumPy arrays by the Triton kernels; on tensors still by the engine."""
    names = [p.python for p in OPERATORS[name].functional_parameters]
    engine = getattr(descend, name)

    def call(*args: Any, out: Any = None, **named: Any) -> Any:
        if any(isinstance(value, torch.Tensor) for value in (*args, *named.values())):
            return engine(*args, out=out, **named)
        values = {n: tensor(v) for n, v in {**dict(zip(names, args, strict=False)), **named}.items()}
        given = out if isinstance(out, (tuple, list)) else (out,)
        outputs = None if out is None else [tensor(o) for o in given]
        results = descend.triton.run(name, out=outputs, **values)
        found = results if isinstance(results, tuple) else (results,)
        for g, written in zip(given if out is not None else (), found, strict=out is not None):
            _bring_home(g, written)
        back = tuple(
            g if isinstance(g, np.ndarray) else array(r)
            for g, r in zip(given if out is not None else (None,) * len(found), found, strict=True)
        )
        return back if isinstance(results, tuple) else back[0]

    return call


GUARD = 512
"NaN (bytes 0xFF) on either side of a workspace."


def workspace_of(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A workspace of NaN, and all the memory that it is the middle of."""
    memory = torch.full((size + 2 * GUARD,), 0xFF, dtype=torch.uint8)
    return memory[GUARD : GUARD + size], memory


def check_guards(memory: torch.Tensor) -> None:
    """Nothing beside the workspace was written to."""
    assert bool((memory[:GUARD] == 0xFF).all())
    assert bool((memory[-GUARD:] == 0xFF).all())


def two_phase(name: str, *arguments: Any) -> Any:
    """Both phases as CUDA tensors go through them, in a workspace of exactly the size; returns the executor."""
    parameters = (p.python for p in OPERATORS[name].parameters)
    size, executor = _cuda.prepare(name, **dict(zip(parameters, arguments, strict=True)))
    workspace, memory = workspace_of(size)
    getattr(aclnn, name)(workspace, size, executor, None)
    check_guards(memory)
    return executor


def run_two_phase(operator: str, *arguments: Any, product: str = "host", **_: Any) -> None:
    """Both phases on arrays."""
    if product != "host":
        pytest.skip("the kernels do not depend on the product")
    tensors = [tensor(value) for value in arguments]
    with acl.product(product):
        two_phase(operator, *tensors)
    for parameter, given, written in zip(OPERATORS[operator].parameters, arguments, tensors, strict=True):
        if parameter.role == "output":
            _bring_home(given, written)


_FUNCTIONS = {name: functional(name) for name in OPERATORS}
for _name, _function in _FUNCTIONS.items():
    setattr(descend, _name, _function)
cases.run_two_phase = run_two_phase

# The tests of arithmetic, special values and layouts; the others are about the contract, which is the engine's, or are
# made of more elements than the interpreter can be asked for (test_triton_kernels.py has smaller ones of these).
_SELECTED = re.compile(
    r"infinities_and_nan|in_place_on_every_path|any_output_in_any_input|every_path|"
    r"results_that_the_call_allocates|mean_of_a_row|interleaved|every_tensor_one_memory|empty_tensors_(on|are_fine)|"
    r"do_not_cancel|constant|cannot_square|any_scale|keeps_its_meaning|large_finite|four_forms|triangle|not_required|"
    r"any_call|by_hand$|test_losses$|test_gradients$|left_out|extreme_scores|test_targets$"
)
_LARGEST = 400
"""The largest number among a case's parameters."""
_ELEMENTS = 3000
"""The elements of a case's shape."""
_OF_EACH = 24
"""Cases of one test: of more, so many at even distances."""


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    found: dict[tuple[str, ...], list[Any]] = {}
    for item in items:
        parameters = str(item.callspec.params) if hasattr(item, "callspec") else ""
        shape = item.callspec.params.get("shape", ()) if parameters else ()
        elements = math.prod(shape) if all(isinstance(n, int) for n in shape) else 0
        largest = max((int(n) for n in re.findall(r"(?<![.\de])\d+", parameters)), default=0)
        if _SELECTED.search(item.originalname) and largest <= _LARGEST and elements <= _ELEMENTS:
            operator = item.callspec.params.get("operator", "") if parameters else ""
            found.setdefault((item.module.__name__, item.originalname, operator), []).append(item)
        elif item.module.__name__.startswith("test_triton"):
            found[item.module.__name__, item.name] = [item]
    kept = [item for cases in found.values() for item in cases[:: -(-len(cases) // _OF_EACH)]]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
