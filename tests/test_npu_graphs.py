"""Graphs of torch_npu on device npu: what a capture records, what a replay computes, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch_npu = pytest.importorskip("torch_npu")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from descend.npu import recording  # noqa: E402

npu: Any = torch_npu.npu


@pytest.fixture(autouse=True)
def on_the_default_stream() -> Iterator[None]:
    """A capture that is invalid leaves its stream current, as on a processor."""
    torch.manual_seed(0)
    yield
    assert not npu.is_current_stream_capturing()
    npu.set_stream(npu.default_stream())
    npu.synchronize()


def captured(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph, and what its capture returned."""
    graph = npu.NPUGraph()
    with npu.graph(graph):
        assert npu.is_current_stream_capturing()
        result = compute()
    return graph, result


def test_a_replay_reads_what_the_inputs_hold():
    x = torch.zeros(3).npu()
    graph, y = captured(lambda: x * 2 + 1)
    address = y.data_ptr()
    for value in (1, 5):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value + 1] * 3
    assert y.data_ptr() == address


def test_a_capture_changes_nothing_that_was_there():
    x, pinned = torch.zeros(3).npu(), torch.full((3,), 7.0, pin_memory=True)
    batch_norm = nn.BatchNorm1d(3).npu()

    def compute() -> Tensor:
        x.add_(1)
        x[1:] *= 2
        batch_norm(torch.ones(2, 3, device="npu"))
        pinned.copy_(x, non_blocking=True)
        return x + 1

    graph, y = captured(compute)
    assert x.tolist() == [0, 0, 0]
    assert pinned.tolist() == [7, 7, 7]
    assert batch_norm.running_mean.tolist() == [0, 0, 0]
    graph.replay()
    npu.synchronize()
    assert x.tolist() == pinned.tolist() == [1, 2, 2]
    assert y.tolist() == [2, 3, 3]
    torch.testing.assert_close(batch_norm.running_mean.cpu(), torch.full((3,), 0.1))


def test_values_that_go_to_the_cpu_without_waiting(capsys):
    x = torch.ones(2).npu()

    def compute() -> Tensor:
        torch.ops.npu.print_npugraph_tensor(x, tensor_name="x")
        return x.to("cpu", non_blocking=True)

    graph, copied = captured(compute)
    x.fill_(5)
    graph.replay()
    npu.synchronize()
    assert copied.tolist() == [5, 5]
    assert capsys.readouterr().out.count("x=tensor") == 1  # not in the capture


def test_a_tensor_is_saved_at_each_replay_under_one_name(tmp_path):
    x = torch.ones(2).npu()
    graph, _ = captured(lambda: torch.ops.npu.save_npugraph_tensor(x, save_path=str(tmp_path / "x.pt")))
    assert not list(tmp_path.iterdir())
    for value in (3, 4):
        x.fill_(value)
        graph.replay()
        npu.synchronize()
        [file] = tmp_path.iterdir()
        assert torch.load(file).tolist() == [value, value]


def test_functions_of_the_host_run_at_the_replay_in_their_place():
    x, seen = torch.ones(2).npu(), []
    stream = npu.Stream()
    npu._subscribe_report(stream)

    def compute() -> Tensor:
        y = x + 1
        there = y.to("cpu", non_blocking=True)
        npu._launch_host_func(npu.current_stream(), lambda there: seen.append(there.tolist()), there)
        return y.mul_(0)

    graph = npu.NPUGraph()
    with npu.graph(graph, stream=stream):
        y = compute()
    assert seen == []
    for value in (3, 4):
        x.fill_(value)
        graph.replay()
        npu.synchronize()
    assert seen == [[4, 4], [5, 5]]
    assert y.tolist() == [0, 0]
    npu._unsubscribe_report(stream)


