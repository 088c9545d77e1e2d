"""descend.torch.patch on whole models: report, state, copies, compilation, export, models of transformers."""

from __future__ import annotations

import abc
import copy
import importlib
import io
import pickle
import sys
from collections import Counter
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import descend.torch as dt  # noqa: E402
import forks  # noqa: E402
from descend.torch import rotary  # noqa: E402
from torch_cases import RELEASE, draw  # noqa: E402
from torch_norms import SWAPPED, LlamaNorm, alike, inputs, run  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")


class Block(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.before, self.linear, self.after, self.shared = nn.LayerNorm(16), nn.Linear(16, 16), LlamaNorm(), shared

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shared(self.after(self.linear(self.before(x))))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    shared = nn.RMSNorm(16)
    swish = nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU())
    return nn.Sequential(
        Block(shared), Block(shared), nn.Unflatten(1, (4, 4)), swish, nn.Flatten(), nn.BatchNorm1d(16)
    )  # fmt: skip


def test_the_report():
    model = network()
    report = dt.patch(model)
    assert repr(report) == (
        "7 modules swapped, 1 left alone\n"
        "  swapped\n"
        "    *.before    2 x  LayerNorm -> layer_norm\n"
        "    *.after     2 x  LlamaNorm -> rms_norm, rounded before the weight\n"
        "    *.shared    2 x  RMSNorm -> rms_norm\n"
        "    *.*         1 x  GroupNorm -> group_norm_swish, with the SiLU after it\n"
        "  left alone\n"
        "    *    1 x  BatchNorm1d: it has no counterpart here"
    )
    assert model[0].shared is model[1].shared
    assert "DescendLlamaNorm" in str(model)


def test_state_parameters_and_flags_stay():
    model = network()
    model[0].after.weight.requires_grad_(False)
    model[1].eval()
    before = dict(model.named_parameters())
    keys, flags = list(model.state_dict()), {n: p.requires_grad for n, p in before.items()}
    modes, modules = [m.training for m in model.modules()], list(model.modules())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    dt.patch(model)
    assert all(p is before[n] for n, p in model.named_parameters())
    assert list(model.state_dict()) == keys
    assert {n: p.requires_grad for n, p in model.named_parameters()} == flags
    assert [m.training for m in model.modules()] == modes
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    other = network()
    other.load_state_dict(model.state_dict())
    model.load_state_dict(other.state_dict())
    x = torch.randn(6, 16)
    model(x).sum().backward()
    assert model[0].after.weight.grad is None
    assert model[1].after.weight.grad is not None
    optimiser.step()
    dt.unpatch(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in network().modules()]
    assert all(p is before[n] for n, p in model.named_parameters())


