"""descend.torch.patch on forwards that embed positions by a function: what is the operator's, and what stays."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import descend.torch as dt  # noqa: E402
from descend.torch import rotary  # noqa: E402
from torch_cases import Foreign, draw  # noqa: E402
from torch_norms import LlamaNorm  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_device")

SIZE, HEADS, HEAD = 32, 4, 8


# --- functions as model code writes them ---------------------------------------------------------------------------


def rotate_half(x: Tensor) -> Tensor:
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def llama(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def olmo(q, k, cos, sin, unsqueeze_dim=1):
    q_type, k_type = q.dtype, k.dtype
    q, k = llama(q, k, cos, sin, unsqueeze_dim)
    return q.to(q_type), k.to(k_type)


def cohere(q, k, cos, sin, unsqueeze_dim=1):
    dtype = q.dtype
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    q, k = q.float(), k.float()
    return ((q * cos) + (rotate_pairs(q) * sin)).to(dtype), ((k * cos) + (rotate_pairs(k) * sin)).to(dtype)


def neox(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    width = cos.shape[-1]
    found = llama(q[..., :width], k[..., :width], cos, sin, unsqueeze_dim)
    return tuple(torch.cat([y, x[..., width:]], dim=-1) for y, x in zip(found, (q, k), strict=True))


def glm(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    cos = cos[..., : cos.shape[-1] // 2].repeat_interleave(2, dim=-1)
    sin = sin[..., : sin.shape[-1] // 2].repeat_interleave(2, dim=-1)
    found = []
    for x in (q, k):
        turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        found.append(torch.cat([turned * cos + rotate_pairs(turned) * sin, rest], dim=-1))
    return tuple(found)


def deepseek(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos[..., : cos.shape[-1] // 2].unsqueeze(unsqueeze_dim)
    sin = sin[..., : sin.shape[-1] // 2].unsqueeze(unsqueeze_dim)
    pairs = [(x[..., 0::2], x[..., 1::2]) for x in (q, k)]
    return tuple(torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1) for a, b in pairs)


def gpt_oss(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    pairs = [x.chunk(2, dim=-1) for x in (q, k)]
    return tuple(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1) for a, b in pairs)


def in_place(q, k, cos, sin, unsqueeze_dim=1):
    """Only within what it has made."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return (q * cos).add_(rotate_half(q) * sin), (k * cos).add_(rotate_half(k) * sin)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    raise NotImplementedError("each test puts another in its place")


class Attention(nn.Module):
    """Attention as transformers writes it; the function is the file's, and so any test's."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, n * HEAD, bias=False) for n in (HEADS, 2, 2))
        self.out = nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x: Tensor, embeddings: tuple[Tensor, Tensor] | None = None, **named: Any) -> Tensor:
        q, k, v = (each(x).view(*x.shape[:2], -1, HEAD).transpose(1, 2) for each in (self.q, self.k, self.v))
        cos, sin = embeddings or angles(x)
        q, k = apply_rotary_pos_emb(q, k, cos, sin, **named)
        y = nn.functional.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), enable_gqa=True)
        return self.out(y.to(x.dtype).transpose(1, 2).reshape(x.shape))


def angles(x: Tensor, width: int = HEAD) -> tuple[Tensor, Tensor]:
    positions = torch.arange(x.shape[1], device=x.device)[:, None] * 100.0 ** (
        -torch.arange(width // 2, device=x.device) / (width // 2)
    )
    both = torch.cat((positions, positions), -1)[None]
    return both.cos().to(x.dtype), both.sin().to(x.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (llama, olmo, cohere, neox, glm, deepseek, gpt_oss, in_place)
}
HALF = {"neox", "glm", "gpt_oss"}  # whose angles are of half a head in these tests


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Small tensors are large enough here."""
    for name in ("_SMALLEST", "_SMALLEST_COMPILED"):
        monkeypatch.setattr(rotary, name, 0)


@pytest.fixture
def use(monkeypatch):
    """Puts a function in the place of the file's."""
    return lambda function: monkeypatch.setattr(sys.modules[__name__], "apply_rotary_pos_emb", function)


@pytest.fixture
def turns(monkeypatch):
    """The calls of the operator by forwards."""
    calls: list[tuple[int, ...]] = []
    operator = rotary.rotary_position_embedding

    def counted(x: Tensor, *rest: Any) -> Tensor:
        calls.append(tuple(x.shape))
        return operator(x, *rest)

    monkeypatch.setattr(rotary, "rotary_position_embedding", counted)
    return calls