def test_an_empty_tensor_is_no_copy():
    x = torch.ones(3).npu()
    graph, y = captured(lambda: torch.cat([torch.tensor([], device="npu"), x]))
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_addresses_are_those_of_the_capture():
    parameter = nn.Parameter(torch.ones(2).npu())
    graph, y = captured(lambda: parameter * 3)
    memory, parameter.data = parameter.data, torch.zeros(2).npu()
    memory.fill_(5)
    graph.replay()
    assert y.tolist() == [15, 15]


def test_random_numbers_are_those_of_eager():
    x = torch.ones(64).npu()
    torch.manual_seed(3)
    expected = [F.dropout(x, 0.5) for _ in range(3)]
    torch.manual_seed(3)
    graph, y = captured(lambda: F.dropout(x, 0.5))
    for each in expected:
        graph.replay()
        assert torch.equal(y, each)


def draw_again(x: Tensor) -> list[Tensor]:
    """Numbers before a state is kept, behind it, behind it again, and after that."""
    first, state = F.dropout(x, 0.5), npu.get_rng_state()
    second = torch.rand_like(x)
    npu.set_rng_state(state)
    return [first, second, torch.rand_like(x), F.dropout(x, 0.5)]


def recompute(x: Tensor) -> list[Tensor]:
    """A gradient for which dropout is computed again, as it was."""
    given = x.detach().requires_grad_()
    y = checkpoint(lambda given: F.dropout(given, 0.5) * given, given, use_reentrant=False)
    return [y.detach(), *torch.autograd.grad(y.sum(), given), torch.rand_like(x)]


def attend(x: Tensor) -> list[Tensor]:
    """Attention with dropout, whose gradient draws by the seed and the offset that are kept on the CPU."""
    given = x.view(1, 2, 4, 8).detach().requires_grad_()
    y = torch_npu.npu_fusion_attention(given, given, given, 2, "BNSD", scale=0.5, keep_prob=0.5)[0]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), given)]


@pytest.mark.parametrize("compute", [draw_again, recompute, attend])
def test_random_numbers_that_are_drawn_again(compute):
    x = torch.linspace(-1, 1, 64).npu()
    torch.manual_seed(3)
    expected = [compute(x) for _ in range(2)]
    after = torch.rand(4, device="npu")
    graph, found = captured(lambda: compute(x))
    torch.manual_seed(3)
    for each in expected:
        graph.replay()
        assert all(map(torch.equal, found, each))
    assert torch.equal(torch.rand(4, device="npu"), after)


def test_a_generator_of_the_program_that_is_set_back():
    generator = torch.Generator("npu")
    x = torch.empty(8).npu()

    def compute() -> list[Tensor]:
        first, state = torch.rand(8, device="npu", generator=generator), generator.get_state()
        second = x.uniform_(generator=generator).clone()
        generator.set_state(state)
        return [first, second, torch.rand(8, device="npu", generator=generator)]

    generator.manual_seed(5)
    expected = [compute() for _ in range(2)]
    generator.manual_seed(7)
    torch.rand(4, device="npu", generator=generator)
    before = generator.get_state()
    graph, found = captured(compute)
    assert torch.equal(generator.get_state(), before)
    generator.manual_seed(5)
    for each in expected:
        graph.replay()
        assert all(map(torch.equal, found, each))


def test_a_seed_that_is_set_again_has_no_effect_in_a_capture():
    x = torch.ones(8).npu()
    torch.manual_seed(3)
    expected = [torch.rand_like(x) for _ in range(2)]
    torch.manual_seed(3)
    graph, found = captured(lambda: [torch.rand_like(x), torch.manual_seed(3) and torch.rand_like(x)])
    graph.replay()
    assert all(map(torch.equal, found, expected))