def test_results_and_gradients_of_the_network():
    model, x = network(), torch.randn(6, 16, requires_grad=True)
    wanted = run(model, x)
    dt.patch(model)
    for one, other in zip(run(model, x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_patching_twice_and_what_was_added():
    model = network()
    first = dt.patch(model)
    model.append(nn.LayerNorm(16))
    model[3].append(nn.GroupNorm(2, 4))
    model[3].append(nn.SiLU())
    second = dt.patch(model)
    assert sorted(second.swapped) == ["3.2", "6"]
    assert {n for n, text in second.left.items() if text.endswith("swapped before")} == set(first.swapped)
    dt.unpatch(model)
    assert dt.unpatch(model) == []
    assert dt.patch(model).swapped == {**first.swapped, **second.swapped}


def restored(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_unpatching_what_was_parametrized_since():
    model, plain = (nn.Sequential(nn.LayerNorm(16), LlamaNorm()) for _ in range(2))
    dt.patch(model)
    for module in (*model, *plain):
        nn.utils.parametrize.register_parametrization(module, "weight", Doubled())
    x, other = draw((5, 16), 1), copy.deepcopy(model)
    torch.testing.assert_close(model(x), plain(x))
    assert dt.patch(model).left == {"0": "LayerNorm: swapped before", "1": "LlamaNorm: swapped before"}
    assert dt.unpatch(model) == ["0", "1"]
    assert [type(m).__name__ for m in model] == ["ParametrizedLayerNorm", "ParametrizedLlamaNorm"]
    assert torch.equal(model(x), plain(x))
    assert all(isinstance(m, dt.forms.Form) for m in other)  # a copy shares its class with the original
    for module in (*model, *other):
        nn.utils.parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    assert [type(m) for m in model] == [nn.LayerNorm, LlamaNorm]
    assert dt.unpatch(other) == ["0", "1"]
    assert [type(m) for m in other] == [nn.LayerNorm, LlamaNorm]


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "Llama"])
@pytest.mark.parametrize("keep", [lambda f: f, lambda f: torch.compile(f, backend="eager")], ids=["as is", "compiled"])
def test_unpatching_what_has_kept_its_forward(name, keep):
    module, x = SWAPPED[name][0](), draw((5, 16), 1)
    plain = copy.deepcopy(module)
    dt.patch(module)
    module.forward = keep(module.forward)
    torch.testing.assert_close(module(x), plain(x))
    assert dt.unpatch(module) == [""]
    assert torch.equal(module(x), plain(x))
    del module.forward
    assert dt.patch(module).swapped
    torch.testing.assert_close(module(x), plain(x))


@pytest.mark.parametrize("again", [copy.deepcopy, restored, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_are_patched(again):
    model = network().eval()
    dt.patch(model)
    other = again(model)
    assert str(other) == str(model)
    assert other[0].shared is other[1].shared
    assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
    x = torch.randn(6, 16)
    assert torch.equal(other(x), model(x))
    assert dt.unpatch(other)
    assert [type(m) for m in other.modules()] == [type(m) for m in network().modules()]
    assert isinstance(model[0].before, dt.forms.Form)


class AbstractNorm(LlamaNorm, abc.ABC):
    """A class with another metaclass."""


@pytest.mark.parametrize("dump", [pickle, ForkingPickler])
def test_classes_are_pickled(dump):
    model = nn.Sequential(nn.LayerNorm(16), AbstractNorm(), nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()))
    assert len(dt.patch(model).swapped) == 3
    for module in (*model, model[2][0]):
        kind = type(module)
        assert pickle.loads(dump.dumps(kind)) is kind
        assert copy.deepcopy([kind]) == [kind]
    code = "import pickle, sys\n" + f"kind = pickle.loads({pickle.dumps(type(model[0]))!r})\n" + CLASS_ELSEWHERE
    forks.run(code, check=True)
    nn.utils.parametrize.register_parametrization(model[0], "weight", Doubled())
    for _ in range(2):  # of a class that others made at run time pickle says what it said before
        with pytest.raises(pickle.PicklingError, match=r"Parametrized(Descend)?LayerNorm"):
            pickle.dumps(type(model[0]))
        dt.unpatch(model)
    assert [type(type(m)) for m in model] == [type, abc.ABCMeta, type]


CLASS_ELSEWHERE = """
from torch import nn
module = nn.LayerNorm(4)
import descend.torch
descend.torch.patch(module)
assert kind is type(module)
"""


class ArgumentsNorm(nn.LayerNorm):
    """A norm that is copied and pickled by its constructor's arguments."""

    def __init__(self, size: int, offset: float) -> None:
        super().__init__(size)
        self.offset = offset
        nn.init.constant_(self.bias, offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.normalized_shape[0], self.offset)


class FunctionNorm(ArgumentsNorm):
    """A class that a function makes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionNorm, (self.normalized_shape[0], self.offset), {"eps": self.eps}


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("kind", [ArgumentsNorm, FunctionNorm])
def test_a_class_says_how_its_modules_are_copied(kind, again):
    module, x = kind(16, 0.5), torch.randn(6, 16)
    dt.patch(module)
    other = again(module)
    assert type(other) is type(module)
    assert torch.equal(other(x), module(x))


def test_dtypes_and_devices():
    model = network()
    dt.patch(model)
    assert model.bfloat16()(torch.randn(6, 16).bfloat16()).dtype is torch.bfloat16
    assert model.double()(torch.randn(6, 16).double()).dtype is torch.float64
    assert model.to("meta")(torch.randn(6, 16, device="meta").double()).is_meta
    with torch.device("meta"):
        empty = network()
    assert len(dt.patch(empty).swapped) == 7
    filled = empty.to_empty(device=torch.get_default_device())
    filled.load_state_dict(network().state_dict())
    x = torch.randn(6, 16)
    torch.testing.assert_close(filled(x), network()(x), rtol=1e-4, atol=1e-5)


def test_autocast():
    model, x = network(), torch.randn(6, 16)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        wanted = model(x)
        assert len(dt.patch(model).swapped) == 7
        result = model(x)
    assert result.dtype is wanted.dtype
    torch.testing.assert_close(result, wanted, rtol=0.05, atol=0.05)


def test_compiled_models():
    model, x = network(), torch.randn(6, 16, requires_grad=True)
    wanted = run(model, x)
    dt.patch(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for one, other in zip(run(compiled, x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    dt.unpatch(compiled)  # within the compiled one: the graph is made anew
    for one, other in zip(run(compiled, x), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_pytorchs_own_transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16))
    ours = copy.deepcopy(theirs)
    assert len(dt.patch(ours).swapped) == 5
    x = torch.randn(3, 7, 16, requires_grad=True)
    for one, other in zip(run(ours, x), run(theirs, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    padding = torch.arange(7) >= torch.tensor([[7], [4], [2]])
    with torch.inference_mode():  # where PyTorch takes its fused path
        torch.testing.assert_close(
            ours.eval()(x, src_key_padding_mask=padding), theirs.eval()(x, src_key_padding_mask=padding)
        )


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("name", "layout"), [("LayerNorm", torch.strided), ("LayerNorm", torch.jagged),
                                              ("RMSNorm", torch.jagged)])  # fmt: skip
def test_nested_tensors_are_left_to_the_class(name, layout):
    theirs = SWAPPED[name][0]()
    ours = copy.deepcopy(theirs)
    dt.patch(ours)
    x = torch.nested.nested_tensor([draw((3, 16), 1), draw((5, 16), 2)], layout=layout)
    for one, other in zip(ours(x).unbind(), theirs(x).unbind(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_pytorchs_own_transformer_with_a_hook_on_padded_input():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16)).eval()
    ours = copy.deepcopy(theirs)
    dt.patch(ours)
    seen: list[bool] = []
    for model in (ours, theirs):  # layers with hooks are not fused, and get the nested tensor
        model.layers[0].norm1.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].is_nested))
    x, padding = torch.randn(3, 7, 16), torch.arange(7) >= torch.tensor([[7], [4], [2]])
    with torch.inference_mode():
        torch.testing.assert_close(ours(x, src_key_padding_mask=padding), theirs(x, src_key_padding_mask=padding))
    assert seen == [True, True]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", SWAPPED)
def test_traced_norms(name):
    """By torch.jit.trace, and by torch.fx, which sees what the class itself computes."""
    module = SWAPPED[name][0]()
    x = inputs(module, torch.float32).detach()
    for traced in (nn.Sequential(module), module):
        dt.patch(traced)
        if name != "T5":  # whose own forward asks for the weight's dtype
            torch.testing.assert_close(torch.fx.symbolic_trace(traced)(x), traced(x))
        assert torch.equal(torch.jit.trace(traced, x)(2 * x), traced(2 * x))


def test_exported_and_traced_models():
    model, x = nn.Sequential(nn.LayerNorm(8), nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU())), torch.randn(4, 8)
    dt.patch(model)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False], ids=["by torch.export", "by TorchScript"])
def test_onnx_has_what_the_classes_compute(dynamo, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    if dynamo and RELEASE <= (2, 7):
        pytest.skip("PyTorch 2.7 does not tell that torch.export makes ONNX")
    model, x = nn.Sequential(nn.LayerNorm(16), LlamaNorm(), nn.GroupNorm(2, 8), nn.SiLU()).eval(), torch.randn(4, 8, 16)
    wanted = model(x).detach()
    assert len(dt.patch(model).swapped) == 3
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=dynamo)
    written = onnx.load(tmp_path / "model.onnx")
    assert {entry.domain for entry in written.opset_import} == {""}
    session = importlib.import_module("onnx.reference").ReferenceEvaluator(written)
    torch.testing.assert_close(torch.from_numpy(session.run(None, {session.input_names[0]: x.numpy()})[0]), wanted)
    assert "descend" in str(torch.export.export(model, (x,), strict=False).graph)  # once it is done, all is as before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "Llama", "GroupNorm and SiLU"])
def test_scripts_name_the_way_out(name):
    module = nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()) if name == "GroupNorm and SiLU" else SWAPPED[name][0]()
    for model in (module, nn.Sequential(nn.Linear(16, 16), module)):
        dt.patch(model)
        kinds = [type(m) for m in model.modules()]
        with pytest.raises(NotImplementedError, match=r"descend\.torch\.unpatch\(model\) first"):
            torch.jit.script(model)
        assert [type(m) for m in model.modules()] == kinds
        assert dt.unpatch(model)
    if name == "LayerNorm":
        assert torch.equal(torch.jit.script(module)(torch.ones(2, 16)), module(torch.ones(2, 16)))


def test_inputs_by_name():
    model = network()
    dt.patch(model)
    x = torch.randn(6, 16)
    assert torch.equal(model[0].after(hidden_states=x), model[0].after(x))
    assert torch.equal(model[0].before(input=x), model[0].before(x))
    with pytest.raises(TypeError, match=r"^DescendLlamaNorm takes one input, but got 2\.$"):
        model[0].after(x, gate=x)
    with pytest.raises(TypeError, match="forward"):
        model[3]()


# --- models of transformers ----------------------------------------------------------------------------------------


SMALL = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, int], int]] = {
    "bert": (
        "BertConfig", "BertForMaskedLM", SMALL,
        {
            "LayerNorm -> layer_norm": 6,
            "GELUActivation -> gelu_v2, by erf": 3,
            "BertEmbeddings -> add_layer_norm at LayerNorm": 1,
            "BertSelfOutput -> add_layer_norm at LayerNorm": 2,
            "BertOutput -> add_layer_norm at LayerNorm": 2,
            "BertForMaskedLM -> cross_entropy in CrossEntropyLoss": 1,
        }, 0,
    ),
    "llama": (
        "LlamaConfig", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 1},
        {
            "LlamaRMSNorm -> rms_norm, rounded before the weight": 5,
            "LlamaMLP -> swi_glu": 2,
            "LlamaDecoderLayer -> add_rms_norm at post_attention_layernorm": 2,
            "LlamaAttention -> rotary_position_embedding in apply_rotary_pos_emb": 2,
            "LlamaForCausalLM -> cross_entropy in loss_function": 1,
        }, 0,
    ),
    "gemma": (
        "GemmaConfig", "GemmaForCausalLM", {**SMALL, "num_key_value_heads": 1, "head_dim": 16},
        {
            "GemmaRMSNorm -> gemma_rms_norm": 5,
            "GemmaDecoderLayer -> add_rms_norm at post_attention_layernorm": 2,
            "GemmaAttention -> rotary_position_embedding in apply_rotary_pos_emb": 2,
            "GELUTanh -> gelu_v2, by tanh": 2,
            "GemmaForCausalLM -> cross_entropy in loss_function": 1,
        }, 2,  # whose MLP has GELU
    ),
    **{
        name: (
            config, f"{kind}ForCausalLM", {**SMALL, "num_key_value_heads": 1, "head_dim": 16},
            {
                f"{kind}RMSNorm -> gemma_rms_norm": norms,
                f"{kind}DecoderLayer -> add_rms_norm at pre_feedforward_layernorm": 2,
                f"{kind}Attention -> rotary_position_embedding in apply_rotary_pos_emb": 2,
                "GELUTanh -> gelu_v2, by tanh": 2,
                f"{kind}ForCausalLM -> cross_entropy in loss_function": 1,
            }, 2,
        )
        for name, kind, config, norms in (
            ("gemma2", "Gemma2", "Gemma2Config", 9), ("gemma3", "Gemma3", "Gemma3TextConfig", 13)
        )
    },
    "t5": (
        "T5Config", "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
         "decoder_start_token_id": 0},
        {
            "T5LayerNorm -> rms_norm, rounded to the weight's dtype before it": 12,
            "T5ForConditionalGeneration -> cross_entropy in CrossEntropyLoss": 1,
        }, 0,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_saved_model_and_activation_checkpointing(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    tokens = torch.randint(50, (3, 12))
    wanted = losses(model, tokens)
    dt.patch(model)
    model.save_pretrained(tmp_path)
    saved = transformers.LlamaForCausalLM.from_pretrained(tmp_path).to(torch.get_default_device())
    assert torch.equal(losses(saved, tokens)["loss"], wanted["loss"])
    model.gradient_checkpointing_enable()
    for key, gradient in losses(model.train(), tokens).items():
        alike(gradient, wanted[key])


def losses(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """The loss and every parameter's gradient."""
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_transformers_models(name, dtype, monkeypatch):
    monkeypatch.setattr(rotary, "_SMALLEST", 0)
    monkeypatch.setattr(sys.modules["descend.torch.cross_entropy"], "_SMALL", 0)
    transformers = pytest.importorskip("transformers")
    config, model, options, swapped, left = MODELS[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    for parameter in theirs.parameters():  # weights of norms that are not all ones
        parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    theirs = theirs.to(dtype)
    ours = copy.deepcopy(theirs)
    report = dt.patch(ours)
    assert Counter(report.swapped.values()) == swapped
    assert len(report.left) == left
    assert list(ours.state_dict()) == list(theirs.state_dict())
    tokens = torch.randint(50, (3, 12))
    mine, wanted = losses(ours, tokens), losses(theirs, tokens)
    assert list(mine) == list(wanted)
    golden = losses(copy.deepcopy(theirs).double(), tokens) if dtype is torch.bfloat16 else wanted
    # A key's bias has no gradient but roundings of the others'.
    rounding = 1e-2 * torch.finfo(dtype).eps * max(exact.double().norm() for exact in golden.values())
    for key, exact in golden.items():
        error, peer = ((r[key].double() - exact.double()).norm() for r in (mine, wanted))
        if dtype is torch.float32:
            assert error <= 1e-4 * exact.norm() + 1e-7, key
        else:
            assert error <= 1.5 * peer + 0.01 * exact.norm() + rounding, key
    dt.unpatch(ours)
    again = losses(ours, tokens)
    assert all(torch.equal(again[key], wanted[key]) for key in wanted)
