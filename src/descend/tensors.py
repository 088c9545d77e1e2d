"""Files of tensors: read them as NumPy arrays by name, write them back; bfloat16 in every format.

========================  ==========================  =======================================================
suffix                    holds                       bfloat16
========================  ==========================  =======================================================
``.npz``                  tensors by name             NumPy's own form for it: two raw bytes, ``|V2``
``.npy``                  one tensor, mapped          the same
``.safetensors``          tensors by name, mapped     ``BF16``
``.pt``, ``.pth``         tensors by name             PyTorch's; needs torch, and refuses pickled code
``.bin``                  one tensor, raw, mapped     as it lies in memory, as Ascend's dump tools write it
========================  ==========================  =======================================================

A file that holds one unnamed tensor gives it the file's own name without the suffix. ``.npy`` and ``.npz`` cannot say
bfloat16, so elements of two raw bytes (what ``numpy.save`` makes of an ``ml_dtypes.bfloat16`` array) are read as
bfloat16. Where another program kept the bits as integers, say so with ``dtype="bfloat16"``.

"Mapped" arrays are read-only views of the file; nothing is read before it is used. Everything is written to a
neighbouring file first and then renamed, so that a failure leaves no half-written file.
"""

from __future__ import annotations

import json
import math
import os
import warnings
import zipfile
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import IO, Any, BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_RAW16 = np.dtype("V2")

