"""Stand-ins for a machine with Julia: an executable that only says its version, made-up manifests."""

from __future__ import annotations

from pathlib import Path

from pyturingvi.bridge.environment import JuliaEnvironment
from pyturingvi.bridge.packages import required_packages, version_to_add


def fake_julia(folder: Path, version: str = "1.10.8", name: str = "julia") -> Path:
    """A shell script that answers as Julia would: its version; that no files of packages are missing, but for those
    that a file `missing` beside it names. Each call adds a line to another file, its JULIA_DEPOT_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(
        f"""#!/bin/sh
echo "$JULIA_DEPOT_PATH" >> "$0-calls"
case "$*" in
    *locate_package*) missing="${{0%/*}}/missing"; test -f "$missing" && printf '%s\\0' $(cat "$missing"); exit 0;;
    *) printf '%s\\0%s\\0%s' '{version}' /lib/libjulia.so /bin;;
esac
"""
    )
    path.chmod(0o755)
    return path


def fake_project(folder: Path, changes: dict[str, str | None] | None = None, manifest: str = "Manifest.toml") -> Path:
    """A project folder whose manifest holds all that is needed, but for `changes`: name -> other version, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = ['manifest_format = "2.0"\n']
    for name, uuid, compat in required_packages():
        found = (changes or {}).get(name, f"{version_to_add(compat)}.99" if compat[0] != "=" else compat[1:])
        if found is not None:
            entries.append(f'[[deps.{name}]]\nuuid = "{uuid}"\nversion = "{found}"\n')
    (folder / manifest).write_text("\n".join(entries))
    return folder


def fake_environment(
    folder: Path, version: str = "1.10.8", changes: dict[str, str | None] | None = None, origin: str = "registered"
) -> JuliaEnvironment:
    """Both."""
    julia, project = fake_julia(folder / "bin", version), fake_project(folder / "project", changes)
    return JuliaEnvironment(str(julia), str(project), origin)
