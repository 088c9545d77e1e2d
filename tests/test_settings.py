"""Settings: the product, and the environment's number of threads and instruction set."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import descend
from cases import PRODUCTS, assert_same_bits, in_threads, phase1, refused, run_python
from descend import acl, aclnn
from two_phase_calls import OP, expected_of, inputs, outputs

pytestmark = pytest.mark.usefixtures("host")


def test_the_products_current_at_phase_1_decides():
    call, result = inputs(), outputs()
    call[0] = np.asfortranarray(call[0])
    size, executor = phase1(OP, *call, *result)
    with acl.product("atlas-training"):  # has no such operator
        aclnn.rms_norm_grad(acl.malloc(size), size, executor, None)
        acl.synchronize()
        assert_same_bits(result, expected_of(call))  # the functional form is always host


def test_products_nest():
    assert acl.get_product() == "host"
    with acl.product("atlas-a3"):
        assert acl.get_product() == "atlas-a3"
        with acl.product("atlas-inference"):
            assert acl.get_product() == "atlas-inference"
            with pytest.raises(ZeroDivisionError), acl.product("host"):
                raise ZeroDivisionError
            assert acl.get_product() == "atlas-inference"
        assert acl.get_product() == "atlas-a3"
    assert acl.get_product() == "host"


def test_product_blocks_that_end_in_any_order():
    def block(name: str) -> Iterator[str]:
        with acl.product(name):
            yield acl.get_product()

    for order in itertools.permutations(range(3)):
        blocks = [block(name) for name in ("atlas-a3", "atlas-inference", "atlas-a3")]
        assert [next(each) for each in blocks] == ["atlas-a3", "atlas-inference", "atlas-a3"]
        left = {0: "atlas-a3", 1: "atlas-inference", 2: "atlas-a3"}
        for which in order:
            assert next(blocks[which], None) is None
            del left[which]
            assert acl.get_product() == (left[max(left)] if left else "host")


def test_each_thread_has_its_own_product():
    barrier = threading.Barrier(len(PRODUCTS))

    def body(i: int) -> str:
        with acl.product(PRODUCTS[i]):
            barrier.wait(30)  # all are inside at once
            seen = acl.get_product()
            if PRODUCTS[i] in ("atlas-200i-500-a2", "atlas-training"):
                with refused(561003, OP, PRODUCTS[i]):
                    phase1(OP, *inputs(), *outputs())
            else:
                phase1(OP, *inputs(), *outputs())
            barrier.wait(30)
        return seen

    assert in_threads(len(PRODUCTS), body) == list(PRODUCTS)
    assert acl.get_product() == "host"


def test_set_product_is_for_the_process():
    def here(_: int) -> str:
        return acl.get_product()

    before = in_threads(1, here)[0]
    try:
        for name in PRODUCTS:
            acl.set_product(name)
            assert acl.get_product() == "host"  # this thread has its own
            assert in_threads(2, here) == [name, name]
    finally:
        acl.set_product(before)


@pytest.mark.parametrize(
    "name", ["", "Host", "atlas", "ascend910b", "atlas-a3 ", "host\0", "主机", "\ud800"], ids=ascii
)
def test_names_that_are_no_product(name):
    for call in (acl.set_product, lambda n: acl.product(n).__enter__()):
        with pytest.raises(ValueError, match="product") as caught:
            call(name)
        for known in PRODUCTS:
            assert known in str(caught.value)
        for wrong, called in ((None, "None"), (3, "an int"), (b"host", "a bytes")):
            with pytest.raises(TypeError, match=rf"^name is {called}, but must be a string\.$"):
                call(wrong)
    assert acl.get_product() == "host"


def test_the_first_product_of_a_process():
    code = "from descend import acl; print(acl.get_product())"
    assert run_python(code, DESCEND_PRODUCT="").stdout.strip() == "atlas-a2-training"
    for name in ("host", "atlas-inference"):
        assert run_python(code, DESCEND_PRODUCT=name).stdout.strip() == name


def test_a_wrong_product_in_the_environment_is_an_error_at_the_first_call():
    code = """
