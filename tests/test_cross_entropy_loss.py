"""CrossEntropyLoss and CrossEntropyLossGrad: against float64, extreme scores, targets, memory, bits, the contract."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import descend
from cases import (
    A2_TO_950,
    DTYPES,
    FLOATS,
    Array,
    Layout,
    Place,
    assert_close,
    assert_same_bits,
    normal,
    phase1,
    placed,
    python_value,
    refused,
    run_two_phase,
    wide,
)
from descend import acl, reference
from descend.contract import OPERATORS

FORWARD, GRADIENT = "cross_entropy_loss", "cross_entropy_loss_grad"
SHAPES = ((1, 1), (3, 5), (70, 33), (37, 512), (5, 513), (3, 2048), (3, 2049), (2, 70_000))
IGNORED = 2
# Reduction, whether there are weights, smoothing, the factor of zloss.
WAYS = (
    *(("mean", False, 0.0, 0.0), ("sum", True, 0.0, 0.0), ("none", False, 0.0, 0.0), ("mean", True, 0.1, 0.0)),
    *(("none", True, 0.3, 1e-3), ("sum", False, 1.0, 0.0), ("mean", False, 0.2, 0.5)),
)
ISAS = ("AVX2", "AVX3")
ONE = np.ones((), np.float32)


def scores_of(shape: tuple[int, int], dtype: str, scale: float = 3.0) -> tuple[Array, Array]:
    """Scores, and targets of which some are ignored."""
    rng = np.random.default_rng(shape[1])
    target = rng.integers(0, shape[1], shape[0])
    target[::5] = min(IGNORED, shape[1] - 1)
    target[0] = (target[0] + 1) % shape[1]  # not all
    return normal(rng, shape, dtype, scale), target


def options(way: tuple[str, bool, float, float], classes: int) -> dict[str, Any]:
    reduction, weighted, smoothing, scale = way
    weight = (0.5 + np.random.default_rng(1).random(classes)).astype(np.float32) if weighted else None
    return {
        "weight": weight,
        "reduction": reduction,
        "ignore_index": IGNORED,
        "label_smoothing": smoothing,
        "lse_square_scale_for_zloss": scale,
    }


def roundings(dtype: str) -> float:
    return 64 if dtype == "DOUBLE" else 16


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_losses(shape, dtype):
    x, target = scores_of(shape, dtype)
    arithmetic = "DOUBLE" if dtype == "DOUBLE" else "FLOAT"
    size = np.abs(wide(x)).max() + 4
    for way in WAYS:
        named = options(way, shape[1])
        places = [Place(s, dtype) for s in (shape[:1] if way[0] == "none" else (1,), shape)]
        results = descend.cross_entropy_loss(
            x, target, **named, return_zloss=True, out=(*(p.array for p in places), None, None)
        )
        golden = reference.cross_entropy_loss(wide(x), target, **named, return_zloss=True)
        rows = shape[0] if way[0] == "sum" else 1
        terms = (size * rows * (1 + size * way[3]), size, size * size * way[3] * rows, size)
        for result, exact, term in zip(results, golden, terms, strict=True):
            if exact is None:
                assert result is None
            else:
                assert_close(result, exact, term, roundings(dtype), arithmetic)
        for place in places:
            place.check_guards()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape, dtype):
    """From log_prob, and from the forward's input with lse."""
    x, target = scores_of(shape, dtype)
    arithmetic = "DOUBLE" if dtype == "DOUBLE" else "FLOAT"
    for way in WAYS:
        named = options(way, shape[1])
        log_prob = descend.cross_entropy_loss(x, target)[1]
        lse = np.logaddexp.reduce(wide(x), 1)
        count = shape[:1] if way[0] == "none" else ()
        grad, grad_zloss = (normal(np.random.default_rng(i), count, dtype) for i in (3, 4))
        rest = {"grad_zloss": grad_zloss, **named}
        for scores, of_rows in ((log_prob, lse), (x, lse[:, None])):
            given = (grad, scores, target)
            place = Place(shape, dtype)
            result = descend.cross_entropy_loss_grad(*given, lse_for_zloss=of_rows, **rest, out=place.array)
            golden = reference.cross_entropy_loss_grad(*map(wide, given[:2]), target, lse_for_zloss=of_rows, **rest)
            # exp makes of a rounding of the score a relative one.
            exponent = 2 + np.abs(wide(scores) - (of_rows if of_rows.ndim == 2 else 0))
            share = np.exp(-exponent + 2) * np.abs(wide(grad)).max() * (1.5 + 2 * way[3] * np.abs(lse).max())
            terms = exponent * share + np.abs(golden)
            assert_close(result, golden, terms, 8 if arithmetic == "FLOAT" else 16, arithmetic)
            place.check_guards()
            assert not wide(result)[target == IGNORED].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [*range(1, 10), 15, 16, 17, 33, 63, 64, 100, 128, 129])
