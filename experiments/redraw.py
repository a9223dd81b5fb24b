"""Remake every picture in `results/` from the CSV files beside it, computing nothing.

Runs each script here that can draw from its committed files (`--from-csv` or `--redraw`). Exit code 1 if one fails.

    python experiments/redraw.py
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from reproduced import errors_in_one_line

HERE = Path(__file__).parent


def redrawing_commands() -> list[list[str]]:
    """The scripts with such an option, each with the option."""
    found = []
    for script in sorted(HERE.glob("*.py")):
        text = script.read_text()
        option = re.search(r"--(?:from-csv|redraw)\b", text)
        if option and '__name__ == "__main__"' in text and script.name != Path(__file__).name:
            found.append([str(script), option.group()])
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    failed = []
    for script, option in redrawing_commands():
        print(f"== {Path(script).name} {option}", flush=True)
        done = subprocess.run([sys.executable, script, option], env={**os.environ, "MPLBACKEND": "Agg"}, check=False)
        if done.returncode:
            failed.append(Path(script).name)
    if failed:
        sys.exit(f"Not redrawn: {', '.join(failed)}")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
