"""The float64 definitions, compared with the documents' example, PyTorch's autograd, and results by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from descend import reference


def test_worked_example_of_the_document():
    numbers = np.arange(1, 33, dtype=np.float32).reshape(2, 1, 16)
    k = np.arange(1, 17, dtype=np.float64)
    dx, dgamma = reference.rms_norm_grad(numbers, numbers, np.array([1, 2], np.float32), numbers[0, 0])
    # First row: xhat = k and g = k * k, so mean(g * xhat) is the mean of the cubes, 1156.
    np.testing.assert_array_equal(dx[0, 0], k * k - 1156 * k)
    second, xhat = k + 16, 2 * (k + 16)
    np.testing.assert_array_equal(dx[1, 0], 2 * (second * k - xhat * np.mean(second * k * xhat)))
    np.testing.assert_array_equal(dgamma, k * k + second * xhat)
    assert dx[0, 0, 0] == -1155
    assert dx.dtype == dgamma.dtype == np.float64


@settings(deadline=None)  # the first example imports torch
@given(
    leading=st.lists(st.integers(1, 4), max_size=3),
    row=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_gradient_is_autograds(leading, row, seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *leading, *row))
    gamma = rng.standard_normal(row)
    y, rstd = reference.rms_norm(x, gamma, epsilon=1e-3)
    dx, dgamma = reference.rms_norm_grad(dy, x, rstd, gamma)

    tx, tgamma = (torch.tensor(array, requires_grad=True) for array in (x, gamma))
    ty = torch.nn.functional.rms_norm(tx, tuple(row), tgamma, 1e-3)
    ty.backward(torch.tensor(dy))
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dgamma, tgamma.grad.numpy(), rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(
    leading=st.lists(st.integers(1, 4), max_size=3),
    row=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    affine=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_layer_norms_gradient_is_autograds(leading, row, affine, seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *leading, *row))
    weight, bias = rng.standard_normal((2, *row)) if affine else (None, None)
    y, mean, rstd = reference.layer_norm(x, row, weight, bias, eps=1e-3)
    assert mean.shape == rstd.shape == (*leading, *[1] * len(row))
    grads = reference.layer_norm_backward(dy, x, row, mean, rstd, weight, bias, (True, affine, affine))

    leaves = [None if a is None else torch.tensor(a, requires_grad=True) for a in (x, weight, bias)]
    ty = torch.nn.functional.layer_norm(leaves[0], tuple(row), leaves[1], leaves[2], 1e-3)
    ty.backward(torch.tensor(dy))
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-12, atol=1e-13)
    for grad, leaf in zip(grads, leaves, strict=True):
        assert (grad is None) == (leaf is None)
        if leaf is not None:
            np.testing.assert_allclose(grad, leaf.grad.numpy(), rtol=1e-9, atol=1e-11)


def test_rms_norm_by_hand():
    y, rstd = reference.rms_norm([[3.0, 4.0], [0.0, 0.0]], [1.0, 10.0], epsilon=0.25)
    np.testing.assert_allclose(rstd, [[1 / np.sqrt(12.75)], [2.0]])
    np.testing.assert_allclose(y, [[3 / np.sqrt(12.75), 40 / np.sqrt(12.75)], [0, 0]])
    assert reference.rms_norm(np.ones((2, 3, 4, 5)), np.ones((4, 5)))[1].shape == (2, 3, 1, 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_inputs_of_any_dtype_are_taken_exactly(dtype):
    x = np.linspace(-2, 2, 12).reshape(3, 4).astype(dtype)
    gamma = np.linspace(1, 2, 4).astype(dtype)
    rstd = np.ones(3, dtype)
    results = reference.rms_norm_grad(x, x, rstd, gamma)
    exact = reference.rms_norm_grad(*(a.astype(np.float64) for a in (x, x, rstd, gamma)))
    for result, expected in zip(results, exact, strict=True):
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == np.float64


@pytest.mark.parametrize("shape", [(2, 1), (2,), (2, 1, 1)])
def test_rstd_may_have_any_shape_of_one_number_a_row(shape):
    x = np.arange(6.0).reshape(2, 1, 3)
    dx, _ = reference.rms_norm_grad(x, x, np.array([1.0, 2.0]).reshape(shape), np.ones(3))
    np.testing.assert_array_equal(dx, reference.rms_norm_grad(x, x, [1.0, 2.0], np.ones(3))[0])


def test_gamma_may_be_as_large_as_x():
    x = np.arange(1.0, 7.0).reshape(2, 3)
    dx, dgamma = reference.rms_norm_grad(x, x, [0.5], x)
    assert dx.shape == dgamma.shape == (2, 3)
    np.testing.assert_array_equal(dgamma, x * x * 0.5)


def test_sums_over_nothing_are_0():
    dx, dgamma = reference.rms_norm_grad(np.empty((0, 3)), np.empty((0, 3)), np.empty(0), np.ones(3))
    assert dx.shape == (0, 3)
    np.testing.assert_array_equal(dgamma, np.zeros(3))
    dx, dgamma = reference.rms_norm_grad(np.empty((2, 0)), np.empty((2, 0)), np.ones(2), np.empty(0))
    assert dx.shape == (2, 0)
    assert dgamma.shape == (0,)


@pytest.mark.filterwarnings("error")
def test_infinities_and_nan_propagate_without_warnings():
    x = np.array([[1.0, np.inf], [1.0, np.nan], [1.0, 2.0]])
    dx, dgamma = reference.rms_norm_grad(x, x, np.ones(3), np.ones(2))
    assert np.isnan(dx[0, 1])
    assert np.isnan(dx[1]).all()
    assert np.isfinite(dx[2]).all()
    assert np.isnan(dgamma[1])
    assert np.isnan(reference.rms_norm(x, np.ones(2))[0][1]).all()


def test_shapes_that_do_not_fit():
    x = np.ones((2, 3))
    with pytest.raises(ValueError, match="shape"):
        reference.rms_norm_grad(x, x, np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="shape"):
        reference.rms_norm_grad(x, x, np.ones(2), np.ones(4))
    for normalized in (2, (2,), (1, 2, 3), (3, 2)):
        with pytest.raises(ValueError, match="shape"):
            reference.layer_norm(x, normalized)
        with pytest.raises(ValueError, match="shape"):
            reference.layer_norm_backward(x, x, normalized, np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match="shape"):
        reference.layer_norm_backward(x, x, 3, np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="shape"):
        reference.layer_norm(x, 3, np.ones(2))
