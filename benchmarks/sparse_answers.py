"""Item response with few answers: a list of answers beside the table of all cells, and reading a long table.

    python benchmarks/sparse_answers.py                # some five minutes
    python benchmarks/sparse_answers.py --rows 0       # gradients alone

Both forms hold the same answers; that they give the same numbers is checked before they are timed. They take turns, on
one core, and the fastest call counts: `table_over_list` is the ratio of the two, for gradients of M = 8 points and for
log density and gradient together. The share of answers at which it falls to 1, in any of them, is where the model
changes from one to the other. Before that, `--rows` answers are read by `ItemResponse.from_long`, and the peak told.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HELP = argparse.RawDescriptionHelpFormatter
# students, items, answers
CASES = [(20_000, 2_000, 120_000), *((3_348, 95, int(3_348 * 95 * share)) for share in (0.05, 0.1, 0.2, 0.3, 0.5, 0.9))]
SHOWN = [
    "students", "items", "answers", "share", "dtype", "list_ms", "table_ms", "table_over_list",
    "list_both_ms", "table_both_ms", "table_over_list_both", "difference",
]  # fmt: skip


def codes_of(n_students: int, n_items: int, n_answers: int) -> Any:
    """A table of 1, 0 and -1 (missing) with so many answers at random places, and one at least of each."""
    import numpy as np

    rng = np.random.default_rng(0)
    codes = np.full((n_students, n_items), -1, dtype=np.int8)
    codes[np.arange(n_students), np.arange(n_students) % n_items] = 0
    codes[np.arange(n_items) % n_students, np.arange(n_items)] = 0
    free = np.flatnonzero(codes.ravel() < 0)
    codes.ravel()[rng.choice(free, max(0, n_answers - int((codes == 0).sum())), replace=False)] = 0
    codes[(codes == 0) & (rng.random(codes.shape) < 0.6)] = 1
    return codes


def fastest(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Milliseconds of the fastest call of each; they take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], 1e3 * (time.perf_counter() - start))
    return best


def compare(shape: tuple[int, int, int], dtype: str, rounds: int) -> dict[str, Any]:
    """One row: both forms on the same answers."""
    import numpy as np

    import pyturingvi as tv
    from pyturingvi.models.irt_answers import Answers
    from pyturingvi.models.irt_sparse import SparseTable
    from pyturingvi.models.irt_tables import DenseTable

    codes = codes_of(*shape)
    models = []
    for table in (SparseTable(Answers.of_codes(codes)), DenseTable(codes)):
        model = tv.models.ItemResponse([[1, 0], [0, 1]])
        model._set_up(table)
        models.append(model)
    points = (0.5 * np.random.default_rng(1).standard_normal((8, models[0].dim))).astype(dtype)
    (value, slope), (expected, expected_slope) = (m.log_density_and_gradient(points) for m in models)
    difference = max(
        float(np.abs(value / expected - 1).max()), float(np.abs(slope - expected_slope).max() / np.abs(slope).max())
    )
    if difference > (1e-12 if dtype == "float64" else 1e-5):
        raise SystemExit(f"{shape}, {dtype}: the two forms differ by {difference:.1e}.")
    out = np.empty_like(points)
    gradient = fastest([lambda m=m: m._gradient(points, out) for m in models], rounds)
    both = fastest([lambda m=m: m.log_density_and_gradient(points) for m in models], rounds)
    n_answers = int((codes >= 0).sum())
    row: dict[str, Any] = {"students": shape[0], "items": shape[1], "answers": n_answers}
    row |= {"share": n_answers / codes.size, "dtype": dtype}
    for word, (listed, whole) in (("", gradient), ("_both", both)):
        row |= {f"list{word}_ms": listed, f"table{word}_ms": whole, f"table_over_list{word}": whole / listed}
    return {**row, "difference": difference}


def read_long(n: int) -> str:
    """Seconds and MB that reading n answers of 500,000 students to 5,000 items takes."""
    import numpy as np
    import pandas as pd
    from machine import Peak

    import pyturingvi as tv

    rng = np.random.default_rng(2)
    pairs = np.unique(rng.integers(0, 500_000 * 5_000, n))
    rng.shuffle(pairs)
    frame = pd.DataFrame({"who": pairs // 5_000, "what": pairs % 5_000, "right": rng.integers(0, 2, len(pairs))})
    del pairs
    peak, start = Peak(), time.perf_counter()
    model = tv.models.ItemResponse.from_long(frame, student="who", item="what", response="right")
    seconds = time.perf_counter() - start
    table = frame.memory_usage(index=False).sum() / 2**20
    return (
        f"from_long: {model.n_answers:,} answers in {seconds:.1f} s; the process held {peak.whole():.0f} MiB at its "
        f"peak, {table:.0f} MiB of them the table that it read."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HELP)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the long table; 0 for none")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sparse_answers.csv")
    a = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # before NumPy counts the cores
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import pandas as pd
    from machine import markdown, settings

    if a.rows:  # first: what the tables leave behind would count as free
        print(read_long(a.rows), flush=True)
    rows = []
    for shape in CASES:
        for dtype in ("float64", "float32"):
            rounds = max(3, a.rounds // 5) if shape[0] * shape[1] > 10_000_000 else a.rounds
            rows.append(compare(shape, dtype, rounds))
            print(markdown(pd.DataFrame(rows[-1:]), SHOWN).splitlines()[-1], flush=True)
    frame = pd.DataFrame(rows).assign(cores=1, **settings())
    a.out.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(a.out, index=False, float_format="%.6g")
    print(markdown(frame, SHOWN))


if __name__ == "__main__":
    main()
