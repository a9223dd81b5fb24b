"""Table 1 (appendix): the nine problems' sizes and parameter counts, beside the printed ones."""

from __future__ import annotations

from pyturingvi.reproduce.figure import Figure, Job
from pyturingvi.reproduce.tables import published
from pyturingvi.support.files import write_table

COLUMNS = ("N", "d_y", "d_z", "d", "mean_field_p", "structured_p", "full_rank_p")
# p of mean-field is 2d and of full-rank d + d(d+1)/2, so each printed count tells the d that it belongs to
MISPRINTS = {
    ("rpoisson-large", "mean_field_p"): "2d with d = 19641, 16 (= d_z) too many; its own column d prints 19625",
    ("volatility-middle", "mean_field_p"): "2d with d = 3105, which is N = 512; its own column d prints 3165",
    ("volatility-middle", "full_rank_p"): "d + d(d+1)/2 with d = 3105 as well",
}


def compute(job: Job) -> None:
    """Write one row a problem and quantity: ours, printed, difference, and the explanation of a misprint."""
    import pandas as pd

    from pyturingvi.problems import list_problems

    ours, printed = list_problems().set_index("problem"), published("table1.csv").set_index("problem")
    rows = []
    for problem in printed.index:
        for column in COLUMNS:
            value, print_ = int(ours.loc[problem, column]), printed.loc[problem, column]
            left_out = bool(pd.isna(print_))
            shown = (pd.NA, pd.NA) if left_out else (int(print_), value - int(print_))
            why = "left out by the paper" if left_out else MISPRINTS.get((problem, column), "")
            rows.append([problem, column, value, *shown, why])
    columns = ["problem", "quantity", "ours", "printed", "difference", "explanation"]
    write_table(job.file("counts"), pd.DataFrame(rows, columns=columns))


def report(job: Job) -> str:
    """The table with ours and printed side by side where they differ."""
    counts = job.read("counts", ["problem", "quantity", "explanation"], ["ours", "printed", "difference"])
    wide = counts.pivot(index="problem", columns="quantity", values="ours").loc[counts.problem.unique(), list(COLUMNS)]
    compared = counts.dropna(subset=["printed"])
    different = compared[compared.difference != 0].fillna({"explanation": "unexplained"})
    lines = [
        wide.to_string(),
        "",
        f"{len(compared) - len(different)} of {len(compared)} printed values are the same; those that are not:",
    ]
    for row in different.to_dict("records"):
        words = f"{row['ours']}, printed {int(row['printed'])}, {row['explanation']}"
        lines.append(f"  {row['problem']} {row['quantity']}: {words}")
    lines.append("Left out by the paper, full-rank being too large for its memory:")
    for row in counts[counts.printed.isna()].to_dict("records"):
        lines.append(
            f"  {row['problem']} {row['quantity']}: {row['ours']} ({row['ours'] * 8 / 2**30:.1f} GiB in float64)"
        )
    return "\n".join(lines)


FIGURE = Figure(
    source="Table 1 (appendix): sizes and numbers of parameters of the nine problems",
    presets={"quick": "everything, at once", "paper": "the same"},
    compute=compute,
    report=report,
    computed=["counts.csv"],
    reported=[],
)