_SAFETENSORS: dict[str, np.dtype[Any]] = {
    "BF16": BFLOAT16,
    "BOOL": np.dtype(np.bool_),
    **{f"F{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    **{f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)},
}
_SAFETENSORS_NAMES = {dtype: name for name, dtype in _SAFETENSORS.items()}

_ALIASES = {
    **{"half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16"},
    **{"float": "float32", "fp32": "float32", "f32": "float32"},
    **{"double": "float64", "fp64": "float64", "f64": "float64"},
}


class TensorFileError(ValueError):
    """A file of tensors that cannot be read or written, and one sentence that says why."""


class Contents(UserDict[str, Array]):
    """The tensors of a file, by name. One that is not supported is a TensorFileError once it is asked for."""

    data: dict[str, Any]

    def __init__(self, found: Mapping[str, Array | TensorFileError]) -> None:
        self.data = dict(found)

    def __getitem__(self, name: str) -> Array:
        found: Array | TensorFileError = self.data[name]
        if isinstance(found, TensorFileError):
            raise found
        return found


_Found = dict[str, Array | TensorFileError]
"""What a format's reader gives: arrays, and why others are none."""


def parse_dtype(text: str) -> np.dtype[Any]:
    """The dtype that a name stands for: ``float16``, ``bf16``, ``FLOAT``, ``DT_BF16``, ``torch.int64``, in any case.

    Raises TensorFileError for an unknown name.
    """
    name = text.strip().lower().removeprefix("torch.").removeprefix("acl_").removeprefix("dt_")
    name = _ALIASES.get(name, name)
    for dtype in _SAFETENSORS_NAMES:
        if dtype.name == name:
            return dtype
    known = ", ".join(dtype.name for dtype in _SAFETENSORS_NAMES)
    raise TensorFileError(f"{text!r} is not a dtype; known are {known}.")


def parse_shape(text: str) -> tuple[int, ...]:
    """The shape that ``2x1x32`` or ``2,1,32`` stands for; TensorFileError for anything else."""
    parts = text.replace(",", "x").split("x")
    if not all(part.strip().isdecimal() for part in parts):
        raise TensorFileError(f"{text!r} is not a shape; write it like 2x1x32.")
    return tuple(int(part) for part in parts)


def is_known(path: str | os.PathLike[str]) -> bool:
    """Whether the suffix is that of a format."""
    return Path(path).suffix in _WRITERS


def read(
    path: str | os.PathLike[str], dtype: npt.DTypeLike | None = None, shape: Sequence[int] | None = None
) -> Contents:
    """The tensors of a file, by name; the suffix decides the format.

    ``.bin`` needs ``dtype``; without ``shape`` it is read as one dimension. In the other formats ``dtype`` is how to
    read tensors that are stored as raw bytes or integers of the same width (the bits of bfloat16, say); others are not
    touched.

    Arrays are aligned and in native byte order; a mapped one is copied where the file has it otherwise. Raises
    FileNotFoundError for a missing file, ModuleNotFoundError where ``.pt`` is read without torch, and TensorFileError
    for anything else that is wrong with the file. A tensor that NumPy has no form for (float8, say, or a sparse one) is
    among the names, and the TensorFileError comes when it is asked for.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix)
    if reader is None and path.suffix != ".bin":
        raise _unknown(path)
    if path.is_dir():
        raise TensorFileError(f"{path} is a folder, not a file of tensors.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not path.is_file():  # a named pipe, say, at which a reader would wait
        raise TensorFileError(f"{path} is no regular file.")
    wanted = None if dtype is None else np.dtype(dtype)
    if reader is None:
        return Contents({path.stem: _read_bin(path, wanted, shape)})
    if shape is not None:
        raise TensorFileError(f"{path}: a shape is only for raw .bin files; a {path.suffix} file has its own.")
    try:
        tensors = reader(path)
        return Contents({n: t if isinstance(t, TensorFileError) else _usable(t, wanted) for n, t in tensors.items()})
    except (TensorFileError, PermissionError, ImportError):
        raise
    except UnpicklingError:
        raise TensorFileError(f"{path} holds pickled Python objects, which are refused: they could run code.") from None
    except MemoryError:
        raise TensorFileError(f"{path} cannot be read: there is no memory for its tensors.") from None
    except Exception as error:  # of a damaged file the parsers raise one or another
        raise TensorFileError(f"{path} is not a readable {path.suffix} file ({_first_line(error)}).") from None


def check_writable(path: Path) -> None:
    """Raise what `write` would, whatever the tensors: for an unknown suffix, or a folder that is not there."""
    if not is_known(path):
        raise _unknown(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path} cannot be written: Is a directory.")
    if not os.path.isdir(path.parent):
        raise FileNotFoundError(f"The folder {path.parent} does not exist.")


def write(path: str | os.PathLike[str], tensors: Mapping[str, npt.ArrayLike]) -> None:
    """Write tensors by name, in native byte order; the suffix decides the format.

    ``.npy`` and ``.bin`` hold exactly one. Raises TensorFileError where the format cannot hold a dtype, a name or their
    number, FileNotFoundError where the folder does not exist, and the OSError of what else the system refuses.
    """
    path = Path(path)
    check_writable(path)
    writer = _WRITERS[path.suffix]
    if path.suffix in (".npy", ".bin") and len(tensors) != 1:
        names = ", ".join(tensors) or "none"
        raise TensorFileError(f"{path}: a {path.suffix} file holds one tensor, and there are {len(tensors)} ({names}).")
    with replacing(path) as file:
        writer(file, {name: _native(np.asarray(array)) for name, array in tensors.items()})


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when all of it is written, so that a failure leaves no half of one.

    Raises the OSError of what the system refuses.
    """
    part = path.with_name(f".{os.urandom(8).hex()}.part")  # without the name, which may be as long as a name can be
    try:
        try:
            with part.open("wb") as file:
                yield file
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:  # which names the neighbour
        why = error.strerror or "only a part of it could be, as on a full disk"  # NumPy's error has numbers only
        raise type(error)(f"{path} cannot be written: {why}.") from None


def _unknown(path: Path) -> TensorFileError:
    known = ", ".join(_WRITERS)
    return TensorFileError(f"{path} has no suffix of a known format; known are {known}.")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


def _usable(array: Array, wanted: np.dtype[Any] | None) -> Array:
    """The array as a plain one: dtype as wanted, native byte order, aligned."""
    array = np.asarray(array)
    if wanted is not None and array.dtype.itemsize == wanted.itemsize and array.dtype.kind in "Viu":
        array = array.view(wanted)
    elif array.dtype == _RAW16:
        array = array.view(BFLOAT16)
    return np.require(_native(array), requirements="A")


def _native(array: Array) -> Array:
    """The array in native byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _refusal(suffix: str, name: str, array: Array) -> TensorFileError:
    return TensorFileError(f"A {suffix} file cannot hold {name}, whose dtype is {array.dtype}.")


def _storable(suffix: str, name: str, array: Array) -> Array:
    """The array with bfloat16 as raw bytes, the form in which NumPy's formats keep it."""
    if array.dtype == BFLOAT16:
        return array.view(_RAW16)
    if array.dtype.hasobject or array.dtype.isbuiltin == 2:  # another dtype that is not NumPy's own
        raise _refusal(suffix, name, array)
    return array


def _mapped(path: Path, offset: int, size: int) -> npt.NDArray[np.uint8]:
    if size == 0:  # mmap refuses it
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r", offset, (size,)))


def _read_bin(path: Path, dtype: np.dtype[Any] | None, shape: Sequence[int] | None) -> Array:
    if dtype is None:
        raise TensorFileError(f"{path} is raw: say which dtype and shape it has, as in {path.name}:float16:2x1x32.")
    size = path.stat().st_size
    if shape is None:
        if size % dtype.itemsize:
            raise TensorFileError(f"{path} has {size} bytes, which is no multiple of the {dtype.itemsize} of {dtype}.")
        shape = (size // dtype.itemsize,)
    needed = math.prod(shape) * dtype.itemsize
    if size != needed:
        raise TensorFileError(f"{path} has {size} bytes, but {dtype} of shape {list(shape)} takes {needed}.")
    return _mapped(path, 0, size).view(dtype).reshape(shape)


def _write_bin(file: IO[bytes], tensors: Tensors) -> None:
    for name, array in tensors.items():
        if array.dtype.hasobject:
            raise _refusal(".bin", name, array)
        np.ascontiguousarray(array).tofile(file)


def _read_npy(path: Path) -> _Found:
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        begin = file.tell()
    if dtype.hasobject:
        raise UnpicklingError
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > path.stat().st_size - begin:
        raise TensorFileError(f"{path} is cut short or damaged: it has no room for {dtype} of shape {list(shape)}.")
    if 0 in shape or not shape:  # nothing to map
        return {path.stem: np.load(path, allow_pickle=False)}
    return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False)}


