"""Files of tensors: reading and writing every format, with bfloat16, and one clear sentence for every error."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from descend import tensors
from descend.tensors import TensorFileError

bfloat16 = np.dtype(ml_dtypes.bfloat16)
MANY = [".npz", ".safetensors", ".pt", ".pth"]
ONE = [".npy", ".bin"]
DTYPES = [np.dtype(name) for name in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")]


@pytest.fixture(autouse=True)
def _torch_where_needed(request):
    if ".pt" in request.node.name:
        pytest.importorskip("torch")


def sample(dtype, shape=(2, 3)):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape) - 2
    return values.astype(dtype)


def check_same(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()
    assert actual.flags.aligned
    assert type(actual) is np.ndarray


@pytest.mark.parametrize("suffix", MANY)
def test_many_tensors_round_trip(tmp_path, suffix):
    written = {str(dtype): sample(dtype) for dtype in [*DTYPES, bfloat16]}
    written |= {
        "layers.0.norm1.dy": sample(bfloat16, (4, 1, 5)),
        "empty": np.empty((3, 0), np.float32),
        "scalar": np.float32(7.5).reshape(()),
        "empty_bfloat16": np.empty(0, bfloat16),
        "file": sample(np.float32),
        "transposed": sample(np.float32, (4, 5)).T,
        "strided": sample(bfloat16, (4, 6))[:, ::2],
    }
    path = tmp_path / f"tensors{suffix}"
    tensors.write(path, written)
    read = tensors.read(path)
    assert read.keys() == written.keys()
    for name, array in written.items():
        check_same(read[name], array)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", ONE)
@pytest.mark.parametrize("dtype", [*DTYPES, bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (0,), (2, 0, 3), (), (1, 1, 7)])
def test_one_tensor_round_trips(tmp_path, suffix, dtype, shape):
    path = tmp_path / f"dy{suffix}"
    array = sample(dtype, shape)
    tensors.write(path, {"anything": array})
    read = tensors.read(path, dtype, shape) if suffix == ".bin" else tensors.read(path)
    assert list(read) == ["dy"]
    check_same(read["dy"], array)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:", exclude_categories=["Cs", "Cc"]), min_size=1),
        npst.arrays(st.sampled_from([*DTYPES]), npst.array_shapes(min_dims=0, min_side=0)),
        max_size=4,
    ),
    st.sampled_from([".npz", ".safetensors"]),
)
def test_any_names_and_shapes_round_trip(tmp_path, written, suffix):
    written = {name: array for name, array in written.items() if name != "__metadata__" and not name.endswith(".npy")}
    path = tmp_path / f"tensors{suffix}"
    tensors.write(path, written)
    read = tensors.read(path)
    assert read.keys() == written.keys()
    for name, array in written.items():
        check_same(read[name], array)


def test_numpy_and_safetensors_read_what_is_written(tmp_path):
    array = sample(np.float32)
    tensors.write(tmp_path / "a.npz", {"x": array, "b": sample(bfloat16)})
    with np.load(tmp_path / "a.npz") as file:
        np.testing.assert_array_equal(file["x"], array)
        np.testing.assert_array_equal(file["b"].view(bfloat16), sample(bfloat16))
    safetensors = pytest.importorskip("safetensors.torch")
    tensors.write(tmp_path / "a.safetensors", {"x": array, "b": sample(bfloat16)})
    loaded = safetensors.load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(loaded["x"].numpy(), array)
    np.testing.assert_array_equal(loaded["b"].float().numpy(), sample(np.float32))


def test_what_numpy_and_safetensors_write_is_read(tmp_path):
    array, brain = sample(np.float32), sample(bfloat16)
    np.savez(tmp_path / "a.npz", x=array, b=brain)
    np.savez_compressed(tmp_path / "c.npz", x=array, b=brain)
    for name in ("a.npz", "c.npz"):
        read = tensors.read(tmp_path / name)
        check_same(read["x"], array)
        check_same(read["b"], brain)
    np.save(tmp_path / "b.npy", brain)
    check_same(tensors.read(tmp_path / "b.npy")["b"], brain)
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(
        {"x": torch.from_numpy(array), "b": torch.from_numpy(array).bfloat16()},
        tmp_path / "a.safetensors",
        {"key": "v"},
    )
    read = tensors.read(tmp_path / "a.safetensors")
    check_same(read["x"], array)
    check_same(read["b"], brain)


def test_what_torch_writes_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    path = tmp_path / "x.pt"
    torch.save(x.bfloat16(), path)
    check_same(tensors.read(path)["x"], x.numpy().astype(bfloat16))
    model = torch.nn.Linear(2, 3)
    torch.save({"model": model.state_dict(), "step": 7, "moments": [x, x.t()]}, path)
    read = tensors.read(path)
    assert set(read) == {"model.weight", "model.bias", "moments.0", "moments.1"}
    check_same(read["moments.1"], x.numpy().T)
    torch.save({"p": torch.nn.Parameter(x)}, path, _use_new_zipfile_serialization=False)
    check_same(tensors.read(path)["p"], x.numpy())


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".bin"])
def test_big_formats_are_mapped(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    tensors.write(path, {"x": np.zeros(5, np.float32)})
    array = tensors.read(path, *([np.float32] if suffix == ".bin" else []))["x"]
    assert not array.flags.owndata
    assert not array.flags.writeable
    before = path.stat().st_ino
    tensors.write(path, {"x": np.ones(5, np.float32)})  # replaces the file and leaves what is mapped alone
    np.testing.assert_array_equal(array, np.zeros(5))
    assert path.stat().st_ino != before


def test_byte_swapped_and_misaligned_tensors_become_plain(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4, dtype=">f4"))
    check_same(tensors.read(tmp_path / "x.npy")["x"], np.arange(4, dtype=np.float32))
    header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}).encode()
    data = np.float32([1, 2])
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" + data.tobytes())
    check_same(tensors.read(tmp_path / "x.safetensors")["x"], data)


def test_bits_kept_as_integers_are_read_with_a_dtype(tmp_path):
    brain = sample(bfloat16)
    np.savez(tmp_path / "x.npz", x=brain.view(np.uint16), rstd=np.float32([1, 2]))
    read = tensors.read(tmp_path / "x.npz", "bfloat16")
    check_same(read["x"], brain)
    check_same(read["rstd"], np.float32([1, 2]))
    assert tensors.read(tmp_path / "x.npz")["x"].dtype == np.uint16


def refused(path, *arguments, error=TensorFileError):
    with pytest.raises(error) as caught:
        tensors.read(path, *arguments)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("suffix", [*MANY, *ONE])
def test_missing_files_and_folders(tmp_path, suffix):
    assert "does not exist" in refused(tmp_path / f"no{suffix}", "float32", error=FileNotFoundError)
    (tmp_path / f"folder{suffix}").mkdir()
    assert "is a folder" in refused(tmp_path / f"folder{suffix}", "float32")
    with pytest.raises(FileNotFoundError, match=r"folder .* does not exist"):
        tensors.write(tmp_path / "no" / f"x{suffix}", {"x": sample(np.float32)})


@pytest.mark.parametrize("name", ["x.txt", "x", "x.NPZ", "x.bin:flaot16"])
def test_unknown_suffixes(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert "known are .npz, .npy, .safetensors, .pt, .pth, .bin" in refused(tmp_path / name)
    with pytest.raises(TensorFileError, match="no suffix of a known format"):
        tensors.write(tmp_path / name, {"x": sample(np.float32)})


def test_raw_files_that_do_not_fit(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(10))
    assert "say which dtype" in refused(path)
    assert "has 10 bytes, which is no multiple of the 4 of float32" in refused(path, np.float32)
    assert "has 10 bytes, but float16 of shape [2, 3] takes 12" in refused(path, np.float16, (2, 3))
    assert "has 10 bytes" in refused(path, np.float16, (1 << 40, 1 << 40))
    check_same(tensors.read(path, np.float16)["x"], np.zeros(5, np.float16))


def test_a_shape_is_only_for_raw_files(tmp_path):
    tensors.write(tmp_path / "x.npy", {"x": sample(np.float32)})
    assert "only for raw .bin files" in refused(tmp_path / "x.npy", None, (6,))


def test_files_of_one_tensor_hold_one(tmp_path):
    for suffix in ONE:
        with pytest.raises(TensorFileError, match=r"holds one tensor, and there are 2 \(a, b\)"):
            tensors.write(tmp_path / f"x{suffix}", {"a": sample(np.float32), "b": sample(np.float32)})
        with pytest.raises(TensorFileError, match=r"there are 0 \(none\)"):
            tensors.write(tmp_path / f"x{suffix}", {})


class Dangerous:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".pt", ".bin"])
def test_named_pipes_are_refused(tmp_path, suffix):
    """Opening one would wait until somebody writes."""
    os.mkfifo(tmp_path / f"x{suffix}")
    with pytest.raises(TensorFileError, match=r"is no regular file\.$"):
        tensors.read(tmp_path / f"x{suffix}", np.float32)


@pytest.mark.filterwarnings("error")
def test_pickles_are_refused(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.array([Dangerous()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([Dangerous()], dtype=object))
    (tmp_path / "x.pt").write_bytes(pickle.dumps(Dangerous()))
    (tmp_path / "y.npy").write_bytes(pickle.dumps([1, 2]))
    assert "could run code" in refused(tmp_path / "x.npy")
    assert "could run code" in refused(tmp_path / "x.npz")
    assert "not a readable .npy file" in refused(tmp_path / "y.npy")
    torch = pytest.importorskip("torch")
    refused(tmp_path / "x.pt")
    torch.save({"x": Dangerous()}, tmp_path / "x.pt")
    assert "could run code" in refused(tmp_path / "x.pt")
    assert "executed" not in capsys.readouterr().out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [*MANY, ".npy"])
@pytest.mark.parametrize("content", [b"", b"no such format", bytes(100), b"\xff" * 100])
def test_garbage_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    refused(path)


def test_headers_with_an_open_bracket_are_refused(tmp_path):
    tensors.write(tmp_path / "x.npy", {"x": np.ones((3, 4), np.float32)})
    broken = (tmp_path / "x.npy").read_bytes().replace(b"(3, 4)", b"(3, 4 ")
    (tmp_path / "x.npy").write_bytes(broken)
    assert "not a readable .npy file" in refused(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", broken)
    assert "not a readable .npz file" in refused(tmp_path / "x.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_with_a_broken_byte_gives_no_wrong_numbers(tmp_path, method):
    path, values = tmp_path / "x.npz", np.arange(3111, dtype=np.float32)
    tensors.write(tmp_path / "x.npy", {"x": values})
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    whole = path.read_bytes()
    begin, size = 30 + len("x.npy"), archive.getinfo("x.npy").compress_size
    refusals = 0
    for place in [*range(begin, begin + 128), *range(begin + 128, begin + size, 97)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert np.array_equal(tensors.read(path)["x"], values)  # not all bits are used
        except TensorFileError:
            refusals += 1
    assert refusals > 100


@pytest.mark.parametrize("suffix", [*MANY, ".npy"])
def test_truncated_files_are_refused(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    tensors.write(path, {"x": np.arange(1000, dtype=np.float32)})
    whole = path.read_bytes()
    for length in (4, 20, 100, len(whole) - 8):
        path.write_bytes(whole[:length])
        refused(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 0]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
        {"dtype": "F32"},
        [],
    ],
)
def test_bad_safetensors_headers_are_refused(tmp_path, entry):
    header = json.dumps({"x": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    refused(path)


def lacks(tensors, name):
    """The sentence of a tensor that is not supported: it has its name, and the others do not suffer from it."""
    assert name in tensors
    with pytest.raises(TensorFileError) as caught:
        tensors[name]
    with pytest.raises(TensorFileError):
        dict(tensors)
    return str(caught.value)


def test_unsupported_tensors_of_safetensors_are_errors_when_asked_for(tmp_path):
    header = json.dumps({
        "scale": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]},
        "x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
    }).encode()  # fmt: skip
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4) + np.float32(7).tobytes())
    read = tensors.read(path)
    assert list(read) == ["scale", "x"]
    check_same(read["x"], np.float32([7]))
    assert lacks(read, "scale") == f"{path}: scale has dtype F8_E4M3, which is not supported."


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_unsupported_tensors_of_pt_are_errors_when_asked_for(tmp_path):
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    unsupported = {
        "float8": (x.to(torch.float8_e4m3fn), "torch.float8_e4m3fn, torch.strided, on cpu"),
        "sparse": (x.to_sparse(), "torch.float32, torch.sparse_coo, on cpu"),
        "quantized": (torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "torch.quint8, torch.strided, on cpu"),
        "meta": (x.to("meta"), "torch.float32, torch.strided, on meta"),
        "meta16": (x.to("meta", torch.bfloat16), "torch.bfloat16, torch.strided, on meta"),
    }
    path = tmp_path / "x.pt"
    torch.save({"x": x, **{name: tensor for name, (tensor, _) in unsupported.items()}}, path)
    read = tensors.read(path)
    check_same(read["x"], x.numpy())
    for name, (_, kind) in unsupported.items():
        assert lacks(read, name) == f"{path}: {name} is a tensor of {kind}, which is not supported."


@pytest.mark.parametrize("suffix", [*MANY, *ONE])
def test_names_as_long_as_the_system_takes_them(tmp_path, suffix):
    path = tmp_path / ("x" * (255 - len(suffix)) + suffix)
    tensors.write(path, {"x": sample(np.float32)})
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_archive_has_no_tensors(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w"):
        pass
    assert tensors.read(tmp_path / "x.npz") == {}
    buffer = io.BytesIO()
    np.save(buffer, np.ones(2))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "not a tensor")
    refused(tmp_path / "x.npz")


@pytest.mark.parametrize("suffix", [*MANY, ".npy", ".bin"])
def test_what_a_format_cannot_hold_is_refused(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    if suffix.startswith(".pt"):
        pytest.importorskip("torch")
    values: list[Any] = [np.array([1, None], object), None]
    values += [np.ones(3, t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.int4)] if suffix != ".bin" else []
    for array in values:
        dtype = np.asarray(array).dtype
        with pytest.raises(TensorFileError, match=rf"^A \.\w+ file cannot hold x, whose dtype is {dtype}\.$"):
            tensors.write(path, {"x": array})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", MANY)
@pytest.mark.parametrize(
    "name", ["", "\0", "a\0b", "\ud800", "x" * 70_000, "__metadata__", "a.npy", "../x", "é"], ids=ascii
)
def test_a_name_is_kept_or_refused(tmp_path, suffix, name):
    if suffix.startswith(".pt"):
        pytest.importorskip("torch")
    path = tmp_path / f"x{suffix}"
    try:
        tensors.write(path, {name: np.ones(3, np.float32)})
    except TensorFileError as error:
        assert len(str(error)) < 200  # noqa: PT017
        assert not list(tmp_path.iterdir())
    else:
        assert list(tensors.read(path)) == [name]


@pytest.mark.parametrize("suffix", [*MANY, ".npy", ".bin"])
@pytest.mark.parametrize("dtype", [">f4", ">i2", "<f8", ">f8"])
def test_files_are_written_in_native_byte_order(tmp_path, suffix, dtype):
    if suffix.startswith(".pt"):
        pytest.importorskip("torch")
    path, array = tmp_path / f"x{suffix}", np.arange(6).astype(dtype)
    tensors.write(path, {"x": array})
    native = array.dtype.newbyteorder("=")
    found = tensors.read(path, native if suffix == ".bin" else None)["x"]
    assert found.dtype == native
    assert np.array_equal(found, array)


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors.write(path, {"x": sample(np.float32)})
    with pytest.raises(TensorFileError, match="cannot hold z, whose dtype is complex128"):
        tensors.write(path, {"z": np.ones(2, complex)})
    assert list(tmp_path.iterdir()) == [path]
    check_same(tensors.read(path)["x"], sample(np.float32))


@pytest.mark.parametrize("suffix", [*MANY, *ONE])
def test_what_the_system_refuses_to_write_names_the_file(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.mkdir()
    (path / "kept").touch()
    with pytest.raises(IsADirectoryError) as caught:
        tensors.write(path, {"x": sample(np.float32)})
    assert str(caught.value) == f"{path} cannot be written: Is a directory."
    assert list(tmp_path.iterdir()) == [path]
    long = tmp_path / ("x" * 300 + suffix)
    with pytest.raises(OSError, match="too long") as caught:
        tensors.write(long, {"x": sample(np.float32)})
    assert str(caught.value) == f"{long} cannot be written: File name too long."


def test_pt_without_torch(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from descend import tensors\n"
        "try: tensors.read(sys.argv[1])\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code, tmp_path / "x.pt"], capture_output=True, text=True, check=True)
    assert result.stdout == "A .pt file needs PyTorch: pip install torch.\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("float16", "float16"),
        ("bf16", "bfloat16"),
        ("BFLOAT16", "bfloat16"),
        ("FLOAT", "float32"),
        ("DT_BF16", "bfloat16"),
        ("DT_FLOAT", "float32"),
        ("ACL_FLOAT16", "float16"),
        ("torch.bfloat16", "bfloat16"),
        ("double", "float64"),
        ("Bool", "bool"),
        ("int64", "int64"),
    ],
)
def test_dtype_names(text, name):
    assert tensors.parse_dtype(text).name == name


def test_names_that_are_no_dtype_or_shape():
    for text in ("flaot16", "", "object", "complex64", "2x3"):
        with pytest.raises(TensorFileError, match="is not a dtype; known are"):
            tensors.parse_dtype(text)
    assert tensors.parse_shape("2x1x32") == tensors.parse_shape("2,1,32") == (2, 1, 32)
    assert tensors.parse_shape("0") == (0,)
    for text in ("", "x", "2x", "-1", "2.5", "two"):
        with pytest.raises(TensorFileError, match="is not a shape"):
            tensors.parse_shape(text)