def embedding(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a patched forward calls in the place of the function."""
    assert rotary.recognise(function)
    module = nn.Sequential(nn.Identity())
    dt.patch(module.append(nn.LayerNorm(1)))
    return functools.partial(rotary._embedding(function), module[1], function)


def pair(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """The patched module, and the original."""
    torch.manual_seed(0)
    theirs = Attention().to(dtype)
    ours = copy.deepcopy(theirs)
    assert dt.patch(ours).swapped
    return ours, theirs


def given(dtype: torch.dtype = torch.float32) -> Tensor:
    return draw((3, 5, SIZE), 1).to(dtype).requires_grad_()


def run(module: nn.Module, x: Tensor, width: int = HEAD, **named: Any) -> list[Tensor]:
    """The result, and the gradients of everything, cos and sin included."""
    by = [a.clone().requires_grad_() for a in angles(x.detach(), width)]
    y = module(x, by, **named)
    leaves = [x, *by, *module.parameters()]
    return [y.detach(), *torch.autograd.grad(y, leaves, draw(y.shape, 3).to(y.dtype))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_are_recognised(name, use, turns):
    use(FUNCTIONS[name])
    width = HEAD // 2 if name in HALF else HEAD
    ours, theirs = pair(torch.float64)
    assert dt.patch(copy.deepcopy(theirs)).swapped == {
        "": "Attention -> rotary_position_embedding in apply_rotary_pos_emb"
    }
    turns.clear()
    results = [run(m, given(torch.float64), width) for m in (ours, theirs)]
    assert len(turns) == 2
    unit = 1e-6 if name == "cohere" else 1e-13  # whose float64 is float32 within
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=unit * other.abs().max().item())
    for one, other in zip(*(run(m, given(), width) for m in pair()), strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * other.abs().max().item())
    ours, theirs = pair(torch.bfloat16)
    golden = run(copy.deepcopy(theirs).double(), given(torch.bfloat16).detach().double().requires_grad_(), width)
    results = [run(m, given(torch.bfloat16), width) for m in (ours, theirs)]
    for one, other, exact in zip(*results, golden, strict=True):
        assert (one.double() - exact).norm() <= 1.3 * (other.double() - exact).norm() + 1e-2 * exact.norm()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_gives_is_as_the_operators(name, use):
    """Dtypes where those of inputs and angles differ, and where the results lie in memory."""
    use(FUNCTIONS[name])
    embed = embedding(FUNCTIONS[name])
    width = HEAD // 2 if name in HALF else HEAD
    for dtype, other in ((torch.bfloat16, torch.float32), (torch.float32, torch.float16), (torch.float16,) * 2):
        q = draw((3, 5, HEADS, HEAD), 1).to(dtype)
        by = [a.to(other) for a in angles(q, width)]
        for dim, inputs in ((2, (q, q[:, :, :2])), (1, (q.transpose(1, 2), q[:, :, :2].transpose(1, 2)))):
            ours = embed(*inputs, *by, unsqueeze_dim=dim)
            for y, wanted in zip(ours, FUNCTIONS[name](*inputs, *by, unsqueeze_dim=dim), strict=True):
                assert y.dtype is wanted.dtype
                assert y.stride() == wanted.stride()
                torch.testing.assert_close(y, wanted, rtol=0.02, atol=0.05)


def test_forwards_that_are_compiled_copied_and_undone(use):
    use(llama)
    ours, theirs = pair()
    expected = run(ours, given())
    for other in (
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.compile(ours, fullgraph=True, backend="aot_eager"),
    ):
        for one, wanted in zip(run(other, given()), expected, strict=True):
            torch.testing.assert_close(one, wanted)
    other = Attention()
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other(given()), theirs(given()))
    assert dt.patch(ours).left == {"": "Attention: swapped before"}
    kept = ours.forward
    assert dt.unpatch(ours) == [""]
    assert type(ours) is Attention
    for call in (ours, kept):
        assert torch.equal(call(given()), theirs(given()))


def test_autocast(use, turns):
    use(llama)
    ours, theirs = pair()
    turns.clear()
    kind = torch.get_default_device().type
    with torch.autocast(kind, dtype=torch.bfloat16):
        torch.testing.assert_close(ours(given()), theirs(given()), rtol=0.02, atol=0.02)
    assert len(turns) == 2


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traced_forwards_and_fake_tensors(use, turns):
    use(llama)
    ours, _ = pair()
    x = given().detach()
    assert torch.equal(torch.jit.trace(ours, x)(2 * x), ours(2 * x))
    turns.clear()
    q, k, cos, sin = (draw((2, 3, 5, HEAD), n) for n in range(4))
    embed = embedding(llama)
    traced = torch.fx.symbolic_trace(lambda q, k, cos, sin: embed(q, k, cos, sin))
    torch.testing.assert_close(traced(q, k, cos[:, 0], sin[:, 0]), llama(q, k, cos[:, 0], sin[:, 0]))
    assert turns == []
    with FakeTensorMode():
        module = Attention()
        assert dt.patch(module).swapped
        assert module(torch.empty(3, 5, SIZE)).shape == (3, 5, SIZE)


def outcome(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    try:
        return [y.tolist() for y in call(*args, **named)]
    except Exception as error:
        return repr(error)


def test_what_the_operator_does_not_take_is_the_functions(turns):
    embed = embedding(llama)
    turns.clear()
    q, k, (cos, sin) = draw((3, 2, 5, HEAD), 1), draw((3, 4, 5, HEAD), 2), angles(draw((3, 5, 1), 3))
    other: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((q, k, cos), {}),
        ((q, k, cos, sin, 1, 2), {}),
        ((q, k, cos, sin), {"q": q}),
        ((q, k, cos, sin), {"unsqueeze_dim": 7}),
        ((q, k, cos, sin), {"unsqueeze_dim": True}),
        ((q, k, cos[..., :4], sin[..., :4]), {}),
        ((q, None, cos, sin), {}),
        ((q.long(), k, cos, sin), {}),
        ((q.to(torch.complex64), k, cos, sin), {}),
        ((q[:1], k[:1], cos.expand(3, -1, -1), sin.expand(3, -1, -1)), {}),  # the results are larger
        ((q[0], k[0], cos, sin), {"unsqueeze_dim": 0}),
        ((q, k.double(), cos, sin), {}),
    ]
    for args, named in other:
        wanted = outcome(llama, *args, **named)
        assert outcome(embed, *args, **named) == wanted, named
    foreign = embed(q.as_subclass(Foreign), k, cos, sin)[0]
    assert type(foreign) is Foreign
    assert turns == []
    for one, wanted in zip(embed(k=k, sin=sin, q=q, cos=cos), llama(q, k, cos, sin), strict=True):
        torch.testing.assert_close(one, wanted)
    assert len(turns) == 2
    empty = embed(q[:0], k[:, :0], cos, sin)
    assert [y.shape for y in empty] == [(0, 2, 5, HEAD), (3, 0, 5, HEAD)]


def test_another_function_in_its_place_later(use, turns):
    """The forward asks for the function in each call, and a second model is patched for what it calls then."""
    use(llama)
    ours, theirs = pair()
    turns.clear()
    use(lambda q, k, cos, sin: (q, k))
    assert torch.equal(ours(given()), theirs(given()))
    use(cohere)
    assert torch.equal(ours(given()), theirs(given()))
    assert turns == []
    ours, theirs = pair()
    turns.clear()
    torch.testing.assert_close(ours(given()), theirs(given()))
    assert len(turns) == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_small_inputs_are_the_functions(compiled, use, turns, monkeypatch):
    use(llama)
    ours, theirs = pair()
    x, longer = (draw((3, length, SIZE), 1) for length in (5, 6))  # 480 and 576 elements
    monkeypatch.setattr(rotary, "_SMALLEST_COMPILED" if compiled else "_SMALLEST", 576)
    call = torch.compile(ours, backend="eager", dynamic=False) if compiled else ours
    turns.clear()
    assert torch.equal(call(x), theirs(x))
    assert turns == []
    torch.testing.assert_close(call(longer), theirs(longer))
    assert len(turns) == 2


def one_input(x, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return (x * cos) + (rotate_half(x) * sin)


def gptj(tensor, sin, cos):
    sin = torch.repeat_interleave(sin[:, :, None, :], 2, 3)
    cos = torch.repeat_interleave(cos[:, :, None, :], 2, 3)
    return (tensor * cos) + (rotate_pairs(tensor) * sin)


def vision(q, k, cos, sin):
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    q_type, k_type, q, k = q.dtype, k.dtype, q.float(), k.float()
    return (q * cos + rotate_half(q) * sin).to(q_type), (k * cos + rotate_half(k) * sin).to(k_type)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (one_input, [(2, 3, 5, 8), (2, 5, 8), (2, 5, 8)]),
        (gptj, [(2, 5, 3, 8), (2, 5, 4), (2, 5, 4)]),
        (vision, [(5, 3, 8), (5, 3, 8), (5, 8), (5, 8)]),
    ],
)
def test_functions_of_other_arguments(function, shapes, turns):
    embed = embedding(function)
    turns.clear()
    args = [draw(shape, n) for n, shape in enumerate(shapes)]
    torch.testing.assert_close(embed(*args), function(*args))
    assert len(turns) == len(shapes) - 2


def clamped(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q.clamp(-1e5, 1e5), k, cos, sin, unsqueeze_dim)


def backwards(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q, k, cos, -sin, unsqueeze_dim)


def detached(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q, k.detach(), cos, sin, unsqueeze_dim)


def constant(q, k, cos, sin, unsqueeze_dim=1):
    with torch.no_grad():
        return llama(q, k, cos, sin, unsqueeze_dim)


def overwriting(q, k, cos, sin, unsqueeze_dim=1):
    return q.mul_(cos.unsqueeze(1)), k


def listed(q, k, cos, sin, unsqueeze_dim=1):
    return list(llama(q, k, cos, sin, unsqueeze_dim))


def fixed(q, k, cos, sin, unsqueeze_dim=1):
    return llama(q, k, cos, sin, 1)


def with_prefix(q, k, cos, sin, **named):
    """DINO's: tokens in front of the patches stay."""
    n = q.shape[-2] - sin.shape[-2]
    turned = [x[..., n:, :] * cos + rotate_half(x[..., n:, :]) * sin for x in (q, k)]
    return tuple(torch.cat((x[..., :n, :], y), dim=-2) for x, y in zip((q, k), turned, strict=True))


def scaled(q, k, cos, sin, scale, unsqueeze_dim=1):
    return llama(q * scale, k * scale, cos, sin, unsqueeze_dim)


OTHERS = (clamped, backwards, detached, constant, overwriting, listed, fixed, with_prefix, scaled)


@pytest.mark.parametrize("function", [*OTHERS, torch.compile(llama, backend="eager")], ids=lambda f: f.__name__)
def test_functions_that_are_left_alone(function, use):
    use(function)
    module = Attention()
    report = dt.patch(module)
    assert report.left == {
        "": "Attention: it calls apply_rotary_pos_emb, which is no rotary embedding of a form that is known"
    }
    assert type(module) is Attention


class LocalsAttention(Attention):
    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return len(locals()), apply_rotary_pos_emb(q, k, cos, sin)


namespace: dict[str, Any] = {"Attention": Attention, "turn": llama}
exec("class SourcelessAttention(Attention):\n    def forward(self, x): return turn(x, x, x, x)\n", namespace)


def hooked() -> nn.Module:
    module = Attention()
    module.register_forward_hook(print)
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (LocalsAttention, "it calls apply_rotary_pos_emb, but its forward asks for its local variables"),
        (hooked, "it calls apply_rotary_pos_emb, but it has hooks"),
        (namespace["SourcelessAttention"], "whether it calls turn is not known: its forward has no source"),
    ],
)
def test_forwards_that_are_left_alone_and_why(make, reason, use):
    use(llama)
    module = make()
    assert dt.patch(module).left == {"": f"{type(module).__name__}: {reason}"}


