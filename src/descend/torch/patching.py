"""Swaps modules of a live model for Descend's, in place: `patch`, and `unpatch`, which undoes it."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from descend.torch import activations, forms, gated, losses, mlps, rewriting
from descend.torch.forms import Form, Parts, mix
from descend.torch.probing import attributes, obstacle, out_of_reach, run, same, same_gradients, undisturbed

_PROBED = (torch.float32, torch.bfloat16, torch.float16)
_STANDARD: dict[Any, type[Form]] = {
    nn.LayerNorm: forms.LayerNorm,
    nn.RMSNorm: forms.TorchRMSNorm,
    nn.GroupNorm: forms.GroupNorm,
}
_WEIGHTS = ("weight", "scale", "gamma", "gain")
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, repr=False)
class Report:
    """What `patch` did, by the modules' names within the model; a shared module has several, and the model itself "".

    ``swapped`` says what each swapped module was and what computes it now, ``left`` why other norms, gated MLPs, GELUs,
    sums before norms, embeddings of positions and losses were left alone. Printed, it counts modules whose names differ
    in their indices alone.
    """

    swapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        modules = "module" if len(self.swapped) == 1 else "modules"
        lines = [f"{len(self.swapped)} {modules} swapped, {len(self.left)} left alone"]
        for title, entries in (("swapped", self.swapped), ("left alone", self.left)):
            counts = Counter((_pattern(name), text) for name, text in entries.items())
            width = max((len(name) for name, _ in counts), default=0)
            lines += [f"  {title}"] * bool(counts)
            lines += [f"    {name:{width}}  {count:3} x  {text}" for (name, text), count in counts.items()]
        return "\n".join(lines)


def patch(model: nn.Module) -> Report:
    """Swaps, in place, the modules that it recognises, and says what was swapped and what was not and why.

    ===================================  ==========================================================================
    recognised                           computed by
    ===================================  ==========================================================================
    ``nn.LayerNorm``, ``nn.RMSNorm``     ``layer_norm``, ``rms_norm``
    ``nn.GroupNorm``                     ``group_norm``; with ``nn.SiLU`` after it in an ``nn.Sequential``
                                         ``group_norm_swish``
    other classes of norms               ``layer_norm`` or ``rms_norm`` in the form that gives the class's results:
                                         rounded once, before the weight (Llama), or to the weight's dtype (T5);
                                         ``gemma_rms_norm`` for those with 1 + weight
    those with a gate                    the same ``rms_norm``, and PyTorch's products with ``silu`` or ``sigmoid`` of
                                         a second input, after the norm (Qwen3-Next) or before it (Mamba 2)
    gated MLPs with SiLU (Llama, Qwen)   ``swi_glu`` between the ``nn.Linear`` modules, which stay
    a sum before a swapped RMS norm      ``add_rms_norm``, where the forward of the module that has the norm has both
                                         as one statement after the other
    rotary positions (Llama, Qwen)       ``rotary_position_embedding`` in the place of the function with ``cos`` and
                                         ``sin`` that a forward calls
    ``nn.GELU``, classes named GELU      ``gelu_v2``, by erf or by tanh
    ``nn.CrossEntropyLoss``, the loss    ``cross_entropy``, also where a forward calls ``F.cross_entropy`` or makes the
    function of transformers' models     module; scores in 16 bits are not copied to float32 for a loss in that
    ===================================  ==========================================================================

    Other classes are recognised by what they do: a copy with a weight of its own is run on small inputs of several
    dtypes, and results and gradients are compared. What differs in any of them is left alone; so is what has hooks,
    parametrizations, an instance's own forward, a class that refuses to be subclassed; a norm with buffers,
    submodules, attributes whose part is unknown, or parameters that are not plain floating tensors on the CPU or CUDA
    (or without data). Of a module whose forward has a sum before a norm, embeds positions or has a loss, these
    places alone are changed.

    The modules stay: only their class becomes a subclass of the one that they had. Parameters, their requires_grad,
    state dicts, optimisers, training mode and sharing are untouched; copies and pickles of the model are patched, too.
    A second call swaps what has been added. Raises TypeError for what is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model is of the type {type(model).__name__}, but must be a torch.nn.Module.")
    report = Report()
    pairs = _pair(model)
    probed: dict[Any, tuple[type[Form], Parts] | None] = {}
    _swap(model, report, lambda module: _judge(module, pairs, probed))
    # Which looks at the classes of the norms.
    _swap(model, report, lambda module: rewriting.judge(module) or losses.judge_model(module))
    return report


