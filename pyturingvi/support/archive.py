"""One file for arrays and their description: an .npz without pickle, with a JSON header."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from pyturingvi.errors import OutputError
from pyturingvi.support.files import write_atomically

_HEADER = "header"
# what NumPy, zipfile and json raise on bytes that are not what they were
_DAMAGE: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


def write_archive(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a JSON-able header and arrays to one .npz file, replacing it whole."""
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    content: dict[str, Any] = {_HEADER: text, **arrays}

    def write(stream: IO[bytes]) -> None:
        np.savez(stream, **content)

    write_atomically(path, write)


def read_archive(
    path: Path, kind: str, what: str, keys: Iterable[str] = (), arrays_needed: Iterable[str] = ()
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read what `write_archive` wrote.

    Raises
    ------
    OutputError
        If the file is missing, damaged, of another kind than `kind` (the header's own word), or lacks one of
        `keys` in its header or one of `arrays_needed`.
    """
    try:
        if not path.exists():
            raise OutputError(f"{what}: there is no file {str(path)!r}.")
        if not zipfile.is_zipfile(path):
            raise damaged(path, what, "it is a directory" if path.is_dir() else "it is no .npz archive")
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{what}: cannot read {str(path)!r}: {error.strerror or error}.") from None
    try:
        # opened here: np.load leaves the file open when its bytes are no archive
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as content:
            if _HEADER not in content.files:
                held = ", ".join(map(repr, content.files[:5])) or "nothing"
                raise ValueError(f"it has no header; it holds {held}")
            arrays = {name: content[name] for name in content.files}
        header = json.loads(arrays.pop(_HEADER).tobytes().decode())
        found_kind = header["kind"]
    except _DAMAGE as error:
        raise damaged(path, what, error) from None
    if found_kind != kind:
        raise OutputError(f"{what}: {str(path)!r} holds a {found_kind!r}, not a {kind!r}.")
    missing = [key for key in keys if key not in header] + [n for n in arrays_needed if n not in arrays]
    if missing:
        raise damaged(path, what, f"it has no {missing[0]!r}")
    return header, arrays


def damaged(path: str | os.PathLike[str], what: str, why: object) -> OutputError:
    """The error for a file that does not hold what it should."""
    why = f"it has no {why}" if isinstance(why, KeyError) else why  # which says no more than its key
    return OutputError(f"{what}: {os.fspath(path)!r} is damaged or not a pyturingvi file ({why}).")


def split_state(state: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Part a flat state into its JSON-able values and its arrays, the latter named with `prefix`."""
    arrays = {prefix + key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    plain = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
    return plain, arrays


def join_state(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, Any]:
    """Inverse of `split_state`."""
    found = {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}
    return {**plain, **found}


def digest(*arrays: Any) -> str:
    """Short SHA-256 of arrays' shapes and bytes, and of plain values."""
    import hashlib  # here: slow to import, and NumPy's generators bring it in any case

    sha = hashlib.sha256()
    for array in arrays:
        if isinstance(array, np.ndarray):
            sha.update(f"{array.dtype.str}{array.shape}".encode())
            sha.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        else:
            sha.update(json.dumps(array, sort_keys=True, default=str).encode())
    return sha.hexdigest()[:16]
