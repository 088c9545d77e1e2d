"""Forms: forwards of Descend that are mixed into the classes of live modules. Here are those of norms.

A module keeps its parameters, attributes, hooks and place; its class becomes a subclass of the one it had, with the
form's forward in front. ``isinstance``, state dicts and optimisers see no difference.
"""

from __future__ import annotations

import copyreg
import types
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import Proxy

from descend.torch.add_layer_norm import add_layer_norm
from descend.torch.add_rms_norm import add_rms_norm
from descend.torch.annotated import with_types
from descend.torch.gemma_rms_norm import gemma_rms_norm
from descend.torch.group_norm_swish import group_norm_swish
from descend.torch.layer_norm import layer_norm
from descend.torch.library import constant, statistics_dtype
from descend.torch.modules import default_epsilon, normalise_groups
from descend.torch.releases import has_any_global_hook
from descend.torch.rms_norm import rms_norm


class Parts(NamedTuple):
    """What of a module plays which part: the names of epsilon, parameters and inputs, and more where a gate is one."""

    epsilon: str = "eps"
    weight: str = "weight"
    bias: str = "bias"
    inputs: tuple[str, ...] = ()
    activation: str = ""
    groups: int = 1


Origin = tuple[type[nn.Module], "type[Form]", Any]
"""A module's class before, the form, and the form's parts: a named tuple, `Parts` for norms."""

_mixed: dict[Origin, tuple[Any, type[nn.Module]]] = {}
"""The mixed classes, and what they were made from: a class that others gave another forward is mixed anew."""
_metaclasses: dict[type, type] = {}

_NARROW = (torch.float16, torch.bfloat16)
DTYPES = (*_NARROW, torch.float32, torch.float64)

_KINDS = (Tensor, nn.Parameter, type(None), FakeTensor, FunctionalTensor)  # of which the operators take any
_DISTRIBUTED = (  # likewise; by name, since they take long to import
    "torch.distributed.tensor.DTensor",
    "torch.distributed._functional_collectives.AsyncCollectiveTensor",
)


class Form:
    """What stands before a module's own class: the forward, and how to undo, copy and pickle it."""

    title: ClassVar[str]
    """What computes it, and how it rounds, in a few words; fields of `Parts` stand in braces."""
    _origin: ClassVar[Origin]
    _parts: ClassVar[Any]

    @classmethod
    def made_of(cls, base: type[nn.Module], parts: Any) -> dict[str, Any]:
        """What a class that is mixed of this form and ``base`` has besides."""
        return {}

    @classmethod
    def made_from(cls, base: type[nn.Module], parts: Any) -> Any:
        """What `made_of` looks at besides: where others have changed that, a class is mixed anew."""
        return base.forward

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class is made at run time, so that pickle does not find it by its name: what makes a module of the class
        # before, perhaps that class's own __reduce__, makes one here, too.
        reduced: Any = super().__reduce_ex__(max(protocol, 2))
        make, args, *state = reduced
        before = (self._origin[0] if part is type(self) else part for part in (make, *args))
        return _make, (self._origin, *before), *state

    def __prepare_scriptable__(self) -> NoReturn:
        """What ``torch.jit.script`` asks for first. Raises NotImplementedError."""
        raise NotImplementedError(
            f"torch.jit.script cannot compile what descend.torch.patch has swapped, here of the class "
            f"{self._origin[0].__name__}; call descend.torch.unpatch(model) first, or torch.jit.trace instead."
        )


class SubclassError(TypeError):
    """A class that lets nobody subclass it, and so has no place for a form."""


