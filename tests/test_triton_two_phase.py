"""The two-phase API with the Triton kernels: workspaces, executors, errors. In Triton's interpreter, on CPU tensors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("made by test_triton.py, in Triton's interpreter", allow_module_level=True)

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import descend.triton
from cases import HUAWEI, in_threads, refused
from descend import _cuda, _native, acl, aclnn, errors
from descend._device_call import Executor
from descend.contract import OPERATORS
from descend.portability import default
from descend.triton import windows
from test_triton_kernels import row_calls, same
from torch_cases import Call, calls
from triton_calls import NAMES
from triton_plugin import check_guards, two_phase, workspace_of

OP = "rms_norm_grad"
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture(autouse=True)
def host():
    with acl.product("host"):
        yield


def inputs(rows: int = 8, columns: int = 64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator) for s in ((rows, columns), (rows, columns), (rows,), (columns,))]


def outputs(rows: int = 8, columns: int = 64) -> list[Tensor]:
    return [torch.full(s, float("nan")) for s in ((rows, columns), (columns,))]


def expected_of(call: list[Tensor]) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = descend.triton.run(OP, *call)
    return results


def prepare(*arguments: Any, name: str = OP) -> tuple[int, Any]:
    return _cuda.prepare(name, **dict(zip((p.python for p in OPERATORS[name].parameters), arguments, strict=True)))


def arguments_of(call: Call, spread: int = 1) -> tuple[list[Any], list[Tensor]]:
    """All parameters of a call's first phase and, of these, the outputs: NaN, in every ``spread``th place of a room."""
    contract = OPERATORS[call.name]
    parameters = contract.functional_parameters
    given = dict(zip((p.python for p in parameters), call.args, strict=False))
    values = {p.python: default(p) for p in parameters if p.default is not None or p.optional} | given | call.named
    types = _native.infer(call.name, *(values[p.python] for p in contract.parameters if p.role != "output"))
    dtypes = {"FLOAT": torch.float32, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "DOUBLE": torch.float64}
    out = []
    for shape, dtype in types:
        room = torch.full([spread * s for s in shape], float("nan"), dtype=dtypes[dtype])
        out.append(room[tuple(slice(None, None, spread) for _ in shape)])
    values |= dict(zip((p.python for p in contract.outputs), out, strict=True))
    return [values[p.python] for p in contract.parameters], out


def spread(call: Call) -> Call:
    """The call on floats that lie in every other place of a room of NaN."""

    def apart(tensor: Tensor) -> Tensor:
        room = torch.full([2 * s for s in tensor.shape], float("nan"), dtype=tensor.dtype)
        return room[tuple(slice(None, None, 2) for _ in tensor.shape)].copy_(tensor)

    return call.map(apart)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_the_functional_form(name, dtype):
    """In a workspace of exactly the size, NaN before; outputs that are not wanted are left alone."""
    call = calls(dtype)[name]
    results = descend.triton.run(call.name, *call.args, **call.named)
    results = results if isinstance(results, tuple) else (results,)
    arguments, out = arguments_of(call)
    executor = two_phase(call.name, *arguments)
    assert executor.operator == call.name
    for written, expected in zip(out, results, strict=True):
        if expected is None:
            assert bool(written.isnan().all())
        else:
            same((written,), (expected,))


@pytest.mark.parametrize("name", NAMES)
def test_copies_of_strided_tensors_lie_in_the_workspace(name):
    """Inputs and outputs in every other place: their packed copies are counted, and nothing beside is written to."""
    call = calls(torch.float32)[name]
    arguments, packed = arguments_of(call)
    plain_size = two_phase(call.name, *arguments).workspace_size
    arguments, out = arguments_of(spread(call), spread=2)
    executor = two_phase(call.name, *arguments)
    copied = [call.args[i].nbytes for i in call.floats if not name.startswith("layer_norm_backward") or i != 6]  # bias
    copied += [packed[i].nbytes for i in range(len(packed)) if not bool(packed[i].isnan().all())]
    assert executor.workspace_size >= plain_size + sum(copied)
    for written, expected in zip(out, packed, strict=True):
        room = written._base
        assert room is not None
        if not bool(expected.isnan().all()):
            same((written,), (expected,))
            assert int(room.isnan().sum()) == room.numel() - written.numel()