def test_what_waits_is_refused_and_the_capture_goes_on():
    x = torch.ones(2).npu()

    def compute() -> Tensor:
        with pytest.raises(RuntimeError, match="brings values of the device to the CPU"):
            x.sum().item()
        assert str(torch.ones(2)) == "tensor([1., 1.])"  # of the CPU
        return x + 1

    graph, y = captured(compute)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3, 3]


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, capturable=True),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step_of_training(name):
    """PyTorch's example for CUDA graphs, beside the same steps without a graph."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4)).npu()
    optimizer = OPTIMIZERS[name](model.parameters())
    static_x, static_y = torch.randn(6, 8).npu(), torch.randn(6, 4).npu()

    def step(module: nn.Module, by: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        by.zero_grad(set_to_none=True)
        loss = F.mse_loss(module(x), y)
        loss.backward()
        by.step()
        return loss

    side = npu.Stream()
    side.wait_stream(npu.current_stream())
    with npu.stream(side):
        for _ in range(3):
            step(model, optimizer, static_x, static_y)
    npu.current_stream().wait_stream(side)
    other = copy.deepcopy(model)
    by = OPTIMIZERS[name](other.parameters())
    by.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    graph, loss = captured(lambda: step(model, optimizer, static_x, static_y))
    batches = [(torch.randn(6, 8).npu(), torch.randn(6, 4).npu()) for _ in range(3)]
    torch.manual_seed(4)
    found = []
    for x, y in batches:
        static_x.copy_(x)
        static_y.copy_(y)
        graph.replay()
        found.append(loss.item())
    torch.manual_seed(4)
    assert found == [step(other, by, x, y).item() for x, y in batches]


def test_make_graphed_callables():
    def modules() -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU()).npu(), nn.Linear(8, 2).npu()

    samples = (torch.randn(3, 4).npu().requires_grad_(),), (torch.randn(3, 8).npu().requires_grad_(),)
    eager, graphed = modules(), npu.make_graphed_callables(modules(), samples)
    for _ in range(2):
        x = torch.randn(3, 4).npu()
        found = []
        for first, second in (eager, graphed):
            given = x.clone().requires_grad_()
            y = second(first(given).sin())
            parameters = (*first.parameters(), *second.parameters())
            found.append((y.detach(), *torch.autograd.grad(y.square().sum(), (given, *parameters))))
            found[-1] = tuple(each.clone() for each in found[-1])
        assert all(map(torch.equal, *found))
    assert torch.equal(graphed[1].eval()(torch.ones(5, 8).npu()), eager[1](torch.ones(5, 8).npu()))


def test_graphs_that_share_a_pool_and_a_stream_beside():
    x, side = torch.ones(3).npu(), npu.Stream()
    first, y = captured(lambda: x + 1)
    second = npu.NPUGraph()
    with npu.graph(second, pool=first.pool()):
        side.wait_stream(npu.current_stream())
        with npu.stream(side):
            z = y * 2
            assert npu.is_current_stream_capturing()
        npu.current_stream().wait_stream(side)
    assert second.pool() == first.pool()
    x.fill_(4)
    first.replay()
    second.replay()
    assert z.tolist() == [10, 10, 10]


def test_the_operators_are_written_as_a_trace(tmp_path):
    x = torch.ones(2, 3).npu()
    graph, _ = captured(lambda: (x + 1).sum(0))
    graph.debug_dump(str(tmp_path / "graph.json"))
    events = json.loads((tmp_path / "graph.json").read_text())
    assert [event["name"] for event in events] == ["aten.add.Tensor", "aten.sum.dim_IntList"]
    assert events[0]["args"] == {"tensors": ["float32[2, 3]"]}
    assert (tmp_path / "graph.aligned.json").exists()  # which torch_npu writes
    with pytest.warns(UserWarning, match="debug_dump without a preceding successful capture"):
        npu.NPUGraph().debug_dump(str(tmp_path / "none.json"))
    assert not (tmp_path / "none.json").exists()


# --- operators whose arguments are updated ----------------------------------------------------------------------------

OPERATORS = {
    "npu_fused_infer_attention_score": ("num_heads", "scale", "actual_seq_lengths_kv", "softmax_lse_flag"),
    "npu_fused_infer_attention_score_v2": (
        *("num_query_heads", "softmax_scale", "actual_seq_kvlen"),
        "return_softmax_lse",
    ),
}


class Attention:
    """A call of generation's attention, whose lengths of keys change from step to step."""

    def __init__(self, name: str) -> None:
        heads, scale, self.lengths, lse = OPERATORS[name]
        self.name, self.operator = name, getattr(torch_npu, name)
        self.tensors = [torch.randn(2, 4, s, 16).half().npu() for s in (1, 32, 32)]
        self.options = {heads: 4, scale: 0.25, lse: True, "input_layout": "BNSD"}

    def __call__(self, lengths: list[int], **more: Any) -> Any:
        operator = self.operator.out if "out" in more else self.operator
        return operator(*self.tensors, **self.options, **{self.lengths: lengths}, **more)

    def outs(self) -> list[Tensor]:
        return [torch.zeros(2, 4, 1, 16).half().npu(), torch.zeros(2, 4, 1, 1).npu()]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("by_out", [False, True])