class NamingAttention(Attention):
    """Says the name, and calls something else."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = apply_rotary_pos_emb
        return chosen(*(self.q(x).view(*x.shape[:2], -1, HEAD).transpose(1, 2),) * 2, *angles(x))[0]


def test_what_calls_no_such_function_is_not_in_the_report(use):
    use(llama)
    report = dt.patch(nn.ModuleList([NamingAttention(), nn.MultiheadAttention(SIZE, HEADS)]))
    assert (report.swapped, report.left) == ({}, {})


class Block(nn.Module):
    """Attention and the residual connection in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = LlamaNorm(SIZE), LlamaNorm(SIZE)
        self.q, self.k, self.out = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        heads = (each(y).view(*x.shape[:2], -1, HEAD).transpose(1, 2) for each in (self.q, self.k))
        q, k = apply_rotary_pos_emb(*heads, *angles(x))
        x = x + self.out((q + k).transpose(1, 2).reshape(x.shape))
        return self.after(x)


def test_sums_and_positions_in_one_forward(use, turns):
    use(llama)
    theirs = Block()
    ours = copy.deepcopy(theirs)
    report = dt.patch(ours)
    assert report.swapped[""] == ("Block -> add_rms_norm at after, rotary_position_embedding in apply_rotary_pos_emb")
    turns.clear()
    x = given()
    torch.testing.assert_close(ours(x), theirs(x))
    assert len(turns) == 2