import numpy as np
import descend
from descend import acl, aclnn
a = [np.ones(s, "f") for s in ((2, 8), (2, 8), (2,), (8,), (2, 8), (8,))]
descend.rms_norm_grad(*a[:4])  # the functional form has no product
for _ in range(2):
    try:
        aclnn.rms_norm_grad_get_workspace_size(*a)
    except aclnn.AclnnError as error:
        print(error)
with acl.product("host"):
    aclnn.rms_norm_grad_get_workspace_size(*a)
acl.set_product("atlas-a3")
aclnn.rms_norm_grad_get_workspace_size(*a)
"""
    lines = run_python(code, DESCEND_PRODUCT="atlas-a4").stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("rms_norm_grad: ")
        assert "DESCEND_PRODUCT" in line
        assert "atlas-a4" in line
        assert all(name in line for name in PRODUCTS)


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("DESCEND_ISA", "MMX", "AVX2"),
        ("DESCEND_NUM_THREADS", "many", "whole number"),
        ("DESCEND_NUM_THREADS", "0", "1"),
    ],
)
def test_a_wrong_environment_is_an_error_at_the_first_call(variable, value, word):
    code = """
import numpy as np
import descend
try:
    descend.rms_norm(np.ones((2, 8)), np.ones(8))
except descend.aclnn.AclnnError as error:
    print(error)
"""
    if variable == "DESCEND_ISA" and "AVX2" not in descend._native.info()["isas"]:
        word = "BASELINE"
    line = run_python("import descend.aclnn\n" + code, **{variable: value}).stdout.strip()
    assert line.startswith("rms_norm: ")
    assert variable in line
    assert value in line
    assert word in line


@pytest.mark.parametrize("function", [descend.set_num_threads, acl.malloc], ids=["set_num_threads", "malloc"])
def test_numbers_that_are_none_or_out_of_range(function):
    for wrong in (-1, 2**64, np.int64(-5)):
        with pytest.raises(ValueError, match=rf"is {wrong}, but must be between 0 and \d+\.$"):
            function(wrong)
    for wrong, called in ((None, "None"), (2.0, "a float"), ("2", "a str"), ([2], "a list")):
        with pytest.raises(TypeError, match=rf" is {called}, but must be an integer\.$"):
            function(wrong)


def test_a_wait_of_nan_seconds():
    with pytest.raises(ValueError, match="timeout is NaN"):
        acl.Stream().synchronize(float("nan"))


def test_a_wait_of_what_is_no_number():
    stream = acl.Stream()
    for wrong, called in (("1", "a str"), ([1], "a list"), (True, "a bool"), (1j, "a complex")):
        with pytest.raises(TypeError, match=rf"^timeout is {called}, but must be a number of seconds or None\.$"):
            stream.synchronize(wrong)
    with pytest.raises(ValueError, match=r"^timeout does not fit into a floating-point number\.$"):
        stream.synchronize(10**400)
    for right in (None, 0, 1.5, np.float32(1), np.array(1), -1, float("inf")):
        stream.synchronize(right)


def test_threads_of_the_environment():
    code = "import descend; print(descend.get_num_threads())"
    assert run_python(code, DESCEND_NUM_THREADS="5").stdout.strip() == "5"
    assert run_python(code, OMP_NUM_THREADS="1", DESCEND_NUM_THREADS="").stdout.strip() == "1"
    with pytest.raises(ValueError, match="-1"):
        descend.set_num_threads(-1)


def test_the_instruction_set_of_the_environment():
    code = "import descend; print(descend._native.info()['isa'])"
    for isa in descend._native.info()["isas"].split(", "):
        for name in [isa, isa.lower()] + ["avx512"] * (isa == "AVX3"):
            assert run_python(code, DESCEND_ISA=name).stdout.strip() == isa