def test_gradients_of_few_columns_are_those_of_rows_with_gaps(columns, dtype):
    """Rows one behind the other are made together, others alone: the bits are the same, with a class and without."""
    for rows, way in itertools.product((1, 7, 700), WAYS):
        x, target = scores_of((rows, columns + 3), dtype)
        target %= columns
        target[3::7], target[5::11] = -7, IGNORED  # no class, and those that are ignored whatever they hold
        wild = np.array([np.inf, -np.inf, np.nan, 0])[np.arange(rows) % 4]
        x[5::11] = wild.astype(x.dtype)[5::11, None]
        lse = np.logaddexp.reduce(wide(np.where(np.isfinite(wide(x)), wide(x), 0)), 1)[:, None]
        grad = normal(np.random.default_rng(rows), (rows,) if way[0] == "none" else (), dtype)
        rest = options(way, columns)
        for of_rows in (lse, np.zeros(rows)):  # from the scores themselves, and from log_prob
            named = {"lse_for_zloss": of_rows, **rest}
            gaps = np.full_like(x, 7)
            descend.cross_entropy_loss_grad(grad, x[:, :columns], target, **named, out=gaps[:, :columns])
            dense = np.ascontiguousarray(x[:, :columns])
            result = descend.cross_entropy_loss_grad(grad, dense, target, **named)
            assert_same_bits([result], [np.ascontiguousarray(gaps[:, :columns])])
            assert not wide(result)[target == IGNORED].any()
            assert np.isnan(wide(result)[target == -7]).all()
            descend.cross_entropy_loss_grad(grad, dense, target, **named, out=dense)
            assert_same_bits([dense], [result])


@pytest.mark.parametrize("dtype", FLOATS)
def test_in_place(dtype):
    for shape in ((9, 40), (3, 5000)):
        x, target = scores_of(shape, dtype)
        loss, log_prob, _, _ = descend.cross_entropy_loss(x, target, label_smoothing=0.1)
        mine = x.copy()
        again, other, _, _ = descend.cross_entropy_loss(mine, target, label_smoothing=0.1, out=(None, mine, None, None))
        assert other is mine
        assert_same_bits((again, mine), (loss, log_prob))
        grad = np.ones((), DTYPES[dtype])
        expected = descend.cross_entropy_loss_grad(grad, log_prob, target, label_smoothing=0.1)
        descend.cross_entropy_loss_grad(grad, mine, target, label_smoothing=0.1, out=mine)
        assert_same_bits([mine], [expected])