def mix(base: type[nn.Module], form: type[Form], parts: Any = None) -> type[nn.Module]:
    """The subclass of ``base`` with the forward of ``form``; without ``parts`` they have the names of PyTorch's norms.

    Raises SubclassError where ``base`` refuses it.
    """
    key = (base, form, parts or Parts())
    source = form.made_from(base, key[2])
    before, made = _mixed.get(key, (None, base))
    if before != source or key not in _mixed:
        body = {"__module__": base.__module__, "__doc__": form.__doc__, "_origin": key, "_parts": key[2]}
        body["title"] = form.title.format(**key[2]._asdict())
        body |= form.made_of(base, key[2])
        # What transformers saves of a model has the name of its class.
        prefix = "" if hasattr(base, "save_pretrained") else "Descend"
        try:
            made = _metaclass(type(base))(prefix + base.__name__, (form, base), body)
        except Exception as error:  # whatever its __init_subclass__ or metaclass raises
            raise SubclassError(f"{base.__name__} cannot be subclassed: {error!r}") from error
        _mixed[key] = source, made
    return made


def origin(kind: type[nn.Module]) -> type[nn.Module]:
    """The class before a form was mixed in, itself where none was."""
    return kind._origin[0] if issubclass(kind, Form) else kind


def unmix(kind: type[nn.Module]) -> type[nn.Module]:
    """The class without the form.

    A subclass that others made of the mixed class, such as a parametrization's, is made anew of the class before.
    """
    if not issubclass(kind, Form) or "_origin" in vars(kind):
        return origin(kind)
    before = kind._origin[0].__name__
    name, bases = kind.__name__.replace(f"Descend{before}", before), tuple(map(unmix, kind.__bases__))
    body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    made: type[nn.Module] = types.new_class(name, bases, exec_body=lambda namespace: namespace.update(body))
    return made


def _metaclass(before: type) -> Any:
    """The metaclass of the mixed classes whose bases have the metaclass ``before``, by which pickle knows them."""
    if before not in _metaclasses:
        _metaclasses[before] = made = type(f"Mixed{before.__name__}", (before,), {})
        copyreg.pickle(made, _reduce_class)
    return _metaclasses[before]


def _reduce_class(kind: type[Form]) -> str | tuple[Any, ...]:
    """How pickle makes a mixed class; one that others made of it pickle looks up by its name, as any."""
    return (mix, kind._origin) if "_origin" in vars(kind) else kind.__qualname__


def _make(origin: Origin, make: Callable[..., nn.Module], *args: Any) -> nn.Module:
    """A module for pickle or copy: what ``make`` makes, with the form mixed into its class."""
    made = make(*args)
    made.__class__ = mix(*origin)
    return made


def is_taken(x: Any, parameters: Mapping[str, Tensor | None]) -> TypeGuard[Tensor]:
    """Whether the operators take an input beside a module's parameters; what they do not is left to its class.

    Subclasses of tensors know the operators that they were written for, which are the class's: masked and quantized
    ones, and the stand-ins by which ``torch.nn.utils`` finds the gradients of each sample.
    """
    for tensor in (x, *parameters.values()):
        if type(tensor) not in _KINDS and not _is_distributed(type(tensor)):
            return False
    # Some nested tensors say that they are strided.
    plain = isinstance(x, Tensor) and not x.is_nested and x.layout is torch.strided
    return plain and x.dtype in DTYPES and x.dim() <= 8 and not _becomes_onnx()


def _is_distributed(kind: type) -> bool:
    return f"{kind.__module__}.{kind.__qualname__}" in _DISTRIBUTED


def _becomes_onnx() -> bool:
    """Whether ``torch.onnx.export`` runs the model: ONNX has what the classes compute, and not the operators."""
    # Who asks torch.onnx first imports its exporter.
    records = torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None
    return records and torch.onnx.is_in_onnx_export()


