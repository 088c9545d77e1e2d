"""The comparison with PyTorch's errors: golden values follow the definitions, and wrong results are noticed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from benchmarks.precision import __main__, figures, report
from benchmarks.precision.figures import Entry, Measured, Output
from benchmarks.precision.operators import OPERATORS
from benchmarks.precision.operators.operator import DISTRIBUTIONS, DTYPES, EPSILON, Draw, Golden, exact
from typer.testing import CliRunner

from descend import reference
from pages import MISSING

SMALL = {
    **dict.fromkeys(OPERATORS, (40, 64)),
    "group_norm_swish": (3, 8, 5, 7),
    "group_norm_swish_grad": (3, 8, 5, 7),
    "scaled_masked_softmax": (2, 2, 9, 33),
    "scaled_masked_softmax_backward": (2, 2, 9, 33),
    "rotary_position_embedding": (3, 5, 7, 16),
    "rotary_position_embedding_grad": (3, 5, 7, 16),
    "nsa_compress": (100, 2, 5, 12, 5),
    "nsa_compress_grad": (100, 2, 5, 12, 5),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_both_are_close_to_the_golden_value(name, dtype, distribution):
    """All results of both libraries lie within a few roundings of the largest terms: so these are no less, either."""
    entry = Entry(name, dtype, distribution, SMALL[name])
    entry.measure(0)
    assert set(entry.outputs) == set(OPERATORS[name].outputs)
    for part, output in entry.outputs.items():
        assert output.seeds == 1
        assert output.bound[0] < (4000 if distribution == "offset" else 40)  # a mean in float32 is rounded
        if not name.startswith("gelu"):  # whose tail has no digit left in PyTorch
            assert output.their_bound[0] < 80_000  # of 16 bits where ours are 32, and sums of numbers far from 0
        assert bool(output.rounded) == (dtype != "float32" and part in OPERATORS[name].elementwise)


def test_all_operators_are_compared():
    from descend.contract import OPERATORS as ALL

    assert set(OPERATORS) == set(ALL) - MISSING["accuracy"]


@pytest.mark.parametrize("step", [5, 12, 15])
def test_the_golden_values_of_windows_are_the_definition(step):
    draw = Draw(1, "float32", "normal")
    x, weight, dy = draw.data(100, 2, 5), draw.normal(12, 2), draw.gradient((100 - 12) // step + 1, 2, 5)
    sizes = {"compress_block_size": 12, "compress_stride": step}
    found = OPERATORS["nsa_compress"].golden(x=x, weight=weight, stride=torch.tensor(step))["output"]
    np.testing.assert_allclose(found.values, reference.nsa_compress(exact(x), exact(weight), **sizes), rtol=1e-12)
    expected = reference.nsa_compress_grad(exact(dy), exact(x), exact(weight), **sizes)
    grads = OPERATORS["nsa_compress_grad"].golden(dy=dy, x=x, weight=weight, stride=torch.tensor(step))
    for golden, value in zip(grads.values(), expected, strict=True):
        np.testing.assert_allclose(golden.values, value, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", [n for n, op in OPERATORS.items() if len(op.outputs) > len(op.elementwise)])
def test_the_sums_of_many_rows_are_the_definition(name, monkeypatch):
    """Sums that are computed without the rows' gradients are the same numbers."""
    inputs = OPERATORS[name].inputs(SMALL[name], Draw(2, "float32", "heavy"))
    whole = OPERATORS[name].golden(**inputs)
    monkeypatch.setattr("benchmarks.precision.operators.operator.MANY", 1)
    sums = OPERATORS[name].golden(**inputs)
    assert 0 < len(sums) < len(whole)
    for output, golden in sums.items():
        assert golden.values.size < whole[output].values.size * 64
        np.testing.assert_allclose(golden.values, whole[output].values, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(golden.terms, whole[output].terms, rtol=1e-12)


def test_the_sums_of_a_group_norm_are_the_definition():
    dy, x, gamma, beta = OPERATORS["group_norm_swish_grad"].inputs((3, 8, 5, 7), Draw(3, "float32", "normal")).values()
    _, mean, rstd = reference.group_norm_swish(exact(x), exact(gamma), exact(beta), 2, eps=EPSILON)
    expected = reference.group_norm_swish_grad(exact(dy), mean, rstd, exact(x), exact(gamma), exact(beta), 2)
    golden = OPERATORS["group_norm_swish_grad"].golden(dy=dy, x=x, gamma=gamma, beta=beta)
    for found, value in zip(golden.values(), expected, strict=True):
        np.testing.assert_allclose(found.values, value, rtol=1e-9, atol=1e-12)


def made(ours: float, theirs: float, **changes: float) -> Output:
    """Outputs whose elements are all wrong by so much, except the given ones."""
    output, values = Output(), np.linspace(1, 2, 1000)
    golden = Golden(values, np.where(np.arange(1000) == 7, 1000.0, 1.0))
    for seed in range(3):
        results = [torch.tensor(values + error * (-1) ** (np.arange(1000) + seed)).half() for error in (ours, theirs)]
        for at, value in changes.items():
            results[0][int(at[1:])] = value
        output.add(*results, golden, True)
    return output


def test_ratios_and_misses():
    entry = Entry("rms_norm", "float16", "normal", (10, 100), {"y": made(0.0, 0.004)})
    assert entry.misses("y") == []
    assert entry.outputs["y"].rmse[0] < 0.2
    assert entry.outputs["y"].rounded[0] == 1.0
    assert entry.outputs["y"].their_rounded[0] < 0.1
    entry.outputs["y"] = made(0.008, 0.004)
    assert [miss.split()[:2] for miss in entry.misses("y")][:3] == [["median", m] for m in ("MERE", "MARE", "RMSE")]
    assert any(miss.startswith("correctly rounded 0") for miss in entry.misses("y"))
    assert next(iter(report.misses([entry]))).startswith("rms_norm y, float16, normal, 10 × 100: median MERE ")


def test_near_cancellations_count_in_rmse_and_bound_alone():
    plain, off = made(0.0, 0.004), made(0.0, 0.004, _7=3.0)
    assert off.mere == plain.mere
    assert off.mare == plain.mare
    assert off.rounded == plain.rounded
    assert off.rmse[0] > 5 * plain.rmse[0]
    assert off.bound[0] == pytest.approx((3 - np.linspace(1, 2, 1000)[7]) / 1000 * 2**11, rel=1e-3)
    assert off.cancelled[0] == pytest.approx(1 / 1000)
    assert made(0.0, 0.004, _8=3.0).mare[0] > 100 * plain.mare[0]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(__main__.app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_quick_run_and_the_next(tmp_path, monkeypatch):
    """It measures every operator, continues where it was interrupted, and writes the page."""
    monkeypatch.setattr(figures, "OPERATORS", {n: o for n, o in OPERATORS.items() if n in ("rms_norm", "nsa_compress")})
    saved, page = tmp_path / "figures.json", tmp_path / "page.md"
    common = ("--quick", "--json", str(saved), "--page", str(page), "--op", "rms_norm")
    run(*common, "--dtype", "bfloat16")
    first = json.loads(saved.read_text())["entries"]
    assert [entry["distribution"] for entry in first] == list(DISTRIBUTIONS)
    assert all(len(entry["outputs"]["y"]["rmse"]) == 3 for entry in first)
    output = run(*common)
    entries = json.loads(saved.read_text())["entries"]
    assert len(entries) == len(DISTRIBUTIONS) * len(DTYPES)
    assert entries[: len(first)] == first
    assert "rms_norm" in output
    assert not page.exists()
    text = report.page(Measured.load(saved))
    assert "| y | bfloat16 |" in text
    assert "nsa_compress" not in text.split("## ", 1)[1]


def test_an_interruption_loses_nothing(tmp_path, monkeypatch):
    saved = tmp_path / "figures.json"
    before, calls = Entry.measure, []

    def measure(self: Entry, seed: int) -> None:
        calls.append(seed)
        if len(calls) == 6:
            raise KeyboardInterrupt
        before(self, seed)

    monkeypatch.setattr(Entry, "measure", measure)
    arguments = ("--quick", "--json", str(saved), "--op", "scaled_masked_softmax", "--dtype", "float16")
    assert CliRunner().invoke(__main__.app, arguments).exit_code == 130
    assert [entry.seeds for entry in Measured.load(saved).entries] == [3, 2]
    run(*arguments)
    assert calls == [0, 1, 2, 0, 1, 2, 2, 0, 1, 2, 0, 1, 2]
    assert [entry.seeds for entry in Measured.load(saved).entries] == [3, 3, 3, 3]