def test_torch_npu_updates_attention(name, by_out):
    attention = Attention(name)
    outs, graph = attention.outs(), npu.NPUGraph()
    with npu.graph(graph, auto_dispatch_capture=True):
        results = attention([8, 9], out=outs) if by_out else attention([8, 9])
        doubled = results[0] * 2
    for lengths in ([3, 30], [32, 1]):
        attention.tensors[0].normal_()
        graph.update(cpu_update_input=[{attention.lengths: lengths}])
        graph.replay()
        expected = attention(lengths)
        assert all(map(torch.equal, results, expected))
        assert torch.equal(doubled, expected[0] * 2)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_program_updates_a_group(name, at_once):
    attention = Attention(name)
    outs, graph, event, stream = attention.outs(), npu.NPUGraph(), npu.ExternalEvent(), npu.Stream()
    with npu.graph(graph):
        event.wait(npu.current_stream())
        event.reset(npu.current_stream())
        npu.graph_task_group_begin(npu.current_stream())
        attention([8, 9], out=outs)
        handle = npu.graph_task_group_end(npu.current_stream())
    before = [each.clone() for each in outs]
    with npu.stream(stream):
        if at_once:
            named = attention.options | {attention.lengths: [3, 30], "out": outs}
            getattr(torch_npu._C, f"_{name}_out_graph")(stream, handle, event, *attention.tensors, **named)
        else:
            npu.graph_task_update_begin(stream, handle)
            attention([3, 30], out=outs)
            npu.graph_task_update_end(stream)
            event.record(stream)
    assert all(map(torch.equal, outs, before))  # an update computes nothing
    graph.replay()
    assert all(map(torch.equal, outs, attention([3, 30])))
    with pytest.raises(RuntimeError, match="an ExternalEvent that is not recorded"):
        graph.replay()


def test_wrong_updates():
    x, graph = torch.ones(3).npu(), npu.NPUGraph()
    stream = npu.current_stream()
    with pytest.raises(RuntimeError, match="graph_task_group_begin without a capture"):
        npu.graph_task_group_begin(stream)
    with npu.graph(graph):
        npu.graph_task_group_begin(stream)
        x.add_(1)
        handle = npu.graph_task_group_end(stream)
    npu.graph_task_update_begin(stream, handle)
    x.mul_(2)
    with pytest.raises(RuntimeError, match=r"has the operators aten\.mul_\.Tensor, and its group aten\.add_\.Tensor"):
        npu.graph_task_update_end(stream)
    with pytest.raises(RuntimeError, match="without graph_task_update_begin"):
        npu.graph_task_update_end(stream)
    graph.replay()
    assert x.tolist() == [2, 2, 2]