def test_results_that_are_left_out():
    """Without log_prob lse is there, of rows that are not ignored, and the gradient of the input needs no more."""
    for dtype, shape in itertools.product(FLOATS, ((40, 9), (3, 5000))):
        x, target = scores_of(shape, dtype)
        named = {"ignore_index": IGNORED, "reduction": "none"}
        expected, log_prob, _, _ = descend.cross_entropy_loss(x, target, **named)
        lse = np.empty(shape[0])
        loss, *nothing = descend.cross_entropy_loss(x, target, **named, out=(None, ..., ..., lse))
        assert_same_bits([loss], [expected])
        assert nothing[:2] == [None, None]
        assert nothing[2] is lse
        counts = target != IGNORED
        np.testing.assert_allclose(lse[counts], np.logaddexp.reduce(wide(x), 1)[counts], rtol=2e-7)
        assert not lse[~counts].any()
        grad = np.ones(shape[0], DTYPES[dtype])
        near = descend.cross_entropy_loss_grad(grad, x, target, lse_for_zloss=lse[:, None], **named)
        of_log_prob = descend.cross_entropy_loss_grad(grad, wide(log_prob).astype(DTYPES[dtype]), target, **named)
        np.testing.assert_allclose(wide(near), wide(of_log_prob), atol=0.03 if dtype[-2:] == "16" else 3e-6)


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("columns", [7, 600, 5000])
def test_extreme_scores(columns, dtype):
    """No finite scores give NaN, nor infinities where the exact number is in range; one of -inf is no class at all."""
    most = float(np.finfo(np.float32).max) if dtype != "FLOAT16" else 65504.0
    most = most if dtype != "BFLOAT16" else 3.3895e38
    x = normal(np.random.default_rng(0), (8, columns), dtype)
    x[0], x[1] = most, -most
    x[2, ::2], x[2, 1::2] = most, -most
    x[3, 3], x[4, 3], x[5, :4] = most, -most, -np.inf
    x[6] = 1e-30 if dtype != "FLOAT16" else 6e-8
    target = np.array([1, 1, 2, 3, 4, 5, 6, 2])
    for smoothing in (0.0, 0.25):
        named: dict[str, Any] = {"reduction": "none", "label_smoothing": smoothing}
        loss, log_prob, _, _ = descend.cross_entropy_loss(x, target, **named)
        golden, exact, _, _ = reference.cross_entropy_loss(wide(x), target, **named)
        assert_close(loss, golden, np.where(np.isfinite(golden), np.abs(golden) + 8, 1), 16)
        assert not np.isnan(wide(log_prob)).any()
        assert_close(log_prob, exact, np.abs(wide(x)).clip(8, most), 16)
        grad = np.ones(8, x.dtype)
        result = descend.cross_entropy_loss_grad(grad, log_prob, target, **named)
        assert np.isfinite(wide(result)).all()
        lse = np.empty(8)
        descend.cross_entropy_loss(x, target, **named, out=(None, ..., ..., lse))
        of_input = descend.cross_entropy_loss_grad(grad, x, target, lse_for_zloss=lse[:, None], **named)
        expected = reference.cross_entropy_loss_grad(1.0 * grad, exact, target, **named)
        far = np.abs(wide(x)).max(1, where=np.isfinite(wide(x)), initial=0) > 1e12  # one number has no room for lse
        of_input, expected, exact = of_input[~far], expected[~far], exact[~far]
        assert_close(of_input, expected, np.abs(expected) + np.exp(exact) * (1 + np.abs(exact)).clip(0, 1e3), 16)


