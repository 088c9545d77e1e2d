"""The engine's operators as primitives of JAX: types, errors, CPU calls, derivatives, batches.

What the operators take and return, and their errors, come from the engine's tables. An operator's own file adds its
definition in ``jax.numpy``, which `operator` makes a function of. Where there is more to say, as of a forward and its
gradient, the file has an `Operator`, and says how that is differentiated and how a batch of calls becomes one.

===================  ===============================================================================================
JAX asks for         and gets
===================  ===============================================================================================
types of results     the engine's answer, after it has checked the call: errors come while JAX traces
code for the CPU     a call of the engine (native/bindings/xla.cpp), on XLA's own buffers
code for the rest    the operator's definition in ``jax.numpy``
derivatives          those of the definition. With `Operator.differentiable` a forward's tangents are a primitive of
                     their own, whose transpose is the backward operator; all further ones are those of the definitions.
batches              one call a sample, or what `Operator.batched` says
===================  ===============================================================================================
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

try:
    from jax.sharding import reshard
except ImportError:  # before JAX 0.7
    from jax.experimental.shard import reshard  # type: ignore[no-redef]

from descend import _native, portability
from descend.contract import OPERATORS, Parameter
from descend.errors import from_status

Array = jax.Array
Values = dict[str, Any]
"""The arguments of a call by name: arrays, and attributes."""
Results = tuple[Any, ...]
"""The results of a call, None for one that was not wanted."""
Kernel = Callable[..., Results]

_DTYPES = {"FLOAT": jnp.float32, "FLOAT16": jnp.float16, "BFLOAT16": jnp.bfloat16, "DOUBLE": jnp.float64}
DEFINITIONS: dict[str, Callable[..., Any]] = {}
"""The operators in ``jax.numpy``, by name."""
P = ParamSpec("P")
R = TypeVar("R")
Rule = Callable[[int, Values, Mapping[str, int]], tuple[Results, Sequence[Any]]]


class Operator:
    """One operator of the engine, called with all of its arguments by name.

    ``definition`` is the operator in ``jax.numpy``, with the same names. ``wanted`` tells which results are computed,
    from the attributes and, None for each, the arrays that are given; without it, all are. Raises KeyError for an
    unknown name.
    """

    def __init__(self, name: str, definition: Kernel, wanted: Callable[[Values], Sequence[bool]] | None = None) -> None:
        self.name = name
        self.definition = _promoting(definition)
        self._contract = OPERATORS[name]
        self._places = {p.python: place for place, p in enumerate(self._contract.parameters)}
        self._wanted = wanted or (lambda _: [True] * len(self._contract.outputs))
        self._types = functools.lru_cache(maxsize=1024)(self._find_types)
        self._primitive = Primitive(f"descend_{name}")
        self._primitive.multiple_results = True
        self._primitive.def_abstract_eval(self._abstract)
        self._primitive.def_impl(_compiled(self._primitive))
        jax.ffi.register_ffi_target(f"descend_{name}", _native._xla_handler, platform="cpu")
        mlir.register_lowering(self._primitive, self._lower, platform="cpu")
        mlir.register_lowering(self._primitive, mlir.lower_fun(self._define, multiple_results=True))
        ad.primitive_jvps[self._primitive] = self._tangents_of_definition
        self.batched(lambda _, values, dims: call_each(self, values, dims))
        DEFINITIONS[name] = definition

    def __call__(self, **values: Any) -> Results:
        """The results. Raises AclnnError, or TypeError, for what the operator does not take."""
        given = {p.python: self._array(p, values[p.python]) for p in self._contract.inputs}
        arrays = {name: array for name, array in given.items() if array is not None}
        static = {p.python: self._static(p, values[p.python]) for p in self._contract.attributes}
        specifications = tuple((name, array.shape, array.dtype.name) for name, array in arrays.items())
        self._check(specifications, static)
        attributes = tuple((p.python, _plain(p.kind, static[p.python])) for p in self._contract.attributes)
        attributes = tuple((name, value) for name, value in attributes if value is not None)
        results = iter(bind(self._primitive, arrays, operands=tuple(arrays), attributes=attributes))
        wanted = self._wanted(dict.fromkeys(arrays) | static)
        return tuple(next(results) if w else None for w in wanted)

    # --- what a call is ----------------------------------------------------------------------------------------------

    def _array(self, parameter: Parameter, value: Any) -> Array | None:
        if value is None or isinstance(value, jax.Array):
            return value
        if hasattr(value, "shape") and hasattr(value, "dtype"):  # NumPy's, and JAX's own of constants
            return jnp.asarray(value)
        what = _native.what_is(value)
        raise TypeError(f"{self.name}: {parameter.python} is {what}, but must be an array (JAX or NumPy).")

    def _static(self, parameter: Parameter, value: Any) -> Any:
        """An attribute, which is no array."""
        if isinstance(value, jax.core.Tracer) or (
            isinstance(value, (list, tuple)) and any(isinstance(v, jax.core.Tracer) for v in value)
        ):
            raise TypeError(
                f"{self.name}: {parameter.python} is traced, but must be known when the call is traced: "
                "jax.jit has static_argnames for such arguments."
            )
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            return np.asarray(value).tolist()
        return value

    def _check(self, specifications: tuple[tuple[str, tuple[int, ...], str], ...], static: Values) -> None:
        """Raises what the engine would."""
        for name, shape, dtype in specifications:
            if not all(isinstance(size, int) for size in shape):
                self._refuse(f"{name} has shape {list(shape)}, but must have sizes that are known when it is traced.")
            if dtype.upper() not in _KNOWN:
                self._refuse(f"{name} has dtype {dtype}, which no operator takes.")
        self._types(specifications, _Attributes(static))

    def _refuse(self, sentence: str) -> None:
        raise from_status(161002, "ACLNN_ERR_PARAM_INVALID", f"{self.name}: {sentence}")

    def _find_types(self, specifications: Any, static: _Attributes) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shapes and dtypes of all results, of a call that the engine takes."""
        given: Values = {name: portability.TensorSpec(shape, dtype) for name, shape, dtype in specifications}
        given |= static
        verdict = portability.verdict(self._contract, "host", given)
        if verdict.status:
            raise from_status(verdict.status, verdict.name, verdict.sentence)
        return tuple(portability.result_types(self._contract, given, "host").values())

    def _abstract(self, *avals: Any, operands: tuple[str, ...], attributes: Any) -> list[Any]:
        specifications = tuple((n, a.shape, a.dtype.name) for n, a in zip(operands, avals, strict=True))
        static = {p.python: None for p in self._contract.attributes} | dict(attributes)
        types = self._types(specifications, _Attributes(static))
        wanted = self._wanted(dict.fromkeys(operands) | static)
        return [like(avals[0], s, _DTYPES[d]) for (s, d), w in zip(types, wanted, strict=True) if w]

    def _values(self, operands: Sequence[str], arrays: Sequence[Any], attributes: Any) -> Values:
        """All arguments by name, None for one that is not given."""
        names = (p.python for p in self._contract.functional_parameters)
        return {**dict.fromkeys(names), **dict(zip(operands, arrays, strict=True)), **dict(attributes)}

    def _define(self, *arrays: Array, operands: tuple[str, ...], attributes: Any) -> Sequence[Array]:
        """What `definition` gives, as the primitive does."""
        return present(self.definition(**self._values(operands, arrays, attributes)))

    def _lower(self, ctx: Any, *operands: Any, **params: Any) -> Any:
        """A call of the engine in XLA's program."""
        attributes: Values = {"operator": self.name}
        attributes["operands"] = np.array([self._places[name] for name in params["operands"]], np.int64)
        for name, value in params["attributes"]:
            attributes[name] = _ATTRIBUTES[type(value)](value)
        return jax.ffi.ffi_lowering(f"descend_{self.name}")(ctx, *operands, **attributes)

    # --- derivatives and batches -------------------------------------------------------------------------------------

    def _tangents_of_definition(
        self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any
    ) -> tuple[Any, Any]:
        results = self._primitive.bind(*primals, **params)
        return results, push(functools.partial(self._define, **params), primals, tangents)

    def differentiable(self, saved: Sequence[str], tangents: Kernel, transpose: Callable[..., Values]) -> None:
        """Registers a forward's derivatives.

        ``saved`` names the inputs and results that they are computed of. ``tangents(values, moving)`` are the tangents
        of all results, from those of the inputs; ``values`` are what is saved, and the attributes.
        ``transpose(values, cotangents, names)`` are the gradients of the inputs of these names, in any dtype, from
        those of the results, where None is zero.
        """
        tangents, transpose = _promoting(tangents), _promoting(transpose)
        tangent = Primitive(f"descend_{self.name}_tangents")
        tangent.multiple_results = True
        names = self._contract.result_names

        def split(arrays: Sequence[Any], kept: Sequence[str], moving: Sequence[str], attributes: Any) -> Any:
            values = self._values(kept, arrays[: len(kept)], attributes)
            return values, dict(zip(moving, arrays[len(kept) :], strict=True))

        def evaluate(*arrays: Array, kept: Any, moving: Any, attributes: Any, types: Any) -> Sequence[Array]:
            values, given = split(arrays, kept, moving, attributes)
            results = tangents(values, given)
            return [r.astype(d) for r, (_, d) in zip(results, types, strict=True)]

        def jvp(primals: Sequence[Any], given: Sequence[Any], *, operands: Any, attributes: Any) -> tuple[Any, Any]:
            results = self._primitive.bind(*primals, operands=operands, attributes=attributes)
            static = {p.python: None for p in self._contract.attributes} | dict(attributes)
            wanted = self._wanted(dict.fromkeys(operands) | static)
            there = [name for name, w in zip(names, wanted, strict=True) if w]
            all_values = dict(zip(operands, primals, strict=True)) | dict(zip(there, results, strict=True))
            kept = {name: all_values[name] for name in saved if name in all_values}
            moving = {n: t for n, t in zip(operands, given, strict=True) if type(t) is not ad.Zero}
            out = bind(
                tangent,
                [*kept.values(), *moving.values()],
                kept=tuple(kept),
                moving=tuple(moving),
                attributes=attributes,
                types=tuple((r.shape, r.dtype) for r in results),
            )
            return results, out

        def transposed(
            cotangents: Sequence[Any], *arrays: Any, kept: Any, moving: Any, attributes: Any, types: Any
        ) -> list[Any]:
            values, given = split(arrays, kept, moving, attributes)
            wanted = [name for name in moving if ad.is_undefined_primal(given[name])]
            found = transpose(values, [None if type(c) is ad.Zero else c for c in cotangents], wanted)
            gradients = {n: g.astype(given[n].aval.dtype) for n, g in found.items() if n in wanted and g is not None}
            return [None] * len(kept) + [gradients.get(name) for name in moving]

        def abstract(*avals: Any, types: Any, **_: Any) -> list[Any]:
            return [like(avals[0], shape, dtype) for shape, dtype in types]

        def batch(arrays: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
            results = jax.vmap(functools.partial(evaluate, **params), in_axes=dims)(*arrays)
            return results, [0] * len(results)

        tangent.def_impl(_compiled(tangent))
        tangent.def_abstract_eval(abstract)
        mlir.register_lowering(tangent, mlir.lower_fun(evaluate, multiple_results=True))
        ad.primitive_jvps[tangent] = lambda primals, given, **params: _linear(tangent, evaluate, primals, given, params)
        ad.primitive_transposes[tangent] = transposed
        batching.primitive_batchers[tangent] = batch
        ad.primitive_jvps[self._primitive] = jvp

    def batched(self, rule: Rule) -> Rule:
        """Registers ``rule(size, values, dims)``, which makes one call of a batch of ``size`` calls.

        ``values`` are the arguments by name, ``dims`` the batch dimensions of those that have one. The rule returns
        the results and their batch dimensions.
        """

        def batch(arrays: Sequence[Any], given: Sequence[Any], *, operands: Any, attributes: Any) -> tuple[Any, Any]:
            dims = {n: d for n, d in zip(operands, given, strict=True) if d is not None}
            values = self._values(operands, arrays, attributes)
            size = next(values[name].shape[dim] for name, dim in dims.items())
            if size == 0:
                return self._no_calls(values, dims, operands, attributes)
            results, out = _promoting(rule)(size, values, dims)
            pairs = [(r, d) for r, d in zip(results, out, strict=True) if r is not None]
            return [r for r, _ in pairs], [d for _, d in pairs]

        batching.primitive_batchers[self._primitive] = batch
        return rule

    def _no_calls(self, values: Values, dims: dict[str, int], operands: Any, attributes: Any) -> tuple[Any, Any]:
        """A batch of no calls: results of the shapes and dtypes of one."""
        one = [jax.ShapeDtypeStruct(_without(values[n].shape, dims.get(n)), values[n].dtype) for n in operands]
        avals = jax.eval_shape(functools.partial(self._define, operands=operands, attributes=attributes), *one)
        axes = tuple(frozenset[Any]().union(*(varying(jax.typeof(values[n])) for n in operands)))
        return [_vary(jnp.zeros((0, *a.shape), a.dtype), axes) for a in avals], [0] * len(avals)


def _promoting(function: Callable[P, R]) -> Callable[P, R]:
    """The function under JAX's usual rules of promotion, which a program may have made stricter for its own code."""

    @functools.wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **named)

    return run