def _write_npy(file: IO[bytes], tensors: Tensors) -> None:
    for name, array in tensors.items():
        np.lib.format.write_array(file, _storable(".npy", name, array), allow_pickle=False)


def _read_npz(path: Path) -> _Found:
    tensors: _Found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                try:
                    tensors[member.removesuffix(".npy")] = np.lib.format.read_array(file, allow_pickle=False)
                    file.read()  # to the end, where the checksum is compared
                except ValueError as error:
                    raise UnpicklingError if "allow_pickle" in str(error) else error from None
    return tensors


def _write_npz(file: IO[bytes], tensors: Tensors) -> None:
    # As numpy.savez writes it, but any name will do (savez has parameters of its own).
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in tensors.items():
            stored = _storable(".npz", name, array)
            if not _names_a_member(f"{name}.npy"):
                raise TensorFileError(f"A .npz file cannot hold a tensor of this name: {_shortened(name)}.")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)


def _names_a_member(text: str) -> bool:
    """Whether a zip archive keeps the name as it is."""
    try:
        return zipfile.ZipInfo(text).filename == text and len(text.encode()) < 1 << 16
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _shortened(name: str) -> str:
    return ascii(name if len(name) < 80 else f"{name[:80]}...")


def _read_safetensors(path: Path) -> _Found:
    # Eight bytes with the length of a JSON header, the header, then the tensors one after another. Not read by the
    # safetensors package, which copies for NumPy and knows bfloat16 only in later versions.
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        if begin > size:
            raise TensorFileError(f"{path} is cut short, or no .safetensors file.")
        header = json.loads(file.read(begin - 8))
    data = _mapped(path, begin, size - begin)
    tensors: _Found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _SAFETENSORS.get(entry["dtype"])
        if dtype is None:
            tensors[name] = TensorFileError(f"{path}: {name} has dtype {entry['dtype']}, which is not supported.")
            continue
        shape, (first, last) = entry["shape"], entry["data_offsets"]
        if not 0 <= first <= last <= data.size or last - first != math.prod(shape) * dtype.itemsize:
            raise TensorFileError(f"{path} is cut short or damaged: {name} does not fit into it.")
        tensors[name] = data[first:last].view(dtype).reshape(shape)
    return tensors