def test_infinities_and_nan_stay_in_their_rows():
    for dtype, columns in itertools.product(("FLOAT", "BFLOAT16"), (9, 5000)):
        x, target = scores_of((6, columns), dtype)
        expected = descend.cross_entropy_loss(x, target, reduction="none", label_smoothing=0.1)
        for value in (np.inf, np.nan, -np.inf):
            other = x.copy()
            other[3] = value if value < 0 else other[3]
            other[3, columns // 2] = value
            results = descend.cross_entropy_loss(other, target, reduction="none", label_smoothing=0.1)
            assert_same_bits([np.delete(r, 3, 0) for r in results[:2]], [np.delete(e, 3, 0) for e in expected[:2]])
            assert np.isnan(wide(results[0])[3])
            lse = np.zeros((6, 1))
            lse[3] = np.nan
            found = descend.cross_entropy_loss_grad(ONE, x, target, lse_for_zloss=lse, reduction="sum")
            assert np.isnan(wide(found)).sum() == columns


def test_targets():
    """Of either dtype, strided, ignored, and none of the classes."""
    for columns in (40, 3000):
        x, target = scores_of((9, columns), "FLOAT")
        expected = descend.cross_entropy_loss(x, target, reduction="none")[:2]
        spaced = np.repeat(target, 2)[::2]
        for other in (target.astype(np.int32), spaced, target[::-1].copy()[::-1]):
            assert_same_bits(descend.cross_entropy_loss(x, other, reduction="none")[:2], expected)
        wrong = target.copy()
        wrong[2], wrong[4], wrong[5] = columns, -1, -100
        loss = descend.cross_entropy_loss(x, wrong, reduction="none")[0]
        assert np.isnan(loss[[2, 4]]).all()
        assert np.isfinite(np.delete(loss, [2, 4])).all()
        assert loss[5] == 0
        assert np.isnan(descend.cross_entropy_loss(x, wrong)[0]).all()
        grad = descend.cross_entropy_loss_grad(ONE, expected[1], wrong, reduction="sum")
        assert np.isnan(grad[[2, 4]]).all()
        assert np.isfinite(np.delete(grad, [2, 4], 0)).all()
        assert not grad[5].any()
        ignored = np.full(9, -100)
        assert np.isnan(descend.cross_entropy_loss(x, ignored)[0]).all()
        assert not descend.cross_entropy_loss_grad(ONE, expected[1], ignored).any()


def test_empty_and_any_layout():
    nothing = np.empty((0, 5), np.float32), np.empty(0, np.int64)
    for reduction, expected in (("mean", [np.nan]), ("sum", [0]), ("none", [])):
        loss, log_prob, zloss, lse = descend.cross_entropy_loss(*nothing, reduction=reduction)
        np.testing.assert_array_equal(loss, expected)
        assert (log_prob.shape, zloss, lse) == ((0, 5), None, None)
        grad = np.zeros(0 if reduction == "none" else (), np.float32)
        assert descend.cross_entropy_loss_grad(grad, *nothing, reduction=reduction).shape == (0, 5)
    for dtypes in itertools.product(("FLOAT", "BFLOAT16", "DOUBLE"), repeat=3):
        x, target = scores_of((7, 70), dtypes[0])
        named = options(("none", True, 0.1, 0.01), 70)
        named["weight"] = named["weight"].astype(DTYPES[dtypes[1]])
        expected = descend.cross_entropy_loss(x, target, **named, return_zloss=True)
        turned = Layout((1, 0), (1, -1))
        out = [Place(e.shape, e.dtype, Layout((0,), (2,)) if e.ndim == 1 else turned) for e in expected]
        arrays = [p.array for p in out]
        given = placed(x, Layout((1, 0), (2, 1))), placed(target, Layout((0,), (-3,)))
        named["weight"] = placed(named["weight"], Layout((0,), (2,)))
        run_two_phase(FORWARD, *given, *named.values(), True, *arrays)
        assert_same_bits(arrays, expected)
        grad = np.ones(7, DTYPES[dtypes[2]])
        gradient = descend.cross_entropy_loss_grad(grad, expected[1], target, lse_for_zloss=expected[3], **named)
        place = Place((7, 70), gradient.dtype, turned)
        run_two_phase(
            GRADIENT,
            grad,
            arrays[1],
            given[1],
            named["weight"],
            None,
            arrays[3],
            *list(named.values())[1:],
            place.array,
        )
        assert_same_bits([place.array], [gradient])
        for one in (*out, place):
            one.check_guards()


def test_the_documents_examples():
    x = np.array([[5, 0, 3, 3, 7], [9, 3, 5, 2, 4]], np.float32)
    loss, log_prob, _, _ = descend.cross_entropy_loss(x, np.zeros(2, np.int64))
    np.testing.assert_allclose(loss, [1.0937543], rtol=1e-6)
    np.testing.assert_allclose(log_prob[1], [-0.0280476, -6.0280476, -4.0280476, -7.0280476, -5.0280476], atol=1e-6)
    ones = np.ones(3, np.float32)
    out = descend.cross_entropy_loss_grad(
        np.full((), 0.1, np.float32), np.full((2, 3), -0.2, np.float32), np.zeros(2, np.int64), ones
    )
    np.testing.assert_allclose(out, [[-0.0091, 0.0409, 0.0409]] * 2, atol=5e-5)


def test_the_same_bits_on_any_instruction_set_and_number_of_threads():
    code = """
import json, descend
import numpy as np
from cases import FLOATS, digest
from test_cross_entropy_loss import WAYS, options, scores_of
found = []
for threads in (1, 3):
    descend.set_num_threads(threads)
    results = []
    for dtype in FLOATS:
        for shape in ((70, 3), (70, 33), (9, 5000), (2, 40_000), (1, 9)):
            x, target = scores_of(shape, dtype)
            for way in WAYS:
                named = options(way, shape[1])
                results += [r for r in descend.cross_entropy_loss(x, target, **named) if r is not None]
                grad = np.ones(shape[0] if way[0] == "none" else 1, np.float32)
                lse = np.full((shape[0], 1), 3.7)
                results.append(descend.cross_entropy_loss_grad(grad, x, target, lse_for_zloss=lse, **named))
    found.append(digest(*results))
assert found[0] == found[1]
print(json.dumps(found[0]))
"""
    assert len({python_value(code, DESCEND_ISA=isa) for isa in ISAS}) == 1


# --- the contract ----------------------------------------------------------------------------------------------------


def call(operator: str, dtype: str = "FLOAT16", target: Any = np.int64, rows: int = 4) -> dict[str, Any]:
    """A call that every product takes, by name."""
    made: dict[str, Any] = {}
    for p in OPERATORS[operator].parameters:
        shape = (rows, 6) if p.python in ("input", "log_prob", "log_prob_out", "out") else (1,)
        if p.kind != "tensor":
            made[p.python] = {"reduction": "mean", "ignore_index": -100, "return_zloss": False}.get(p.python, 0.0)
        elif p.python == "target":
            made[p.python] = np.arange(rows, dtype=target)
        elif p.python == "weight":
            made[p.python] = np.ones(6, np.float32)
        else:
            made[p.python] = np.ones(shape, DTYPES[dtype])
    return made


def refuse(status: int, operator: str, made: dict[str, Any], *words: str, **changed: Any) -> None:
    with refused(status, operator, *words):
        phase1(operator, *{**made, **changed}.values())


def test_dtypes_are_the_pages():
    for operator, targets in ((FORWARD, ("INT32", "INT64")), (GRADIENT, ("INT64",))):
        for product in A2_TO_950:
            rows = [row.dtypes for row in OPERATORS[operator].dtypes if product in row.products]
            assert {r[name] for r in rows for name in r if name not in ("target", "weight")} == {
                ("FLOAT",), ("FLOAT16",), ("BFLOAT16",)
            }  # fmt: skip
            assert {(r["target"], r["weight"]) for r in rows} == {(targets, ("FLOAT",))}


@pytest.mark.parametrize("operator", [FORWARD, GRADIENT])
def test_what_every_product_refuses(operator):
    first = "input" if operator == FORWARD else "log_prob"
    for product in OPERATORS[operator].products:
        made = call(operator)
        with acl.product(product):
            phase1(operator, *made.values())
            made["lse_for_zloss_out" if operator == FORWARD else "lse_for_zloss"] = np.ones(4, np.float16)
            optional = ("weight", "grad_zloss", "lse_for_zloss") if operator == GRADIENT else ("weight",)
            for p in OPERATORS[operator].parameters:
                if p.kind != "tensor":
                    continue
                on_host = product == "host" and p.python in ("log_prob_out", "zloss_out", "lse_for_zloss_out")
                if p.python in optional or on_host:
                    phase1(operator, *{**made, p.python: None}.values())
                else:
                    refuse(161001, operator, made, p.python, **{p.python: None})
                refuse(161002, operator, made, p.python, **{p.python: made[p.python].astype(np.uint8)})
            for name, shapes in (
                (first, ((4,), (4, 6, 1), (4, 0))),
                ("target", ((5,), (4, 1))),
                ("weight", ((7,), (1, 6))),
            ):
                for shape in shapes:
                    refuse(561002, operator, made, name, **{name: np.ones(shape, made[name].dtype)})
            refuse(561002, operator, made, "reduction is", "mean, sum or none", reduction="avg")
            for smoothing in (-0.1, 1.5, np.nan):
                refuse(561002, operator, made, "label_smoothing is", label_smoothing=smoothing)
            loss = "loss_out" if operator == FORWARD else "grad_loss"
            for reduction, shape in (("mean", (2,)), ("sum", (1, 1)), ("none", ()), ("none", (5,))):
                refuse(161002, operator, made, loss, reduction=reduction, **{loss: np.ones(shape, np.float16)})
            large = "log_prob_out" if operator == FORWARD else "out"
            refuse(161002, operator, made, large, **{large: np.ones((4, 7), np.float16)})
    with acl.product("atlas-inference"):
        refuse(561003, operator, call(operator), "atlas-a3")


def test_what_atlas_products_do_not_compute():
    """zloss is taken no notice of; the gradient has no smoothing."""
    made = call(FORWARD, "FLOAT")
    made |= {"lse_square_scale_for_zloss": -5.0, "return_zloss": True, "zloss_out": np.empty(0, np.float32)}
    zloss, lse = Place((3, 3)), Place((2,))
    made |= {"zloss_out": zloss.array, "lse_for_zloss_out": lse.array}
    for product in A2_TO_950:
        run_two_phase(FORWARD, *made.values(), product=product)
        np.testing.assert_allclose(made["loss_out"], np.log(6), rtol=1e-6)
        zloss.check_untouched()
        lse.check_untouched()
        gradient = call(GRADIENT, "FLOAT") | {"lse_square_scale_for_zloss": 2.0, "lse_for_zloss": None}
        run_two_phase(GRADIENT, *gradient.values(), product=product)
        with acl.product(product):
            refuse(161002, GRADIENT, gradient, "label_smoothing is 0.5", "must be 0 on", label_smoothing=0.5)
            phase1(FORWARD, *{**made, "label_smoothing": 0.5}.values())
    gradient = call(GRADIENT) | {"lse_square_scale_for_zloss": 2.0}
    with acl.product("host"):
        refuse(161002, FORWARD, made, "zloss_out has shape [3, 3]")
        refuse(161002, GRADIENT, gradient, "lse_for_zloss has shape [1]", "must have [4]")
        refuse(161002, GRADIENT, gradient, "lse_for_zloss is null", "must be given", lse_for_zloss=None)
        refuse(161002, GRADIENT, gradient, "lse_for_zloss has shape [4, 2]", lse_for_zloss=np.ones((4, 2), np.float16))