def test_a_group_has_the_order_of_the_program():
    x, seen, graph, event = torch.zeros(2).npu(), [], npu.NPUGraph(), npu.ExternalEvent()
    stream = npu.Stream()
    npu._subscribe_report(stream)
    with npu.graph(graph, stream=stream):
        npu.graph_task_group_begin(stream)
        x.add_(1)
        npu._launch_host_func(stream, lambda _: seen.append(ctypes.c_float.from_address(x.data_ptr()).value), None)
        x.mul_(5)
        event.wait(stream)
        event.reset(stream)
        handle = npu.graph_task_group_end(stream)
        x.add_(100)
    with pytest.raises(RuntimeError, match="an ExternalEvent that is not recorded"):
        graph.replay()
    npu.synchronize()
    assert x.tolist() == [5, 5]  # what came before the wait
    event.record()
    npu.graph_task_update_begin(stream, handle)
    x.add_(2)
    x.mul_(3)
    npu.graph_task_update_end(stream)
    graph.replay()
    npu.synchronize()
    assert (seen, x.tolist()) == ([1, 7], [121, 121])
    npu._unsubscribe_report(stream)


def test_a_state_that_is_set_back_in_a_group():
    x = torch.zeros(8).npu()

    def compute(begin: Callable[[Any], Any], end: Callable[[Any], Any]) -> list[Tensor]:
        first, state = torch.rand_like(x), npu.get_rng_state()
        begin(npu.current_stream())
        second = torch.rand_like(x)
        npu.set_rng_state(state)
        third = torch.rand_like(x)
        end(npu.current_stream())
        return [first, second, third]

    torch.manual_seed(3)
    expected = compute(lambda _: None, lambda _: None)
    torch.manual_seed(3)
    graph, found = captured(lambda: compute(npu.graph_task_group_begin, npu.graph_task_group_end))
    graph.replay()
    assert all(map(torch.equal, found, expected))


def test_a_group_that_does_not_end():
    x, graph = torch.ones(3).npu(), npu.NPUGraph()

    def compute(error: Exception | None = None) -> None:
        with npu.graph(graph):
            npu.graph_task_group_begin(npu.current_stream())
            x.add_(1)
            if error:
                raise error

    for error, kind, sentence in (
        (None, RuntimeError, "invalid: a group of tasks has begun and not ended"),
        (ValueError("of the program"), ValueError, "of the program"),
    ):
        with pytest.raises(kind, match=sentence):
            compute(error)
        npu.set_stream(npu.default_stream())
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()


@pytest.mark.parametrize("name", OPERATORS)
def test_an_update_that_fails_leaves_its_group(name):
    attention = Attention(name)
    outs, graph, event, stream = attention.outs(), npu.NPUGraph(), npu.ExternalEvent(), npu.Stream()
    with npu.graph(graph):
        npu.graph_task_group_begin(npu.current_stream())
        attention([8, 9], out=outs)
        handle = npu.graph_task_group_end(npu.current_stream())
    named = attention.options | {"out": outs, "unknown": 1}
    with pytest.raises(RuntimeError, match="unknown"):
        getattr(torch_npu._C, f"_{name}_out_graph")(stream, handle, event, *attention.tensors, **named)
    graph.replay()
    assert all(map(torch.equal, outs, attention([8, 9])))


def test_the_numbers_of_an_updated_attention_are_those_of_the_replay():
    """The seed of version 3 is a tensor of the CPU, which a replay overwrites."""
    x = torch.randn(1, 2, 4, 8).npu()
    seeds = [torch.zeros(1, dtype=torch.int64)]
    calls = [recording._Call(torch.ops.aten.add_.Tensor, (x, 1), {}, (), [1, 2], [3, 4])]
    group = recording.TaskGroup({seeds[0].untyped_storage()._cdata})
    group.steps += calls
    update = recording.Update(group)
    with update:
        x.add_(seeds[0])
    group.update(update._calls)
    [call] = group.steps
    assert call.args[1].data_ptr() == seeds[0].data_ptr()
    assert call.drawn_by is calls[0].drawn_by
    assert call.numbers is calls[0].numbers


