"""A training step that msprobe dumped: the calls of Descend's operators in it, and what they should have given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from descend import precision
from descend.cli import apis
from descend.cli.apis import LeftOut
from descend.cli.dumps import Process, dumped_in, processes, read_one
from descend.tensors import Array, TensorFileError

Described = Mapping[str, Any]
"""What ``dump.json`` says of a call or a tensor."""

_CALL = re.compile(r"(?P<prefix>[^.]+)\.(?P<name>.+)\.(?P<number>\d+)\.(?P<way>forward|backward)")
_MODULE = re.compile(r"(?P<kind>Module|Cell)\.(?:.+\.)?(?P<type>[^.]+)\.(?:forward|backward|parameters_grad)\.\d+")
_NO_EPSILON = "a module's dump has no epsilon; with level L1 or mix the function that it calls is dumped"


@dataclass(frozen=True)
class Result:
    """A tensor that a call gave, and its golden value, or what is wrong with it."""

    name: str
    tensor: Array | None = None
    golden: npt.NDArray[np.float64] | None = None
    dtype: np.dtype[Any] | None = None
    """The dtype that it was computed in."""
    problem: str = ""


@dataclass(frozen=True)
class Call:
    """A call of one of our operators."""

    name: str
    api: apis.Api
    folder: Path
    forward: Described
    backward: Described | None = None
    """For the gradient of a call: what it got and gave. Its arguments are those of the call."""

    def results(self) -> list[Result]:
        """What the call gave. Raises LeftOut."""
        outputs = _list(self.backward if self.backward is not None else self.forward, "output", "results")
        names = {place: f"{self.name}.output.{place}" for place, output in enumerate(outputs) if output is not None}
        if not any(isinstance(outputs[place], dict) and "data_name" in outputs[place] for place in names):
            raise LeftOut("its results were not dumped" if names else "none of its results is a tensor")
        try:
            goldens = self._goldens()
        except (LeftOut, ImportError):
            raise
        except Exception as error:  # a file, or arguments that do not fit each other
            return [Result(name, problem=_sentence(error)) for name in names.values()]
        count = len(goldens[0])
        if self.backward is not None and count != len(outputs):
            raise LeftOut(f"the operator has {count} gradients, and the dump {len(outputs)}")
        results = []
        for place, name in names.items():
            values = [golden[place] for golden in goldens] if place < count else [None]
            if values[0] is not apis.NO_VALUES:
                results.append(_result(name, outputs[place], values, self.folder))
        return results

    def _goldens(self) -> list[apis.Results]:
        """What the call should have given, by each formula that is right."""
        given = [self._value(value) for value in _list(self.forward, "input_args", "arguments")]
        named = {key: self._value(value) for key, value in (self.forward.get("input_kwargs") or {}).items()}
        arguments = self.api.arguments(given, named)
        other = self.api.or_else
        forms = [{}, other] if any(arguments[key] != value for key, value in other.items()) else [{}]
        return [self._golden({**arguments, **form}) for form in forms]

    def _golden(self, arguments: dict[str, Any]) -> apis.Results:
        if self.backward is None:
            return self.api.forward(**arguments)
        if self.api.gradient is None:
            raise LeftOut(self.api.no_gradient)
        given = [self._value(value) for value in _list(self.backward, "input", "arguments")]
        gradients, more = given[: self.api.differentiable], given[self.api.differentiable :]
        if all(value is None for value in gradients) or any(value is not None for value in more):
            raise LeftOut("it got gradients of results that Descend does not differentiate")
        gradients += [None] * (self.api.differentiable - len(gradients))
        known = [self._known(output) for output in self.forward.get("output") or ()]
        return self.api.gradient(*gradients, known, **arguments)

    def _value(self, described: Any) -> Any:
        """An argument: a tensor, a number or what else its description has."""
        if isinstance(described, list):
            return [self._value(inner) for inner in described]
        if described is None or not isinstance(described, dict):
            return described
        if "shape" in described:
            return _tensor(described, self.folder)
        if "value" not in described:
            raise LeftOut("msprobe does not dump all of its arguments")
        return described["value"]

    def _known(self, described: Any) -> Any:
        """A result, if the dump has it. What is wrong with it is told where it is judged."""
        if not isinstance(described, dict) or "data_name" not in described:
            return None
        try:
            return self._value(described)
        except (OSError, TensorFileError):
            return None


class Step:
    """All calls below a folder, of every step and process that is there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.calls: dict[str, Call] = {}
        self.problems: dict[str, str] = {}
        """What cannot be read at all, by name."""
        self.left_out: Counter[tuple[str, str]] = Counter()
        """How many calls are not judged, by what was called and why; nothing says why if it is no operator of ours."""
        found = processes(folder)
        if not found:
            raise TensorFileError(f"{folder} has no dump.json, in which msprobe describes what it dumped.")
        self.only_statistics = all(process.task == "statistics" for process in found)
        for process in found:
            if process.problem:
                self.problems[process.name] = process.problem
            else:
                self._add(process)

    def leave_out(self, call: Call, reason: str) -> None:
        """Count a call that is not judged."""
        self.left_out[_called(call.name.rpartition("/")[2]), reason] += 1

    def _add(self, process: Process) -> None:
        for name, described in process.calls.items():
            match = _CALL.fullmatch(name)
            api = match and apis.find(match["prefix"], match["name"], process.framework)
            if not match or not api:
                self.left_out[_called(name), _NO_EPSILON if _is_norm(name) else ""] += 1
                continue
            forward = described if match["way"] == "forward" else process.calls.get(f"{name[:-8]}forward")
            backward = described if match["way"] == "backward" else None
            self._add_call(Call(process.name + name, api, process.tensors, forward or {}, backward))

    def _add_call(self, call: Call) -> None:
        if all(isinstance(part, dict) for part in (call.forward, call.backward or {})):
            self.calls[call.name] = call
        else:
            self.problems[call.name] = "dump.json does not describe it as msprobe does."


