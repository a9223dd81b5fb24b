"""Execute the worked examples in place, and keep of the outputs what the site shows.

    pip install -e ".[docs,data,plot,numpyro,nuts]"
    python docs/run_notebooks.py                      # all, some minutes each
    python docs/run_notebooks.py radon exchange-rates

Pictures are small; the progress of samplers, what stands on standard error and times of execution are left out, so that
what is committed changes only where a result does.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "pages" / "examples"
LARGEST = 400_000  # bytes of a notebook with its outputs
STYLE = "figure.dpi: 72\nfigure.figsize: 6, 3.2\nsavefig.bbox: tight\n"


def execute(path: Path) -> None:
    """Run a notebook from a folder of its own, and write it back."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "matplotlibrc").write_text(STYLE)
        NotebookClient(notebook, timeout=None, resources={"metadata": {"path": folder}}).execute()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
    text = nbformat.writes(notebook)
    if len(text) > LARGEST:
        raise SystemExit(f"{path.name} has {len(text):,} bytes, and may have {LARGEST:,}: fewer or smaller pictures")
    path.write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of notebooks, without .ipynb")
    names = parser.parse_args().names or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning")
    for name in names:
        execute(FOLDER / f"{name}.ipynb")
        print(name, f"{(FOLDER / name).with_suffix('.ipynb').stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
