"""Which products accept a call: the same verdicts as the first phase itself, on every product."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import DTYPES, PRODUCTS, phase1, refused
from cli_calls import descend_command, fails, ok
from descend import _native, acl, aclnn
from descend.aclnn import TensorSpec, portability
from descend.contract import OPERATORS

OP = "rms_norm_grad"
F16, F32, F64, BF16 = "FLOAT16", "FLOAT", "DOUBLE", "BFLOAT16"


def rms(dtype: str = F16, gamma: str = F32, columns: int = 32) -> dict[str, Any]:
    row = TensorSpec((2, 1, columns), dtype)
    return {"dy": row, "x": row, "rstd": TensorSpec((2, 1), F32), "gamma": TensorSpec((columns,), gamma)}


def accepted(verdicts: dict[str, aclnn.Verdict]) -> set[str]:
    return {product for product, verdict in verdicts.items() if verdict.accepted}


def test_the_tables_of_the_pages():
    everywhere = {"atlas-a3", "atlas-a2-training", "atlas-a2-inference", "ascend-950", "host"}
    assert accepted(portability("rms_norm_grad", **rms(F16, F32))) == everywhere
    assert accepted(portability("rms_norm_grad", **rms(F16, F16))) == everywhere | {"atlas-inference"}
    assert accepted(portability("rms_norm_grad", **rms(F16, F16, columns=8))) == everywhere
    assert accepted(portability("rms_norm_grad", **rms(BF16, BF16))) == everywhere
    assert accepted(portability("rms_norm_grad", **rms(F64, F64))) == {"host"}
    grad = TensorSpec((15, 64, 128), "float16")
    x, weight = TensorSpec((272, 64, 128), "float16"), TensorSpec((32, 64), "float16")
    windows = {"act_seq_len": (0, 128, 272), "compress_block_size": 32, "compress_stride": 16}
    assert accepted(portability("nsa_compress_grad", grad, x, weight, **windows)) == {"atlas-a2-training", "host"}
    odd = portability("nsa_compress_grad", grad, x, weight, **{**windows, "compress_stride": 15})
    assert accepted(odd) == {"host"}
    assert odd["atlas-a2-training"].status == 561002
    assert "compress_stride" in odd["atlas-a2-training"].sentence


def test_verdicts_have_status_name_and_sentence():
    verdicts = portability("rms_norm_grad", **rms(F64, F64))
    assert list(verdicts) == list(PRODUCTS)
    host, training = verdicts["host"], verdicts["atlas-training"]
    assert (host.status, host.name, host.sentence, host.accepted) == (0, "ACLNN_SUCCESS", "", True)
    assert (training.status, training.name) == (561003, "ACLNN_ERR_INNER_FIND_KERNEL_ERROR")
    assert training.sentence.startswith("rms_norm_grad: ")
    assert verdicts["atlas-a3"].status == 161002


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_verdict_is_that_of_the_first_phase(data):
    dtypes = st.sampled_from(list(DTYPES))
    shapes = st.lists(st.sampled_from([0, 1, 2, 16, 32]), min_size=0, max_size=4).map(tuple)
    usual = {"dy": (2, 32), "x": (2, 32), "rstd": (2,), "gamma": (32,), "dx_out": (2, 32), "dgamma_out": (32,)}
    tensors = {
        name: np.zeros(data.draw(st.one_of(st.just(shape), shapes), name), DTYPES[data.draw(dtypes, name)])
        for name, shape in usual.items()
    }
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    specs = {name: TensorSpec(array.shape, names[array.dtype]) for name, array in tensors.items()}
    for product, verdict in portability("rms_norm_grad", **specs).items():
        with acl.product(product):
            if verdict.accepted:
                phase1("rms_norm_grad", *tensors.values())
                continue
            with pytest.raises(aclnn.AclnnError) as raised:
                phase1("rms_norm_grad", *tensors.values())
        error = raised.value
        assert (verdict.status, verdict.name, verdict.sentence) == (error.status, error.name, str(error))
    assert portability("rms_norm_grad", **tensors) == portability("rms_norm_grad", **specs)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_answers(operator):
    """All tensors of one shape are wrong almost everywhere; the answer is a status everywhere, and nothing raises."""
    arguments: dict[str, Any] = {p.python: TensorSpec((2, 32), F32) for p in OPERATORS[operator].inputs}
    values = {"int": 1, "int_array": (32,), "bool_array": (True, True, True)}
    arguments |= {p.python: values[p.kind] for p in OPERATORS[operator].attributes if p.kind in values}
    verdicts = portability(operator, **arguments)
    assert list(verdicts) == list(PRODUCTS)
    for product, verdict in verdicts.items():
        assert (verdict.status == 561003) == (product not in OPERATORS[operator].products)
        assert verdict.accepted == (verdict.sentence == "")


def test_null_strides_formats_and_arrays():
    call = rms()
    assert portability("rms_norm_grad", **{**call, "x": None})["host"].status == 161001
    strided = TensorSpec((2, 1, 32), F16, strides=(64, 64, 2))
    assert accepted(portability("rms_norm_grad", **{**call, "x": strided})) == {"ascend-950", "host"}
    backwards = TensorSpec((2, 1, 32), F16, strides=(32, 32, -1))
    assert accepted(portability("rms_norm_grad", **{**call, "x": backwards})) == {"ascend-950", "host"}
    private = TensorSpec((2, 1, 32), F16, format="FRACTAL_NZ")
    assert portability("rms_norm_grad", **{**call, "x": private})["host"].status == 161002
    huge = TensorSpec((2**31, 1, 2**31), "float16", strides=(2**62, 1, 2**62))
    assert not accepted(portability("rms_norm_grad", **{**call, "x": huge, "dy": huge}))
    assert not accepted(portability("rms_norm_grad", **{**call, "x": TensorSpec((-2, 1, 32), F16)}))
    assert not accepted(portability("rms_norm_grad", **{**call, "x": TensorSpec((1,) * 9, F16)}))
    wide = TensorSpec((2, 1, 32), F32)
    assert portability("rms_norm_grad", **call, dx_out=wide)["atlas-a3"].status == 161002


def test_wrong_calls():
    with pytest.raises(KeyError, match="no_such"):
        portability("no_such")
    with pytest.raises(TypeError, match="gamma must be given"):
        portability("rms_norm_grad", *list(rms().values())[:3])
    with pytest.raises(TypeError, match="no parameter colour"):
        portability("rms_norm_grad", **rms(), colour=1)
    with pytest.raises(TypeError, match="twice"):
        portability("rms_norm_grad", *rms().values(), dy=rms()["dy"])
    with pytest.raises(TypeError, match="6 parameters"):
        portability("rms_norm_grad", *range(7))
    with pytest.raises(TypeError, match="dy is an int"):
        portability("rms_norm_grad", **{**rms(), "dy": 1})
    with pytest.raises(ValueError, match="'FLOAT7' is not a dtype"):
        TensorSpec((1,), "FLOAT7")
    with pytest.raises(ValueError, match="'float7' is not a dtype"):
        TensorSpec((1,), "float7")
    with pytest.raises(ValueError, match="'RGB' is not a format"):
        TensorSpec((1,), F16, format="RGB")
    wrong: Any
    for wrong in (None, np.float16, np.dtype(np.float16), 1, [F16]):
        with pytest.raises(TypeError, match=r"^dtype is .*, but must be a name\.$"):
            TensorSpec((1,), wrong)
        with pytest.raises(TypeError, match=r"^format is .*, but must be a name\.$"):
            TensorSpec((1,), F16, format=wrong)
    with pytest.raises(ValueError, match="differ in length"):
        portability("rms_norm_grad", **{**rms(), "dy": TensorSpec((2, 2), F16, strides=(1,))})


def test_a_spec_keeps_its_numbers():
    """Sizes may be given in any sequence, which may change afterwards."""
    spec = TensorSpec((2, 32), F16, (32, 1))
    shape = [2, 32]
    for same in (shape, np.array(shape), (n for n in shape), range(2, 33, 30)):
        assert TensorSpec(same, F16, np.array([32, 1])) == spec  # type: ignore[arg-type]
        assert hash(TensorSpec(shape, F16, [32, 1])) == hash(spec)
    kept = TensorSpec(shape, F16)
    shape[0] = 5
    assert kept.shape == (2, 32)
    rstd = TensorSpec(iter([2]), F32)  # type: ignore[arg-type]
    assert accepted(portability(OP, kept, kept, rstd, TensorSpec((32,), F16)))
    assert all(type(n) is int for n in TensorSpec(np.array([2, True]), F16).shape)


def test_an_array_that_cannot_be_read_is_named():
    call = {name: np.zeros(spec.shape, np.float32) for name, spec in rms().items()}
    for name in call:
        with refused(161002, OP, f"{name} is a masked array"):
            portability(OP, **{**call, name: np.ma.masked_array(call[name])})
    with refused(161002, "dtype_of", "array is a masked array"):
        _native.dtype_of(np.ma.masked_array(call["x"]))
    with pytest.raises(TypeError, match=r"^dtype_of: array is an int"):
        _native.dtype_of(1)


def test_huge_sizes():
    call = rms()
    for size in (2**63, 2**64, -(2**63) - 1, 10**30):
        for sizes in ({"shape": (2, size)}, {"shape": (2, 2), "strides": [size, 1]}):
            with pytest.raises(ValueError, match=rf"^(shape|strides) holds a number .* 64 bits: .*{size}.*\.$"):
                TensorSpec(dtype=F16, **sizes)
    for wrong in (2, (2.5, 2), ("a",), (None,)):
        with pytest.raises(TypeError, match=r"^shape is .*, but must be a sequence of integers\.$"):
            TensorSpec(wrong, F16)  # type: ignore[arg-type]
    for shape in ((2**63 - 1,), (2**32, 2**32), (2**62, 2**62, 2**62), (2**40, 0, 2**40), (-(2**63), 2)):
        verdicts = portability(OP, **{**call, "dy": TensorSpec(shape, F16), "x": TensorSpec(shape, F16)})
        assert {verdict.status for verdict in verdicts.values()} <= {161002, 561002, 561003}
    assert portability(OP, **{**call, "dy": TensorSpec((2**32, 2**32), F16)})["host"].sentence == (
        "rms_norm_grad: dy has shape [4294967296, 4294967296], which is more than 2^62 bytes."
    )


def test_command_line(capsys):
    tensors = ["dy=float16:2x1x32", "x=FLOAT16:2x1x32", "rstd=float32:2x1", "gamma=float:32"]
    command = ("portability", "rms_norm_grad")
    done = descend_command(*command, *tensors)
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line[:1].isalpha()}
    assert "accepted" in lines["atlas-a3"]
    assert "refused" in lines["atlas-inference"]
    assert "161002" in lines["atlas-inference"]
    verdicts = json.loads(ok(*command, *tensors, "--json"))
    assert {p: aclnn.Verdict(**v) for p, v in verdicts.items()} == portability("rms_norm_grad", **rms())
    same = ["dy=fp16:2,1,32", "x=DT_FLOAT16:2x1x32", "rstd=torch.float32:2,1", "gamma=F32:32"]  # as `run` takes it
    assert json.loads(ok(*command, *same, "--json")) == verdicts
    assert json.loads(ok(*command, "dy=none", *tensors[1:], "--json"))["host"]["status"] == 161001
    for wrong, words in (
        ("dy", "is not a tensor"),
        ("dy=float16:2y3", "is not a tensor"),
        ("colour=float16:2", "colour"),
        ("x=float7:2", "float7"),
    ):
        assert words in fails(capsys, *command, wrong)
    assert "give it as the option --dim." in fails(capsys, "portability", "swi_glu", "x=float:4x8", "dim=1")
    assert "'x=4x8' names no dtype: write NAME=DTYPE:SHAPE" in fails(capsys, "portability", "swi_glu", "x=4x8")