def _called(name: str) -> str:
    """What an entry of ``dump.json`` counts as: a function, its gradient, or a module of some type."""
    if module := _MODULE.fullmatch(name):
        return f"{module['kind']} {module['type']}"
    if call := _CALL.fullmatch(name):
        return f"{call['prefix']}.{call['name']}{' backward' if call['way'] == 'backward' else ''}"
    return name


def _is_norm(name: str) -> bool:
    module = _MODULE.fullmatch(name)
    return module is not None and module["type"].endswith(("LayerNorm", "RMSNorm"))


def _list(described: Described, key: str, what: str) -> list[Any]:
    values = described.get(key)
    if not isinstance(values, list):
        raise LeftOut(f"its {what} were not dumped")
    return values


def _tensor(described: Described, folder: Path) -> Array:
    if "DTensor" in str(described.get("type")) and any(p != {"Replicate": {}} for p in described.get("placements", ())):
        raise LeftOut("its tensors are parts of larger ones (DTensor)")
    if "data_name" not in described:
        raise LeftOut("not all of its tensors were dumped")
    file = folder / str(described["data_name"])
    array = read_one(file)
    if array.dtype.kind == "c":
        raise TensorFileError(f"{file} holds complex numbers.")
    return array


def _result(name: str, described: Any, goldens: apis.Results, folder: Path) -> Result:
    found = [golden for golden in goldens if golden is not None]
    if not found:
        return Result(name, problem="the operator has no such result")
    if not isinstance(described, dict):
        return Result(name, problem="the operator gives a tensor here, and dump.json has none")
    try:
        tensor, dtype = _tensor(described, folder), dumped_in(described)
        return Result(name, tensor, _nearest(found, tensor, dtype), dtype)
    except (LeftOut, OSError, TensorFileError) as error:
        return Result(name, problem=_sentence(error))


def _nearest(
    goldens: list[npt.NDArray[np.float64]], tensor: Array, dtype: np.dtype[Any] | None
) -> npt.NDArray[np.float64]:
    """Of values by different formulas those that the tensor is nearest to, by what the single benchmark allows."""

    def distance(golden: npt.NDArray[np.float64]) -> float:
        errors = precision.measure(tensor, golden, dtype)
        return max(10 * errors.mere, errors.mare)

    if len(goldens) == 1:
        return goldens[0]
    try:
        return min(goldens, key=distance)
    except ValueError:  # shapes or dtypes; told where the tensor is judged
        return goldens[0]


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory to compute it"
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, (OSError, TensorFileError, LeftOut)):
        return text
    return f"it cannot be computed from its arguments: {text}"
