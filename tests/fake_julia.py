"""Stand-ins for a machine with Julia: an executable that only says its version, made-up manifests."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pyturingvi.bridge.environment import PYTHONCALL, source_directory

STANDARD = "LinearAlgebra|Random|SHA|SparseArrays"


def fake_julia(folder: Path, version: str = "1.10.8", name: str = "julia") -> Path:
    """A shell script that answers the probe as Julia would, and counts its calls in a file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    calls = folder / f"{name}-calls"
    path.write_text(
        f"#!/bin/sh\necho >> '{calls}'\nprintf '%s\\0%s\\0%s\\0%s' '{version}' /lib/libjulia.so /bin '{STANDARD}'\n"
    )
    path.chmod(0o755)
    return path


def packages() -> dict[str, tuple[str, str]]:
    """Name -> (UUID, a version that will do) of what the bundled package needs, and PythonCall."""
    table = tomllib.loads((source_directory() / "Project.toml").read_text())
    needed = {
        name: (uuid, f"{table['compat'][name]}.99")
        for name, uuid in table["deps"].items()
        if name not in STANDARD.split("|")
    }
    return {**needed, PYTHONCALL[0]: (PYTHONCALL[1], "0.9.37")}


def fake_project(folder: Path, changes: dict[str, str | None] | None = None, manifest: str = "Manifest.toml") -> Path:
    """A project folder whose manifest holds all that is needed, but for `changes`: name -> other version, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = ['manifest_format = "2.0"\n']
    for name, (uuid, version) in packages().items():
        found = (changes or {}).get(name, version)
        if found is not None:
            entries.append(f'[[deps.{name}]]\nuuid = "{uuid}"\nversion = "{found}"\n')
    (folder / manifest).write_text("\n".join(entries))
    return folder