def operator(definition: Callable[P, R]) -> Callable[P, R]:
    """The operator with the name of a definition, called as the definition is."""
    made = Operator(definition.__name__, definition)  # type: ignore[arg-type]
    signature = inspect.signature(definition)

    @functools.wraps(definition)
    def function(*args: P.args, **named: P.kwargs) -> R:
        given = signature.bind(*args, **named)
        given.apply_defaults()
        return made(**given.arguments)  # type: ignore[return-value]

    return function


def call_each(operator: Operator, values: Values, dims: Mapping[str, int]) -> tuple[Results, Sequence[int]]:
    """One call a sample, one after the other, where the samples' sums over rows must not mix."""
    moved = {name: _whole(jnp.moveaxis(values[name], dim, 0)) for name, dim in dims.items()}

    def one(sample: Mapping[str, Any]) -> Results:
        return operator(**{**values, **sample})

    results: Results = jax.lax.map(one, moved)
    return results, [0] * len(results)


_KNOWN = frozenset(portability.DTYPES) | {"FLOAT32", "FLOAT64"}


class _Attributes(dict[str, Any]):
    """Attributes as a key: those that Python would call equal, such as 1 and True, are not."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)


def _plain(kind: str, value: Any) -> Any:
    """An attribute that the engine takes, of its parameter's own type."""
    if value is None or kind == "str":
        return value
    if kind == "int_array":
        return (int(value),) if hasattr(value, "__index__") else tuple(map(int, value))
    if kind == "bool_array":
        return tuple(map(bool, value))
    return {"int": int, "float": float, "bool": bool}[kind](value)


