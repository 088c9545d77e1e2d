"""The operators in JAX: values, types, errors, and XLA's own memory."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import descend  # noqa: E402
import descend.jax  # noqa: E402
from cases import DTYPES, FLOATS, assert_same_bits, in_threads, in_turn, python_value  # noqa: E402
from descend import reference  # noqa: E402
from descend.contract import OPERATORS as TABLES  # noqa: E402
from descend.errors import AclnnError  # noqa: E402
from descend.jax.library import DEFINITIONS  # noqa: E402
from descend.portability import default  # noqa: E402
from jax_cases import BACKWARDS, FORWARDS, NAMES, OPERATORS, calls, x64  # noqa: E402
from pages import MISSING  # noqa: E402

NATIVE = Path(__file__).resolve().parent.parent / "native"
EPS = {"FLOAT": 2.0**-23, "FLOAT16": 2.0**-10, "BFLOAT16": 2.0**-7, "DOUBLE": 2.0**-52}


@pytest.mark.parametrize(("name", "dtype"), in_turn(NAMES, FLOATS, each=2))
def test_results_have_the_bits_of_numpy(name, dtype):
    """And they are those of the definition in float64, up to rounding."""
    call = calls(dtype)[name]
    with x64(dtype == "DOUBLE"):
        results = jax.jit(call.at(call.arrays))(*call.of(call.arrays))
    assert all(isinstance(r, jax.Array) for r in results)
    assert_same_bits([np.asarray(r) for r in results], call.at(call.arrays, descend)(*call.of(call.arrays)))
    for result, exact in zip(results, call.at(call.arrays, reference)(*call.of(call.arrays)), strict=True):
        name = {v: k for k, v in DTYPES.items()}[result.dtype]
        error = 32 * EPS["DOUBLE" if name == "DOUBLE" else "FLOAT"] + EPS[name]
        np.testing.assert_allclose(np.asarray(result, np.float64), exact, rtol=error, atol=error)


@pytest.mark.parametrize("name", NAMES)
def test_without_jit(name):
    call = calls("FLOAT")[name]
    results = call.at(call.arrays)(*map(jnp.asarray, call.of(call.arrays)))
    assert_same_bits([np.asarray(r) for r in results], call.at(call.arrays, descend)(*call.of(call.arrays)))


@pytest.mark.parametrize("name", NAMES)
def test_other_devices_compute_the_definition(name):
    call = calls("FLOAT")[name]
    traced = jax.jit(call.at(call.arrays)).trace(*call.of(call.arrays))
    assert f"@descend_{call.name}(" in traced.lower().as_text()
    elsewhere = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call" not in elsewhere
    assert any(f"stablehlo.{step}" in elsewhere for step in ("multiply", "exponential"))


@pytest.mark.parametrize(("name", "dtype"), in_turn(NAMES, ["BFLOAT16", "DOUBLE"]))
def test_definitions(name, dtype):
    """In ``jax.numpy``: the shapes and dtypes of the operators, and their values."""
    call = calls(dtype)[name]
    expected = call.at(call.arrays, descend)(*call.of(call.arrays))
    operator = TABLES[call.name]
    parameters = operator.functional_parameters
    values = {p.python: default(p) for p in parameters} | call.named
    with x64(dtype == "DOUBLE"):
        for p, value in zip(parameters, call.args, strict=False):
            values[p.python] = jnp.asarray(value) if isinstance(value, np.ndarray) else value
        results = jax.jit(lambda: DEFINITIONS[call.name](**values))()
    found = [r for r in results if r is not None]
    assert [(r.shape, r.dtype) for r in found] == [(r.shape, r.dtype) for r in expected]
    error = 16 * EPS[dtype]
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result, np.float64), np.asarray(wanted, np.float64), error, error)


def test_float64_input_where_jax_has_no_float64():
    """JAX makes it float32, as everywhere."""
    with x64(False), pytest.warns(UserWarning, match="float64"):
        y, rstd = descend.jax.rms_norm(jnp.ones((2, 4)), jnp.asarray(np.ones(4), dtype="float64"))
    assert (y.dtype, rstd.dtype) == (jnp.float32, jnp.float32)


def test_small_parameters_of_another_dtype():
    x, gamma = jnp.ones((3, 8), jnp.bfloat16), jnp.full(8, 1.5, jnp.float32)
    y, rstd = jax.jit(descend.jax.rms_norm)(x, gamma)
    assert (y.dtype, rstd.dtype) == (jnp.bfloat16, jnp.float32)
    dx, dgamma = jax.grad(lambda x, g: descend.jax.rms_norm(x, g)[0].sum(), (0, 1))(x, gamma)
    assert (dx.dtype, dgamma.dtype) == (jnp.bfloat16, jnp.float32)


def test_subnormal_numbers():
    """XLA's threads may flush them to zero, the engine does not."""
    gradient = (1e-41 * np.arange(256)).astype(np.float32).reshape(4, 64)
    y = np.full((4, 64), 0.5, np.float32)
    results = jax.jit(lambda g, y: descend.jax.scaled_masked_softmax_backward(g, y, None, 0.25))(gradient, y)
    expected = descend.scaled_masked_softmax_backward(gradient, y, None, 0.25)
    assert 0 < np.abs(expected[expected != 0]).min() < 2.0**-126
    assert_same_bits([np.asarray(results)], [expected])