def test_a_graph_records_an_event_at_its_replay():
    x, event = torch.ones(2).npu(), npu.ExternalEvent()
    recording_graph, _ = captured(lambda: event.record(npu.current_stream()))
    waiting, _ = captured(lambda: (event.wait(npu.current_stream()), event.reset(npu.current_stream()), x + 1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="an ExternalEvent that is not recorded"):
            waiting.replay()
        recording_graph.replay()
        waiting.replay()


def test_a_seed_of_one_device_and_of_all(monkeypatch):
    x = torch.ones(2).npu()
    other = torch.Generator("npu").manual_seed(5)
    torch.manual_seed(3)
    monkeypatch.setattr(npu, "default_generators", (*npu.default_generators, other))
    captured(lambda: (npu.manual_seed(3), x + 1))
    with pytest.raises(RuntimeError, match="only if new seed is the same"):
        captured(lambda: (npu.manual_seed_all(3), x + 1))


def test_operators_of_torch_npu_and_compiled_functions():
    x, gamma = torch.randn(2, 4, 16).npu(), torch.ones(16).npu()
    q = torch.randn(1, 2, 16, 16).npu().requires_grad_()
    linear = nn.Linear(16, 4).npu()
    compiled = torch.compile(linear)
    compiled(x)

    def compute() -> tuple[Tensor, ...]:
        a = torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", scale=0.25)[0]
        b = F.scaled_dot_product_attention(q, q, q)
        normed = torch_npu.npu_rms_norm(x, gamma)[0]
        return torch_npu.npu_swiglu(normed), F.softmax(x, -1), compiled(x), *torch.autograd.grad((a + b).sum(), q)

    graph, results = captured(compute)
    x.copy_(torch.randn(2, 4, 16))
    q.data.copy_(torch.randn(1, 2, 16, 16))
    graph.replay()
    assert all(map(torch.equal, results, compute()))


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "cpu": (lambda x: x.cpu(), "copied between the CPU and the device"),
    "from the CPU": (lambda x: x.copy_(torch.ones(3)), "copied between the CPU and the device"),
    "a new tensor": (lambda x: torch.ones(3).npu(), "copied between the CPU and the device"),
    "torch.tensor": (lambda x: torch.tensor([1.0], device="npu"), "copied between the CPU and the device"),
    "print": (str, "printing a tensor"),
    "shape": (lambda x: x[x > 0], "the shape of what aten.index.Tensor gives"),
    "synchronize": (lambda x: npu.synchronize(), "waits for the device"),
    "of a stream": (lambda x: npu.current_stream().synchronize(), "waits for the device"),
    "another seed": (lambda x: torch.manual_seed(5), "only if new seed is the same"),
    "another state": (
        lambda x: (npu.set_rng_state(torch.Generator("npu").manual_seed(5).get_state()), torch.rand_like(x)),
        "only if new seed is the same",
    ),
    "replay": (lambda x: captured_before().replay(), "cannot be replayed within a capture"),
}
_graphs: list[Any] = []


def captured_before() -> Any:
    """A graph from before."""
    return _graphs[0]


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_capture_does_not_permit(what):
    x = torch.ones(3).npu()
    _graphs[:] = [captured(lambda: x + 1)[0]]
    call, sentence = REFUSED[what]
    graph = npu.NPUGraph()

    def capture() -> None:
        with npu.graph(graph):
            x.add_(1)
            call(x)

    def capture_on() -> None:
        with npu.graph(npu.NPUGraph()), contextlib.suppress(RuntimeError):
            call(x)

    with pytest.raises(RuntimeError, match=sentence):
        capture()
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="the capture is invalid: .*" + sentence):
        capture_on()
    assert captured(lambda: x + 1)[1].tolist() == [2, 2, 2]


def test_wrong_calls():
    x, graph = torch.ones(3).npu(), npu.NPUGraph()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    for method in (graph.replay, graph.pool):
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            method()
    with npu.graph(graph):
        y = x + 1
        with pytest.raises(RuntimeError, match="a capture is underway"):
            npu.NPUGraph().capture_begin()
    graph.replay()
    assert y.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="already owns a captured graph"), npu.stream(npu.Stream()):
        graph.capture_begin()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
