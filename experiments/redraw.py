"""Remake every picture in `results/` from the CSV files beside it, computing nothing.

Runs each script here that can draw from its committed files (`--from-csv` or `--redraw`). Exit code 1 if one fails.

    python experiments/redraw.py
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys
import traceback
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


def runs(script: str, option: str) -> bool:
    """Run a script in this process, which has loaded the libraries already; False if it fails."""
    import matplotlib.pyplot as plt

    sys.argv = [script, option]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return not end.code
    except Exception:
        traceback.print_exc()
        return False
    finally:
        plt.close("all")
    return True


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.environ["MPLBACKEND"] = "Agg"
    failed = []
    for script, option in redrawing_commands():
        print(f"== {Path(script).name} {option}", flush=True)
        if not runs(script, option):
            failed.append(Path(script).name)
    if failed:
        sys.exit(f"Not redrawn: {', '.join(failed)}")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