# What they are in XLA's program.
_ATTRIBUTES: dict[type, Callable[[Any], Any]] = {
    int: np.int64,
    float: np.float64,
    bool: np.bool_,
    str: str,
    tuple: lambda values: np.array(values, np.int64),
}


def _compiled(primitive: Primitive) -> Callable[..., Any]:
    """What a primitive does outside of all transformations, under ``jax.disable_jit``, too."""

    @functools.lru_cache(maxsize=1024)
    def program(_: str, params: Any) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            return primitive.bind(*arrays, **dict(params))

        call.__qualname__ = primitive.name
        call._apply_primitive = True  # type: ignore[attr-defined]  # JAX's mark: there is nothing within to look for a NaN
        return jax.jit(call)

    def run(*arrays: Any, **params: Any) -> Any:
        items = tuple(params.items())
        with jax.disable_jit(False):
            return program(repr(items), items)(*arrays)  # 0.0 and -0.0 are equal, but two programs

    return run


def bind(primitive: Primitive, arrays: Mapping[str, Any] | Sequence[Any], **params: Any) -> Sequence[Array]:
    """``primitive.bind``, of whole arrays that vary over the same axes of a ``shard_map``."""
    values = [_whole(value) for value in (arrays.values() if isinstance(arrays, Mapping) else arrays)]
    axes = [varying(jax.typeof(value)) for value in values]
    union = frozenset().union(*axes)
    if union:
        values = [_vary(value, tuple(union - has)) for value, has in zip(values, axes, strict=True)]
    results: Sequence[Array] = primitive.bind(*values, **params)
    return results