def _write_safetensors(file: IO[bytes], tensors: Tensors) -> None:
    header: dict[str, object] = {}
    arrays: list[Array] = []
    end = 0
    for name, array in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):  # so that all are aligned
        if array.dtype not in _SAFETENSORS_NAMES:
            raise _refusal(".safetensors", name, array)
        if name == "__metadata__":
            raise TensorFileError("A .safetensors file cannot hold a tensor of this name: '__metadata__'.")
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        arrays.append(array)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        np.ascontiguousarray(array).tofile(file)


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError:
        raise ModuleNotFoundError("A .pt file needs PyTorch: pip install torch.") from None
    return torch


def _read_pt(path: Path) -> _Found:
    torch = _torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about files that are refused, or read all the same
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    if isinstance(content, torch.Tensor):
        content = {path.stem: content}
    tensors: _Found = {}
    for name, tensor in _flatten(content):
        if not isinstance(tensor, torch.Tensor):
            continue
        try:
            plain = tensor.detach().resolve_neg().resolve_conj()
            brain = plain.dtype == torch.bfloat16
            tensors[name] = plain.view(torch.int16).numpy().view(BFLOAT16) if brain else plain.numpy()
        except (TypeError, RuntimeError):  # sparse, quantized, nested, on "meta", of a dtype that NumPy does not have
            kind = f"a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}"
            tensors[name] = TensorFileError(f"{path}: {name} is {kind}, which is not supported.")
    if not tensors:
        raise TensorFileError(f"{path} holds no tensors.")
    return tensors


def _flatten(content: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What nested dicts and lists hold, by dotted name: a state dict inside a checkpoint."""
    items: list[tuple[object, object]] = []
    if isinstance(content, Mapping):
        items = list(content.items())
    elif isinstance(content, (list, tuple)):
        items = list(enumerate(content))
    else:
        yield prefix, content
    for key, value in items:
        yield from _flatten(value, f"{prefix}.{key}" if prefix else str(key))


def _write_pt(file: IO[bytes], tensors: Tensors) -> None:
    torch = _torch()
    content = {}
    for name, array in tensors.items():
        plain = np.array(array, order="C")  # a copy that torch may call its own
        brain = plain.dtype == BFLOAT16
        try:
            tensor = torch.from_numpy(plain.view(np.int16) if brain else plain)
        except TypeError:
            raise _refusal(".pt", name, array) from None
        content[name] = tensor.view(torch.bfloat16) if brain else tensor
    try:
        torch.save(content, file)
    except RuntimeError as error:  # PyTorch's, which hides what the system said
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


_READERS: dict[str, Callable[[Path], _Found]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
    ".pth": _read_pt,
}
_WRITERS: dict[str, Callable[[IO[bytes], Tensors], None]] = {
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".safetensors": _write_safetensors,
    ".pt": _write_pt,
    ".pth": _write_pt,
    ".bin": _write_bin,
}