def _swap(model: nn.Module, report: Report, judge: Callable[[nn.Module], type[nn.Module] | str | None]) -> None:
    """Gives each module the class that ``judge`` says, and writes down what it said."""
    verdicts: dict[nn.Module, tuple[str, type[nn.Module] | str | None]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if module not in verdicts:
            before = forms.origin(type(module)).__name__
            try:
                verdict = judge(module)
            except forms.SubclassError as error:
                verdict = f"its class cannot be subclassed: {error.__cause__!r}"
            verdicts[module] = before, verdict
            if isinstance(verdict, type):
                _change(module, verdict)
        before, verdict = verdicts[module]
        if isinstance(verdict, type):
            report.swapped[name] = f"{before} -> {verdict.title}"  # type: ignore[attr-defined]
        elif verdict is not None:
            report.left[name] = f"{before}: {verdict}"


def unpatch(model: nn.Module) -> list[str]:
    """Gives all modules that `patch` swapped the class that they had; returns their names.

    What has changed since, parameters and parametrizations above all, stays as it is; a ``forward`` of the swapped
    module that someone holds, compiled or not, computes what the module does now. Raises TypeError for what is not a
    module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"unpatch: model is of the type {type(model).__name__}, but must be a torch.nn.Module.")
    modules = model.named_modules(remove_duplicate=False)
    swapped = [(name, module) for name, module in modules if issubclass(type(module), Form)]
    names = [name for name, module in swapped if not isinstance(module, forms.SwishSequential)]
    for _, module in swapped:
        _change(module, forms.unmix(type(module)))
    return names


def _change(module: nn.Module, kind: type[nn.Module]) -> None:
    module.__class__ = kind


# --- what is recognised --------------------------------------------------------------------------------------------


def _pair(model: nn.Module) -> set[nn.Module]:
    """The group norms that a SiLU follows in a chain, which gets its class here, if it does not refuse one."""
    pairs: set[nn.Module] = set()
    for chain in model.modules():
        if not isinstance(chain, nn.Sequential) or "forward" in vars(chain):
            continue
        kind: Any = type(chain)
        norms = {a for a, b in itertools.pairwise(chain) if type(b) is nn.SiLU and not (_obstacle(a) or _obstacle(b))}
        norms = {n for n in norms if isinstance(n, forms.GroupNorm) or _standard(n) is nn.GroupNorm}
        if norms and kind.forward is nn.Sequential.forward:
            with contextlib.suppress(forms.SubclassError):
                _change(chain, mix(kind, forms.SwishSequential))
        if isinstance(chain, forms.SwishSequential):
            pairs |= norms
    return pairs


def _judge(
    module: nn.Module, pairs: set[nn.Module], probed: dict[Any, tuple[type[Form], Parts] | None]
) -> type[nn.Module] | str | None:
    """The class that the module is to have, or why it is left alone; None for no norm, GELU or gated MLP."""
    kind = type(module)
    if isinstance(module, Form):
        return None if isinstance(module, forms.SwishSequential) else "swapped before"
    standard = _standard(module)
    if standard is None and not _may_be_a_norm(module):
        return activations.judge(module) or mlps.judge(module) or losses.judge(module)
    if standard is None and kind.__module__.startswith("torch.nn.") and not _parametrized(module):
        return "it has no counterpart here"
    reason = _obstacle(module)
    if reason is not None:
        return reason
    if standard is not None:
        return mix(kind, forms.SwishedGroupNorm if module in pairs else _STANDARD[standard])
    return _recognise(module, probed)


def _standard(module: nn.Module) -> type[nn.Module] | None:
    """PyTorch's norm that the module is, subclasses included that leave it as it is."""
    kind: Any = type(module)
    found = next((s for s in _STANDARD if isinstance(module, s) and kind.forward is s.forward), None)
    return None if any(hasattr(kind, name) for name in ("weight", "bias", "eps")) else found


def _may_be_a_norm(module: nn.Module) -> bool:
    """Whether it is or calls itself a norm, or has the parts of one: a weight and an epsilon."""
    if isinstance(module, tuple(_STANDARD)):
        return True
    if isinstance(module, torch.jit.ScriptModule) or (next(module.children(), None) and not _parametrized(module)):
        return False
    if "norm" in type(module).__name__.lower():
        return True
    weight = next((p for name in _WEIGHTS if (p := module._parameters.get(name)) is not None), None)
    if weight is None or torch.nn.parameter.is_lazy(weight) or type(module).__module__.startswith("torch.nn."):
        return False
    return weight.dim() == 1 and len(_epsilons(module)) == 1


def _parametrized(module: nn.Module) -> bool:
    return torch.nn.utils.parametrize.is_parametrized(module)


def _obstacle(module: nn.Module) -> str | None:
    """Why a norm can not be swapped, whatever it computes."""
    reason = obstacle(module)
    if reason is not None:
        return reason
    if module._modules:
        return "it has submodules"
    if module._buffers:
        return "it has buffers"
    held = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
    if len(held) > 2 or _standard(module) is not None:
        for name in held:
            if name not in ("weight", "bias"):
                return f"it has a parameter that norms do not have: {name}"
    for name, parameter in held.items():
        if type(parameter) is not nn.Parameter:
            return f"its {name} is a {type(parameter).__name__}"
        if parameter.layout is not torch.strided or parameter.dtype not in forms.DTYPES:
            return f"its {name} is not of a dense floating dtype: {parameter.dtype}, {parameter.layout}"
    return out_of_reach(held)


def _epsilons(module: nn.Module) -> list[str]:
    return [n for n, v in attributes(module).items() if type(v) is float and 0 <= v < 1]


def _recognise(module: nn.Module, probed: dict[Any, tuple[type[Form], Parts] | None]) -> type[nn.Module] | str:
    """The class for a norm of a class that is not PyTorch's own, or why there is none."""
    kind = type(module)
    try:
        _, *inputs = inspect.signature(kind.forward).parameters.values()
    except (TypeError, ValueError):
        return "what its forward takes is not known"
    if len(inputs) not in (1, 2) or any(i.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for i in inputs):
        return "its forward does not take one input alone, or one and its gate"
    epsilons = _epsilons(module)
    if len(epsilons) != 1:
        return "no single attribute of it can be the epsilon"
    held = attributes(module)
    for name, value in held.items():
        if not all(isinstance(v, _PLAIN) for v in (value if isinstance(value, tuple) else (value,))):
            return f"it has an attribute whose part is unknown: {name}"
    shapes = {name: tuple(p.shape) for name, p in module._parameters.items() if p is not None}
    if len(set(shapes.values())) > 1:
        return "its parameters differ in shape"
    key = (kind, *held.items(), *shapes.items())
    if key not in probed:
        probed[key] = _probe(module, Parts(epsilons[0], inputs=tuple(i.name for i in inputs)))
    found = probed[key]
    return "its results are not those of any form that is known" if found is None else mix(kind, *found)


# --- probing -------------------------------------------------------------------------------------------------------


def _candidates(module: nn.Module, parts: Parts) -> Iterator[tuple[type[Form], Parts]]:
    """The forms that a norm may have, and what plays which part in them."""
    names = [name for name, p in module._parameters.items() if p is not None]
    if len(parts.inputs) == 2:
        if len(names) == 1 and module._parameters[names[0]].dim() == 1:  # type: ignore[union-attr]
            yield from _gated_candidates(module, parts._replace(weight=names[0]))
    elif len(names) == 2:
        for weight, bias in [("weight", "bias")] if set(names) == {"weight", "bias"} else itertools.permutations(names):
            yield forms.LayerNorm, parts._replace(weight=weight, bias=bias)
    elif names == ["bias"]:
        yield forms.LayerNorm, parts
    elif names:
        rms_norms = (forms.RMSNorm, forms.RoundedRMSNorm, forms.WeightRMSNorm, forms.OffsetRMSNorm)
        for form in (*rms_norms, forms.LayerNorm):
            yield form, parts._replace(weight=names[0])
    else:
        yield from ((form, parts) for form in (forms.RMSNorm, forms.LayerNorm))


def _gated_candidates(module: nn.Module, parts: Parts) -> Iterator[tuple[type[Form], Parts]]:
    """The same of a norm with a gate: a number that it holds may be that of its groups, or how many each has."""
    (size,) = module._parameters[parts.weight].shape  # type: ignore[union-attr]
    numbers = [v for v in attributes(module).values() if type(v) is int and v > 0 and size % v == 0]
    groups = dict.fromkeys([1, *(g for v in numbers for g in (size // v, v))])
    for count, activation, form in itertools.product(groups, gated.ACTIVATIONS, gated.FORMS):
        yield form, parts._replace(activation=activation, groups=count)


def _probe(module: nn.Module, parts: Parts) -> tuple[type[Form], Parts] | None:
    """The form whose results are those of the module's class, on small inputs of several shapes and dtypes."""
    with undisturbed():
        calls = list(_calls(module, len(parts.inputs)))
        for candidate in _candidates(module, parts):
            swapped = mix(type(module), *candidate)
            if all(_agree(module, swapped, *call) for call in calls):
                return candidate
    return None


def _calls(module: nn.Module, count: int) -> Iterator[tuple[bool, list[Tensor], dict[str, Tensor | None]]]:
    """Training mode, inputs and parameters of the probes: first float32's, then each pair of dtypes."""
    random = torch.Generator().manual_seed(0)
    # Without parameters, a norm of any other class takes rows of any length.
    of_class = module.normalized_shape if isinstance(module, nn.LayerNorm | nn.RMSNorm) else (48,)
    shape = next((p.shape for p in module._parameters.values() if p is not None), torch.Size(of_class))
    rows = -(-96 // max(shape.numel(), 1)) + 5

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=random, device="cpu", dtype=torch.float32)

    def parameters(dtype: torch.dtype, scale: float = 1.0) -> dict[str, Tensor | None]:
        held = module._parameters.items()
        return {n: None if p is None else (normal(*shape) * scale).to(dtype) for n, p in held}

    # At 1e-3 epsilon decides; what clips or replaces large numbers shows at 1e6.
    for leading, scale in (((rows,), 1.0), ((2, rows), 1e-3), ((2, 3, rows), 30.0), ((2, rows), 1e6)):
        inputs = [normal(*leading, *shape) * s for s in (scale, 2.0)[:count]]
        yield True, inputs, parameters(torch.float32, max(scale, 1.0))
    # What replaces infinities and NaN shows at these.
    scales = torch.tensor([1.0, 1e-3, 30.0, math.inf, math.nan], device="cpu", dtype=torch.float32)
    scales = scales.repeat(rows)[:rows].reshape(-1, *[1] * len(shape))
    of_gate = scales.new_full(scales.shape, 2.0)  # large gates would hide how the others are rounded
    of_gate[-2:] = scales[3:5]
    for dtype in _PROBED:
        for held in _PROBED if module._parameters else _PROBED[:1]:
            inputs = [(normal(2, rows, *shape) * s).to(dtype) for s in (scales, of_gate)[:count]]
            yield False, inputs, parameters(held)


def _agree(
    module: nn.Module,
    swapped: type[nn.Module],
    training: bool,
    inputs: list[Tensor],
    parameters: dict[str, Tensor | None],
) -> bool:
    """Whether module and swapped class give the same; in float32 the module must have a result, and the same gradients.

    Of infinities and NaN the gradients are not looked at.
    """
    tensors = [*inputs, *(p for p in parameters.values() if p is not None)]
    unit = max(torch.finfo(t.dtype).eps for t in tensors)
    wide = unit == torch.finfo(torch.float32).eps
    leaves = [t.requires_grad_() for t in tensors]
    held: dict[str, Any] = {"training": training, "_parameters": dict(parameters)}
    try:
        theirs = run(module, type(module), *inputs, **held)
    except Exception:  # whatever the class raises
        return not wide
    try:
        ours = run(module, swapped, *inputs, **held)
    except Exception:
        return False
    if not isinstance(theirs, Tensor) or not theirs.requires_grad or not same(ours, theirs, unit):
        return False
    return not (wide and all(x.isfinite().all() for x in inputs)) or same_gradients(ours, theirs, leaves, unit)


def _pattern(name: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name) or "(the model itself)"
