"""A Stan program as a library that BridgeStan has compiled, and data as Stan reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from pyturingvi.errors import EngineError, InputError, OutputError
from pyturingvi.support.extras import require

_LIBRARIES = (".so", ".dylib", ".dll")


def bridgestan_module() -> Any:
    """BridgeStan, or an EngineError that names the extra."""
    return require("bridgestan", "stan", "tv.models.Stan")


def compiled(program: Any) -> tuple[str, Path, str]:
    """The code where it is known, the compiled library, and what the program is called."""
    if not isinstance(program, str | os.PathLike):
        raise InputError(f"Stan: program must be a .stan file or Stan code, got {type(program).__name__}.")
    if isinstance(program, str) and "{" in program:
        return program, _compile(_kept(program)), "stan"
    path = Path(program).expanduser()
    if path.suffix not in (".stan", *_LIBRARIES):
        raise InputError(f"Stan: program must be a .stan file, a library made by BridgeStan, or code, got {program!r}.")
    if not path.is_file():
        raise InputError(f"Stan: program: there is no file {path}.")
    if path.suffix in _LIBRARIES:
        return "", path.resolve(), path.stem.removesuffix("_model")
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Stan: program: {path} cannot be read: {error}") from error
    return code, _compile(path), path.stem


def is_of_code(library: Path, code: str) -> bool:
    """Whether a library was compiled from this code as the cache keeps it: another file may have changed since."""
    return library.is_file() and library.stem.removesuffix("_model") == _place_in_cache(code).stem


def _place_in_cache(code: str) -> Path:
    return user_cache_path("pyturingvi") / "stan" / f"stan_{sha256(code.encode()).hexdigest()[:16]}.stan"


def _kept(code: str) -> Path:
    """The code as a file in the cache, under a name that it alone has: it is compiled once."""
    path = _place_in_cache(code)
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"Stan: {path} cannot be written: {error}") from error
    return path


def _compile(path: Path) -> Path:
    bridgestan = bridgestan_module()
    try:
        return Path(bridgestan.compile_model(path))
    except RuntimeError as error:
        lines = str(error).splitlines()
        found = [k for k, line in enumerate(lines) if " error in " in line]
        if found:  # stanc's words: the place, the lines around it, and what is wrong there
            shown = "\n".join(line for line in lines[found[0] : found[0] + 12] if not line.startswith("make"))
            raise InputError(f"Stan: the program cannot be compiled:\n{shown}") from None
        raise EngineError(
            "Stan: BridgeStan could not compile the program; it needs make and a C++17 compiler. Its last words:\n"
            + "\n".join(lines[-8:])
        ) from error
    except Exception as error:  # its sources are fetched at the first use, or stand in $BRIDGESTAN
        raise EngineError(
            f"Stan: BridgeStan's sources cannot be had ({type(error).__name__}: {error}). Set the environment variable "
            "BRIDGESTAN to a folder with them, or pass a library that was compiled elsewhere."
        ) from error


def as_json(data: Any) -> str:
    """The data as Stan reads them."""
    if data is None:
        return ""
    if isinstance(data, Mapping):
        try:
            return str(require("stanio", "stan", "tv.models.Stan").dump_stan_json(dict(data)))
        except (TypeError, ValueError) as error:
            raise InputError(f"Stan: data cannot be written as JSON for Stan: {error}") from error
    if isinstance(data, str) and data.lstrip().startswith("{"):
        return data
    if isinstance(data, str | os.PathLike):
        try:
            return Path(data).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"Stan: data: {data} cannot be read: {error}") from error
    raise InputError(f"Stan: data must be a dictionary, a .json file or JSON, got {type(data).__name__}.")


def first_words(error: Exception) -> str:
    """What Stan says, without where in its C++ it says so."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).removeprefix("C++ exception in ")