# --- errors --------------------------------------------------------------------------------------------------------

X, GAMMA = np.ones((2, 3, 4), np.float32), np.ones(4, np.float32)
REFUSED = {
    "shape": ("rms_norm", (X, np.ones(5, np.float32)), {}),
    "dtype": ("rms_norm", (X.astype(np.int32), GAMMA), {}),
    "no dtype of the engine": ("rms_norm", (X.astype(jnp.float8_e4m3fn), GAMMA), {}),
    "null": ("rms_norm", (None, GAMMA), {}),
    "no number": ("rms_norm", (X, GAMMA, "small"), {}),
    "truth": ("scaled_masked_softmax", (X, None, True), {}),
    "rank": ("rms_norm", (np.ones((1,) * 8 + (4,), np.float32), GAMMA), {}),
    "groups": ("group_norm_swish", (X, np.ones(3, np.float32), np.ones(3, np.float32), 2), {}),
    "size": ("group_norm_swish", (X, np.ones(3, np.float32), np.ones(3, np.float32), 2**63), {}),
    "mask": ("scaled_masked_softmax", (X, np.ones((3, 5), bool)), {}),
    "no mask": ("scaled_masked_softmax", (X, np.ones((3, 4), np.float32)), {}),
    "masks": ("layer_norm_backward", (X, X, [4], X[..., :1], X[..., :1], None, None, [True, False]), {}),
    "windows": ("nsa_compress", (X, np.ones((2, 3), np.float32)), {"compress_block_size": 0, "compress_stride": 1}),
    "sequences": (
        "nsa_compress",
        (X, np.ones((1, 3), np.float32), [1.5]),
        {"compress_block_size": 1, "compress_stride": 1},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sentences_are_those_of_numpy_and_come_while_jax_traces(case):
    name, args, named = REFUSED[case]
    with pytest.raises((AclnnError, TypeError)) as expected:
        getattr(descend, name)(*args, **named)
    arrays = [place for place, a in enumerate(args) if isinstance(a, np.ndarray)]

    def function(*values):
        full = list(args)
        for place, value in zip(arrays, values, strict=True):
            full[place] = value
        return getattr(descend.jax, name)(*full, **named)

    given = [args[place] for place in arrays]
    for run in (function, jax.jit(function).lower, lambda *values: jax.eval_shape(function, *values)):
        with pytest.raises(type(expected.value)) as caught:
            run(*map(jnp.asarray, given))
        assert str(caught.value) == str(expected.value)


def test_what_is_no_array():
    for value in ([1.0, 2.0], 1.0):
        with pytest.raises(TypeError, match=r"^rms_norm: x is a \w+, but must be an array \(JAX or NumPy\)\.$"):
            descend.jax.rms_norm(value, GAMMA)


def test_attributes_must_be_known_when_traced():
    sentence = r"^rms_norm: epsilon is traced, but must be known when the call is traced: .* static_argnames"
    with pytest.raises(TypeError, match=sentence):
        jax.jit(descend.jax.rms_norm)(X, GAMMA, 1e-3)
    with pytest.raises(TypeError, match=r"^layer_norm: normalized_shape is traced"):
        jax.jit(lambda x, n: descend.jax.layer_norm(x, [n]))(X, 4)
    static = jax.jit(descend.jax.rms_norm, static_argnames="epsilon")(X, GAMMA, epsilon=1e-3)
    assert_same_bits([np.asarray(r) for r in static], descend.rms_norm(X, GAMMA, 1e-3))
    concrete = descend.jax.rms_norm(X, GAMMA, jnp.float32(0.5))
    assert_same_bits([np.asarray(r) for r in concrete], descend.rms_norm(X, GAMMA, 0.5))


def test_sizes_must_be_known_when_traced():
    from jax import export

    shape = export.symbolic_shape("b, 4")
    with pytest.raises(ValueError, match=r"^rms_norm: x has shape \[b, 4\], but must have sizes that are known"):
        export.export(jax.jit(descend.jax.rms_norm))(jax.ShapeDtypeStruct(shape, jnp.float32), GAMMA)


def by_hand(target="descend_rms_norm", results=((X.shape, "float32"), ((2, 3, 1), "float32")), **attributes):
    """A call of the handler that `descend.jax` did not make."""
    given = {"operator": "rms_norm", "operands": np.array([0, 1]), "epsilon": np.float64(1e-6), **attributes}
    given = {name: value for name, value in given.items() if value is not None}
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    return jax.block_until_ready(jax.jit(lambda x, g: jax.ffi.ffi_call(target, types)(x, g, **given))(X, GAMMA))


def test_programs_that_others_wrote_are_checked_when_they_run():
    """A wrong program gives a sentence, and nothing is written where it does not fit."""
    assert_same_bits([np.asarray(r) for r in by_hand()], descend.rms_norm(X, GAMMA))
    fits = ((X.shape, "float32"), ((2, 3, 1), "float32"))
    wrong = {
        r"There is no operator 'nope'\.": {"operator": "nope"},
        r"does not say which parameters its operands are": {"operands": None},
        r"has an operand 1 that is none of the operator": {"operands": np.array([0, 9])},
        r"has no result that y_out fits in, FLOAT\[2, 3, 4\]": {"results": (((2, 3), "float32"), fits[1])},
        r"has no result that rstd_out fits in, FLOAT\[2, 3, 1\]": {"results": (fits[0], ((2, 3, 1), "float16"))},
        r"has 3 results, but must have 2": {"results": (*fits, fits[1])},
        r"rms_norm: epsilon is null": {"epsilon": None},
        r"gamma is null": {"operands": np.array([0, 0])},
    }
    for sentence, change in wrong.items():
        with pytest.raises(Exception, match=sentence):
            by_hand(**change)


# --- memory and threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
def test_xla_has_no_buffers_beside_arguments_and_results(name):
    call = calls("FLOAT")[name]
    compiled = jax.jit(call.at(call.arrays)).lower(*call.of(call.arrays)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes == 0


PEAK = """
import json, re
import jax, jax.numpy as jnp
import descend.jax

def status(field):
    return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

x, gamma = jnp.ones((1 << 14, 1 << 10)), jnp.ones(1 << 10)
run = jax.jit(lambda x, gamma: descend.jax.rms_norm(x, gamma)[0])
first = jax.block_until_ready(run(x, gamma))  # kept, so that no memory is free for the second
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
second = jax.block_until_ready(run(x, gamma))
print(json.dumps([status("VmHWM") - before, x.nbytes]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="there is no /proc/self/clear_refs")
def test_a_call_takes_no_more_memory_than_its_results():
    more, size = python_value(PEAK, timeout=300, JAX_PLATFORMS="cpu")
    assert 0.9 * size < more < 1.1 * size


def test_many_threads_at_once():
    call = calls("FLOAT")["rms_norm_grad"]
    function = jax.jit(call.at(call.arrays))
    expected = call.at(call.arrays, descend)(*call.of(call.arrays))
    for results in in_threads(8, lambda _: [function(*call.of(call.arrays)) for _ in range(20)]):
        for each in results:
            assert_same_bits([np.asarray(r) for r in each], expected)


# --- the interface to XLA --------------------------------------------------------------------------------------------

STRUCTURES = {
    "Extension": ("XLA_FFI_Extension_Base", ["struct_size", "type", "next"]),
    "Version": ("XLA_FFI_Api_Version", ["struct_size", "extension_start", "major_version", "minor_version"]),
    "Metadata": ("XLA_FFI_Metadata", ["struct_size", "api_version", "traits"]),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", ["extension_base", "metadata"]),
    "ErrorArguments": ("XLA_FFI_Error_Create_Args", ["struct_size", "extension_start", "message", "errc"]),
    "Api": ("XLA_FFI_Api", ["struct_size", "extension_start", "api_version", "internal_api", "XLA_FFI_Error_Create"]),
    "Buffer": ("XLA_FFI_Buffer", ["struct_size", "extension_start", "dtype", "data", "rank", "dims"]),
    "Span": ("XLA_FFI_ByteSpan", ["ptr", "len"]),
    "Array": ("XLA_FFI_Array", ["dtype", "size", "data"]),
    "Scalar": ("XLA_FFI_Scalar", ["dtype", "value"]),
    "Values": ("XLA_FFI_Args", ["struct_size", "extension_start", "size", "types", "args"]),
    "Attributes": ("XLA_FFI_Attrs", ["struct_size", "extension_start", "size", "types", "names", "attrs"]),
    "CallFrame": (
        "XLA_FFI_CallFrame",
        ["struct_size", "extension_start", "api", "ctx", "stage", "args", "rets", "attrs"],
    ),
}
NUMBERS = {
    "kMetadata": "XLA_FFI_Extension_Metadata",
    "kBuffer": "XLA_FFI_ArgType_BUFFER",
    "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
    "ErrorCode::kInvalidArgument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "ErrorCode::kResourceExhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "ErrorCode::kInternal": "XLA_FFI_Error_Code_INTERNAL",
    "DataType::kBool": "XLA_FFI_DataType_PRED",
    "DataType::kInt64": "XLA_FFI_DataType_S64",
    "DataType::kFloat16": "XLA_FFI_DataType_F16",
    "DataType::kFloat": "XLA_FFI_DataType_F32",
    "DataType::kDouble": "XLA_FFI_DataType_F64",
    "DataType::kBfloat16": "XLA_FFI_DataType_BF16",
    "AttributeType::kArray": "XLA_FFI_AttrType_ARRAY",
    "AttributeType::kScalar": "XLA_FFI_AttrType_SCALAR",
    "AttributeType::kString": "XLA_FFI_AttrType_STRING",
}


def test_the_structures_are_those_of_the_header_in_jaxlib(tmp_path):
    """Sizes and places of all fields, and numbers, as a compiler sees both."""
    text = (NATIVE / "bindings" / "xla_ffi.h").read_text()
    ours = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        declarations = re.sub(r"//.*", "", body).replace("(*create_error)(ErrorArguments* arguments)", "create_error")
        ours[name] = [w for d in declarations.split(";") for w in re.findall(r"(\w+)\s*(?:,|$)", d.strip())]
    assert ours.keys() == STRUCTURES.keys()
    checks = []
    for name, (theirs, fields) in STRUCTURES.items():
        for here, there in zip(ours[name], fields, strict=True):
            checks.append(f"offsetof({name}, {here}) == offsetof({theirs}, {there})")
            checks.append(f"sizeof({name}::{here}) == sizeof({theirs}::{there})")
    checks += [f"static_cast<int>({here}) == static_cast<int>({there})" for here, there in NUMBERS.items()]
    source = tmp_path / "check.cpp"
    source.write_text(
        '#include "bindings/xla_ffi.h"\n#include <xla/ffi/api/c_api.h>\nusing namespace descend::xla;\n'
        + "".join(f"static_assert({check});\n" for check in checks)
    )
    compiler = sysconfig.get_config_var("CXX").split()[0]
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{NATIVE}", f"-isystem{jax.ffi.include_dir()}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_backward_and_forward_calls_are_all_there():
    assert {calls()[name].name for name in (*FORWARDS, *BACKWARDS)} == set(OPERATORS)
    assert set(descend.jax.__all__) == set(OPERATORS) == set(TABLES) - MISSING["jax"]