def _whole(value: Any) -> Any:
    """An array whose type says that it is cut along axes of a mesh, put together; the others are left to XLA."""
    sharding = jax.typeof(value).sharding
    if all(part is None for part in sharding.spec):
        return value
    return reshard(value, NamedSharding(sharding.mesh, PartitionSpec(*[None] * value.ndim)))


def varying(aval: Any) -> frozenset[Any]:
    """The axes of a ``shard_map`` over which a value differs."""
    manual = getattr(aval, "manual_axis_type", None)  # its name since JAX 0.10
    axes: frozenset[Any] = getattr(aval, "vma", frozenset()) if manual is None else manual.varying
    return axes


def _vary(value: Any, axes: tuple[Any, ...]) -> Any:
    if not axes:
        return value
    cast: Any = getattr(jax.lax, "pcast", None)
    return jax.lax.pvary(value, axes) if cast is None else cast(value, axes, to="varying")  # type: ignore[attr-defined]


def like(aval: Any, shape: Sequence[int], dtype: Any) -> Any:
    """The type of a result beside that of an operand: it varies over the same axes."""
    sharding = NamedSharding(aval.sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return aval.update(shape=tuple(shape), dtype=np.dtype(dtype), weak_type=False, sharding=sharding)


def push(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The tangents of a function's results: ``ad.Zero`` counts as no tangent."""
    places = [place for place, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

    def partial(*values: Any) -> Any:
        full = list(primals)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return function(*full)

    return jax.jvp(partial, [primals[place] for place in places], [tangents[place] for place in places])[1]


def _linear(tangent: Primitive, evaluate: Callable[..., Any], primals: Any, given: Any, params: Any) -> tuple[Any, Any]:
    """The tangents of tangents, which are those of the definition."""
    return tangent.bind(*primals, **params), push(functools.partial(evaluate, **params), primals, given)


def present(results: Results) -> list[Any]:
    """The results that were computed."""
    return [r for r in results if r is not None]


def _without(shape: Sequence[int], dim: int | None) -> tuple[int, ...]:
    return tuple(size for place, size in enumerate(shape) if place != dim)