class Norm(Form):
    """A norm over the dimensions of its weight; without one over ``normalized_shape``, else the last dimension."""

    normalized_shape: tuple[int, ...]
    _parameters: dict[str, nn.Parameter | None]
    adds: ClassVar[str] = ""
    """The operator that adds and normalises the sum, as `normalise_sum` does; none where there is no such."""

    @with_types
    def forward(self, *input: Tensor, **named: Tensor) -> Tensor:
        """Normalises the one input, whatever its name. Raises TypeError where there is another number of inputs."""
        if not isinstance(self, Norm):  # unpatched, but someone keeps the forward that it had: torch.compile(m.forward)
            return type(self).forward(self, *input, **named)
        if isinstance(input, Proxy):  # the root of torch.fx's symbolic_trace
            return self._own(input[0])
        inputs = (*input, *named.values())
        if len(inputs) != 1:
            raise TypeError(f"{type(self).__name__} takes one input, but got {len(inputs)}.")
        x = inputs[0]
        return self._normalise(x) if is_taken(x, self._parameters) else self._own(x)

    def _own(self, x: Any) -> Tensor:
        """What the module's class computes."""
        result: Tensor = super().forward(x)  # type: ignore[misc]
        return result

    def _normalise(self, x: Tensor) -> Tensor:
        return self.normalise_sum(x)[0]

    def normalise_sum(self, *terms: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of the sum of one or two terms of one shape and dtype, and the sum."""
        raise NotImplementedError

    def _epsilon(self, x: Tensor) -> float:
        value: float = getattr(self, self._parts.epsilon)
        return value

    def _parameter(self, name: str) -> Tensor | None:
        """The parameter, or what a parametrization has made of it; None where there is none."""
        held = self._parameters  # which takes half the time of the module's attributes
        return held[name] if name in held else getattr(self, name, None)

    def _gamma(self, x: Tensor) -> Tensor:
        weight = self._parameter(self._parts.weight)
        return constant(1.0, getattr(self, "normalized_shape", x.shape[-1:]), x) if weight is None else weight


class LayerNorm(Norm):
    """Layer norm in float32, rounded once."""

    title = "layer_norm"
    adds = "add_layer_norm"

    def normalise_sum(self, *terms: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of the sum of one or two terms of one shape and dtype, and the sum."""
        x, weight, bias = terms[0], self._parameter(self._parts.weight), self._parameter(self._parts.bias)
        shape = self.normalized_shape if isinstance(self, nn.LayerNorm) else self._gamma(x).shape
        if len(terms) == 1:
            return layer_norm(x, shape, weight, bias, self._epsilon(x))[0], x
        gamma, beta = (constant(n, shape, x) if p is None else p for n, p in ((1.0, weight), (0.0, bias)))
        y, _, _, total = add_layer_norm(x, terms[1], gamma, beta, None, self._epsilon(x), True)
        return y, cast("Tensor", total)


def _rms_norm(terms: tuple[Tensor, ...], gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """RMS norm of the sum of one or two terms, and the sum."""
    if len(terms) == 1:
        return rms_norm(terms[0], gamma, epsilon)[0], terms[0]
    one, other = terms
    y, _, total = add_rms_norm(one, other, gamma, epsilon)
    return y, total


class RMSNorm(Norm):
    """RMS norm in float32, rounded once."""

    title = "rms_norm"
    adds = "add_rms_norm"

    def normalise_sum(self, *terms: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of the sum of one or two terms of one shape and dtype, and the sum."""
        return _rms_norm(terms, self._gamma(terms[0]), self._epsilon(terms[0]))


class OffsetRMSNorm(RMSNorm):
    """RMS norm in float32 by one plus the weight, rounded once: Gemma's."""

    title = "gemma_rms_norm"

    def _normalise(self, x: Tensor) -> Tensor:
        return gemma_rms_norm(x, super()._gamma(x), self._epsilon(x))[0]

    def _gamma(self, x: Tensor) -> Tensor:
        gamma = super()._gamma(x)
        return 1.0 + gamma.to(statistics_dtype(gamma))


class RoundedRMSNorm(RMSNorm):
    """RMS norm that is rounded to the input's dtype before the weight: Llama's."""

    title = "rms_norm, rounded before the weight"

    def normalise_sum(self, *terms: Tensor) -> tuple[Tensor, Tensor]:
        """The same, rounded before the weight."""
        x, gamma = terms[0], self._gamma(terms[0])
        if x.dtype not in _NARROW and torch.promote_types(x.dtype, gamma.dtype) is x.dtype:
            return _rms_norm(terms, gamma, self._epsilon(x))  # there is nothing to round
        y, total = _rms_norm(terms, constant(1.0, gamma.shape, x), self._epsilon(x))
        return gamma * y, total


class WeightRMSNorm(RMSNorm):
    """RMS norm that is rounded to the weight's dtype before the weight: T5's."""

    title = "rms_norm, rounded to the weight's dtype before it"
    adds = ""

    def _normalise(self, x: Tensor) -> Tensor:
        gamma = self._gamma(x)
        if x.dtype is not gamma.dtype or gamma.dtype not in _NARROW:
            x = x.to(torch.promote_types(torch.promote_types(x.dtype, gamma.dtype), torch.float32))
        if gamma.dtype not in _NARROW:
            return rms_norm(x, gamma, self._epsilon(x))[0]
        return gamma * rms_norm(x, constant(1.0, gamma.shape, x), self._epsilon(x))[0].to(gamma.dtype)


class TorchRMSNorm(RMSNorm):
    """``torch.nn.RMSNorm``, whose epsilon may be None; what mixes two dtypes is left to PyTorch."""

    weight: Tensor | None
    eps: float | None

    def normalise_sum(self, *terms: Tensor) -> tuple[Tensor, Tensor]:
        """The same; what mixes two dtypes is left to PyTorch."""
        if self.weight is None or self.weight.dtype is terms[0].dtype:
            return super().normalise_sum(*terms)
        total = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        return self._own(total), total

    def _epsilon(self, x: Tensor) -> float:
        return default_epsilon(x) if self.eps is None else self.eps


class GroupNorm(Norm):
    """Group norm in float32, rounded once. What is laid out channels-last is left to PyTorch, whose result is, too."""

    title = "group_norm"
    num_groups: int
    num_channels: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def _normalise(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or _is_channels_last(x):
            return self._own(x)
        return normalise_groups(x, self.num_groups, self._parameter("weight"), self._parameter("bias"), self.eps)

    @with_types
    def forward_with_swish(self, x: Tensor) -> Tensor:
        """The norm and the SiLU after it, as one operator."""
        channels = (self.num_channels,)
        weight = constant(1.0, channels, x) if self.weight is None else self.weight
        bias = constant(0.0, channels, x) if self.bias is None else self.bias
        return group_norm_swish(x, weight, bias, self.num_groups, eps=self.eps)[0]


def _is_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and not x.is_contiguous() and x.is_contiguous(memory_format=formats[x.dim()])


class SwishedGroupNorm(GroupNorm):
    """A group norm that a SiLU follows in a `SwishSequential`; called alone it is `GroupNorm`."""

    title = "group_norm_swish, with the SiLU after it"


class SwishSequential(Form):
    """``torch.nn.Sequential`` that computes a `GroupNorm` and the SiLU after it as one operator."""

    title = "a chain with group_norm_swish"
    _modules: dict[str, nn.Module]

    @with_types
    def forward(self, input: Any) -> Any:
        """Runs the modules one after the other."""
        modules = list(self._modules.values())
        watched = has_any_global_hook()
        done = False
        for module, after in zip_longest(modules, modules[1:]):
            if done:
                done = False
            elif not watched and _joined(module, after, input):
                input, done = module.forward_with_swish(input), True
            else:
                input = module(input)
        return input


def _joined(module: nn.Module, after: nn.Module | None, input: Any) -> TypeGuard[GroupNorm]:
    """Whether both are computed as one operator, which torch.fx records as it does a module."""
    return (
        isinstance(module, GroupNorm)
        and type(after) is nn.SiLU
        and not ("forward" in module.__dict__ or "forward" in after.__dict__)
        and not (hooked(module) or hooked(after))
        and (isinstance(input, Proxy) or (is_taken(input, module._parameters) and input.dim() >= 2))
    )


def hooked(module: nn.Module) -> bool:
    """Whether hooks run around the module's forward or backward."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
