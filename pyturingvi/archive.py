"""One file for arrays and their description: an .npz without pickle, with a JSON header."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from pyturingvi.errors import OutputError
from pyturingvi.paths import write_atomically

_HEADER = "header"


def write_archive(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a JSON-able header and arrays to one .npz file, replacing it whole."""
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    content: dict[str, Any] = {_HEADER: text, **arrays}

    def write(stream: IO[bytes]) -> None:
        np.savez(stream, **content)

    write_atomically(path, write)


def read_archive(path: Path, kind: str, what: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read what `write_archive` wrote.

    Raises
    ------
    OutputError
        If the file is missing, damaged or of another kind than `kind` (the header's own word).
    """
    if not path.is_file():
        raise OutputError(f"{what}: there is no file {str(path)!r}.")
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        header = json.loads(arrays.pop(_HEADER).tobytes().decode())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise OutputError(f"{what}: {str(path)!r} is damaged or not a pyturingvi file ({error}).") from None
    if header.get("kind") != kind:
        raise OutputError(f"{what}: {str(path)!r} holds a {header.get('kind')!r}, not a {kind!r}.")
    return header, arrays


def split_state(state: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Part a flat state into its JSON-able values and its arrays, the latter named with `prefix`."""
    arrays = {prefix + key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    plain = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
    return plain, arrays


def join_state(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, Any]:
    """Inverse of `split_state`."""
    found = {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}
    return {**plain, **found}