@pytest.mark.parametrize(("rows", "columns"), [(300, 64), (3, 17_000)])
@pytest.mark.parametrize("name", row_calls(1, 1, torch.float32))
def test_rows_whole_and_in_chunks(name, rows, columns):
    call = Call(name, tuple(row_calls(rows, columns, torch.float32)[name]))
    arguments, out = arguments_of(call)
    two_phase(name, *arguments)
    results = descend.triton.run(name, *call.args)
    for written, expected in zip(out, results if isinstance(results, tuple) else (results,), strict=True):
        if expected is not None:
            same((written,), (expected,))


class _Memory(TorchDispatchMode):
    """Notes the memory of all that PyTorch's operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.found.add(result.untyped_storage().data_ptr())
        return result


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_second_phase_allocates_nothing(name, strided, monkeypatch):
    """Whatever PyTorch is asked for lies in the arguments, the workspace, or what the executor keeps."""
    call = calls(torch.float32)[name]
    arguments, _ = arguments_of(spread(call), 2) if strided else arguments_of(call)
    size, executor = prepare(*arguments, name=call.name)
    workspace = torch.empty(size + 16, dtype=torch.uint8)
    tensors = [t for t in (*arguments, workspace) if isinstance(t, Tensor)]
    tensors += [s.table for s in executor._kept.values() if s.table is not None]
    known = {t.untyped_storage().data_ptr() for t in tensors}
    monkeypatch.setattr(
        descend.triton.work.Work, "start", lambda *_, **__: None
    )  # the interpreter has memory of its own
    monkeypatch.setattr(windows, "_tables", {})  # what other calls made is of no use
    with _Memory() as memory:
        executor.launch(call.name, workspace, size, None)
    assert memory.found <= known


# --- executors and workspaces -----------------------------------------------------------------------------------------


def test_the_first_phase_says_what_the_second_needs():
    size, executor = prepare(*inputs(), *outputs())
    assert type(size) is int
    assert size == executor.workspace_size == 64 * 4  # one slot of one column sum
    assert executor.operator == OP
    assert executor.computes == ("dx_out", "dgamma_out")
    assert executor.plan == "norm_backward.rows_kernel x 1, functions.add_slots_kernel x 1"
    assert not executor.spent


def test_nothing_to_do():
    size, executor = prepare(*inputs(0, 0), *outputs(0, 0))
    assert (size, executor.plan) == (0, "nothing to do")
    aclnn.rms_norm_grad(None, 0, executor, None)
    with refused(161002, OP, "used already"):
        aclnn.rms_norm_grad(None, 0, executor, None)


def test_an_executor_is_spent_after_one_run_unless_it_is_repeatable():
    call, result = inputs(), outputs()
    expected = expected_of(call)
    size, executor = prepare(*call, *result)
    workspace = torch.empty(size, dtype=torch.uint8)
    with refused(161001, OP, "workspace is null", str(size)):
        aclnn.rms_norm_grad(None, size, executor, None)
    assert not executor.spent  # a launch that failed
    assert bool(result[0].isnan().all())
    aclnn.rms_norm_grad(workspace, size, executor, None)
    assert executor.spent
    same(tuple(result), expected)
    for tensor in result:
        tensor.fill_(7)
    with refused(161002, OP, "used already"):
        aclnn.rms_norm_grad(workspace, size, executor, None)
    assert bool((result[0] == 7).all())
    executor.set_repeatable()  # for what it is asked from now on
    size, executor = prepare(*call, *result)
    executor.set_repeatable()
    for seed in range(3):
        for tensor, value in zip(call, inputs(seed=seed), strict=True):
            tensor.copy_(value)
        aclnn.rms_norm_grad(workspace, size, executor, None)
        same(tuple(result), expected_of(call))
        assert not executor.spent


def test_other_memory():
    call, result = inputs(seed=1), outputs()
    size, executor = prepare(*call, *result)
    executor.set_repeatable()
    other, elsewhere = inputs(seed=9), outputs()
    for name, tensor in zip(("dy", "x", "rstd", "gamma", "dx_out", "dgamma_out"), [*other, *elsewhere], strict=True):
        executor.set_tensor(name, tensor)
    workspace = torch.empty(size, dtype=torch.uint8)
    aclnn.rms_norm_grad(workspace, size, executor, None)
    same(tuple(elsewhere), expected_of(other))
    assert bool(result[0].isnan().all())


def test_changed_tensors_pass_the_contract_again():
    call, result = inputs(), outputs()
    size, executor = prepare(*call, *result)
    executor.set_repeatable()
    workspace = torch.empty(size, dtype=torch.uint8)
    for name, tensor, words in (
        ("x", call[1].half(), "FLOAT"),
        ("x", call[1][:4], "[8, 64]"),
        ("x", call[1].t().contiguous().t(), "[64, 1]"),
        ("dx_out", torch.zeros(64, 8), "[8, 64]"),
        ("x", call[1].to("meta"), "cpu"),
    ):
        with refused(161002, OP, f"{name} must keep", words):
            executor.set_tensor(name, tensor)
    with pytest.raises(ValueError, match=r"^rms_norm_grad has no tensor named z\."):
        executor.set_tensor("z", call[1])
    for wrong in (None, [1.0], np.zeros((8, 64), np.float32)):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: x is .*, but must be a tensor like the others\.$"):
            executor.set_tensor("x", wrong)
    # In place is fine, and an overlap is seen at the launch.
    expected = expected_of(call)
    executor.set_tensor("dx_out", call[0])
    aclnn.rms_norm_grad(workspace, size, executor, None)
    same((call[0],), expected[:1])
    room = torch.zeros(9, 64)
    executor.set_tensor("x", room[:8])
    executor.set_tensor("dx_out", room[1:])
    for _ in range(2):
        with refused(161002, OP, "dx_out overlaps x"):
            aclnn.rms_norm_grad(workspace, size, executor, None)
    executor.set_tensor("dx_out", result[0])
    aclnn.rms_norm_grad(workspace, size, executor, None)


def test_a_tensor_that_was_null_stays_it():
    x, statistic = inputs()[0], torch.ones(8)
    size, executor = prepare(
        *(x, x, [64], statistic, statistic, None, None, [True, False, False], torch.empty(8, 64), None, None),
        name="layer_norm_backward",
    )
    assert size == 0
    with refused(161002, "layer_norm_backward", "weight was no tensor"):
        executor.set_tensor("weight", torch.ones(64))


def test_an_executor_of_another_operator():
    x, gamma = torch.ones(2, 8), torch.ones(8)
    size, executor = prepare(x, gamma, 1e-6, torch.empty(2, 8), torch.empty(2), name="rms_norm")
    with refused(161002, OP, "made for rms_norm"):
        aclnn.rms_norm_grad(None, size, executor, None)
    aclnn.rms_norm(None, size, executor, None)


def test_workspaces():
    call = inputs()
    expected = expected_of(call)
    size, _ = prepare(*call, *outputs())

    def launch(workspace: Any, given: Any) -> None:
        result = outputs()
        _, executor = prepare(*call, *result)
        aclnn.rms_norm_grad(workspace, given, executor, None)
        same(tuple(result), expected)

    def room(count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        return torch.full((count,), 77, dtype=dtype)

    launch(room(size), size)
    launch(room(3 * size), size)
    launch(room(size // 4 + 1, torch.float32), np.int64(size))
    launch(room(size // 8, torch.float64).view(2, -1), size)
    around = room(size + 64)
    start = -around.data_ptr() % 16
    launch(around[start + 16 :], size)
    with refused(161002, OP, f"{size - 1} bytes", str(size)):
        launch(room(size), size - 1)
    for none in (0, -1):
        with refused(161002, OP, "0 bytes", str(size)):
            launch(room(size), none)
    with refused(161002, OP, f"said to have {size}", f"{size - 8}"):
        launch(room(size - 8), size)
    for null in (None, 0):
        with refused(161001, OP, "workspace is null", str(size)):
            launch(null, size)
    for shift in (1, 2, 4, 8):
        with refused(161002, OP, "aligned to 16"):
            launch(around[start + shift :], size)
    with refused(161002, OP, "contiguous"):
        launch(torch.zeros(size, 2)[:, 0], size)
    with refused(161002, OP, "the workspace is on meta, but the tensors are on cpu"):
        launch(torch.empty(size, device="meta"), size)
    for wrong in (bytes(size), bytearray(size), "workspace", acl.malloc(size), True, np.zeros(size, np.uint8)):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: workspace is an? .*, but must be None, a tensor on cpu"):
            launch(wrong, size)


def test_a_workspace_by_its_address():
    call, result = inputs(), outputs()
    size, executor = prepare(*call, *result)
    workspace, memory = workspace_of(size)
    aclnn.rms_norm_grad(workspace.data_ptr(), size, executor, None)
    check_guards(memory)
    assert not bool((workspace == 0xFF).all())
    same(tuple(result), expected_of(call))


def test_wrong_types_of_the_second_phase():
    size, executor = prepare(*inputs(), *outputs())
    workspace = torch.empty(size, dtype=torch.uint8)
    for wrong in (1.5, "4096", None, True):
        with pytest.raises(TypeError, match=r"^rms_norm_grad: workspace_size is .*, but must be an integer\.$"):
            aclnn.rms_norm_grad(workspace, wrong, executor, None)
    for wrong in (0, "stream", workspace, acl.Stream(), object()):
        with refused(361001, OP, "stream is a", "must be a torch.cpu.Stream or None"):
            aclnn.rms_norm_grad(workspace, size, executor, wrong)
    assert not executor.spent
    aclnn.rms_norm_grad(workspace, size, executor, torch.cpu.Stream())
    # The other way round: what the engine prepared does not take these.
    arrays = [tensor.numpy() for tensor in (*inputs(), *outputs())]
    size, executor = aclnn.rms_norm_grad_get_workspace_size(*arrays)
    with refused(361001, OP, "acl.Stream"):
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, torch.cpu.Stream())


def test_a_stream_of_another_device():
    class Elsewhere(torch.cpu.Stream):
        device = torch.device("cuda:1")

    size, executor = prepare(*inputs(), *outputs())
    with refused(361001, OP, "stream is one of cuda:1, but the tensors are on cpu"):
        aclnn.rms_norm_grad(torch.empty(size, dtype=torch.uint8), size, executor, Elsewhere())


def test_memory_that_is_gone():
    call, result = inputs(), outputs()
    size, executor = prepare(*call, *result)
    call[1].untyped_storage().resize_(0)
    with refused(361001, OP, "x has elements, but its data pointer is null"):
        aclnn.rms_norm_grad(torch.empty(size, dtype=torch.uint8), size, executor, None)


def test_what_the_caller_does_after_the_first_phase_changes_nothing():
    """Lists are copied, memory is held, metadata is what it was."""
    x, weight = torch.randn(11, 2, 3), torch.randn(3, 2)
    ends, y = [4, 4, 11], torch.empty(4, 2, 3)
    (expected,) = calls(torch.float32)["nsa_compress"].run(x, weight, ends)
    _, executor = prepare(x, weight, ends, "TND", 3, 2, 0, y, name="nsa_compress")
    ends[:] = [0, 0, 0]
    x.resize_(1)
    view = y.detach()
    del x, weight
    y.unsqueeze_(0)
    aclnn.nsa_compress(None, 0, executor, None)
    assert torch.allclose(view, expected, rtol=1e-6)


def test_autograd_is_told_what_was_written():
    call, result = inputs(), outputs()
    size, executor = prepare(*call, *result)
    versions = [t._version for t in (*call, *result)]
    aclnn.rms_norm_grad(torch.empty(size, dtype=torch.uint8), size, executor, None)
    assert [t._version for t in (*call, *result)] == [*versions[:4], *(v + 1 for v in versions[4:])]
    call[0].requires_grad_()
    with refused(161002, OP, "dy requires gradients, which this call would not record"):
        prepare(*call, *result)
    with torch.no_grad():
        prepare(*call, *result)
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(call[1], call[1])
        with refused(161002, OP, "x has a forward-mode tangent"):
            prepare(call[0].detach(), x, *call[2:], *result)
    negated = torch._neg_view(torch.ones(8, 64))
    with refused(161002, OP, "x is a lazily negated tensor"):
        prepare(call[0].detach(), negated, *call[2:], *result)


def test_one_executor_that_many_threads_want_runs_once():
    call, result = inputs(), outputs()
    size, executor = prepare(*call, *result)

    def body(_: int) -> int:
        try:
            aclnn.rms_norm_grad(torch.empty(size, dtype=torch.uint8), size, executor, None)
        except aclnn.AclnnError as error:
            assert error.status == 161002  # noqa: PT017  in another thread
            return 0
        return 1

    assert sum(in_threads(6, body)) == 1
    same(tuple(result), expected_of(call))


# --- the contract -----------------------------------------------------------------------------------------------------


def test_the_first_phase_is_the_engines():
    """The same status and sentence as for arrays, on every product."""
    call, result = inputs(), outputs()
    room = torch.zeros(9, 64)
    wrong: list[list[Any]] = [
        [None, *call[1:], *result],
        [*call[:3], call[3][:7], *result],
        [call[0].double(), *call[1:], *result],
        [call[0], room[:8], *call[2:], room[1:], result[1]],
        [call[0].t().contiguous().t(), *call[1:], *result],
    ]
    refusals = 0
    for product in (*HUAWEI, "host"):
        for arguments in (*wrong, [*call, *result]):
            found = []
            for first in (prepare, aclnn.rms_norm_grad_get_workspace_size):
                with acl.product(product):
                    try:
                        first(*arguments)
                    except aclnn.AclnnError as error:
                        found.append((error.status, error.name, str(error)))
            assert len(found) in (0, 2)
            refusals += len(found) == 2
            assert found[1:] == found[:1]
    assert refusals > 20


def test_the_product_current_at_phase_1_decides():
    call, result = inputs(), outputs()
    with acl.product("atlas-a3"):
        size, executor = prepare(*call, *result)
    executor.set_tensor("x", call[1].clone())
    with acl.product("atlas-training"):  # has no such operator
        aclnn.rms_norm_grad(torch.empty(size, dtype=torch.uint8), size, executor, None)
    same(tuple(result), expected_of(call))


def test_tensors_elsewhere():
    call, result = inputs(), outputs()
    with refused(161002, OP, "all tensors must be on one device, but there are dy on cpu, x on meta"):
        prepare(call[0], call[1].to("meta"), *call[2:], *result)
    with refused(161002, OP, "dgamma_out on meta"):
        prepare(*call, result[0], result[1].to("meta"))
    with pytest.raises(TypeError, match=r"^rms_norm_grad: rstd is a numpy\.ndarray, but must be a tensor like"):
        prepare(*call[:2], call[2].numpy(), call[3], *result)


def test_cuda_tensors_find_their_way():
    """What the engine refuses for where it lies is asked for again here; what it refuses otherwise is not."""
    call, result = inputs(), outputs()
    first = aclnn.rms_norm_grad_get_workspace_size
    names = first.__globals__

    def refuse(*_: Any) -> None:
        raise errors.from_status(161002, "ACLNN_ERR_PARAM_INVALID", "rms_norm_grad: dy lies on a device.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(names, "_call", refuse)
        with refused(161002, OP, "dy lies on a device"):
            first(*call, *result)
        seen = []
        patch.setitem(names, "_concerns", lambda *tensors: seen.extend(tensors) or True)
        size, executor = first(*call, *result)
    assert len(seen) == 6
    assert all(a is b for a, b in zip(seen, [*call, *result], strict=True))
    assert isinstance(executor, Executor)
    aclnn.rms_norm_grad(torch.empty(size, dtype=torch.uint8), size, executor, None)
    same(tuple(result), expected_of(call))
