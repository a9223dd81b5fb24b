"""What the theory's CSV files say about each claim of section 3, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pyturingvi.reproduce.figure import Job
from pyturingvi.reproduce.theory_pictures import draw_complexity, draw_counterexample, draw_variance

if TYPE_CHECKING:
    import pandas as pd

# the columns of each part that are drawn and told: words, and numbers
COLUMNS = {
    "variance": (
        "target point family base holds",
        "n n_samples bound exact measured measured_se standard_errors_off loose_by",
    ),
    "complexity": (
        "family holds",
        "n n_samples epsilon d_star sigma2 expected_smoothness c_var c_bias stepsize promised_updates best_updates "
        "updates_at_stepsize loose_by distance_after_promised distance_se promised_over_best published_best_updates",
    ),
    "dimension": ("problem family", "d_star paper"),
    "counterexample": (
        "",
        "x y energy_determinant determinants_apart energy_least_eigenvalue standardized_energy_least_eigenvalue "
        "negative_elbo_least_eigenvalue",
    ),
}


def read(job: Job, part: str) -> pd.DataFrame:
    """A part's table."""
    words, numbers = COLUMNS[part]
    return job.read(part, words.split(), numbers.split())


def report(job: Job) -> str:
    """Draw the pictures, and say of each claim what was found."""
    variance, complexity, dimensions, points = (read(job, part) for part in COLUMNS)
    draw_variance(variance, job.file("variance", ".png"))
    draw_complexity(complexity, job.file("complexity", ".png"))
    draw_counterexample(points, job.file("counterexample", ".png"))
    sections = [
        report_variance(variance),
        report_complexity(complexity),
        report_misprints(complexity),
        report_dimension(dimensions),
        report_counterexample(points),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections)


def report_variance(frame: pd.DataFrame) -> list[str]:
    """Where the bound holds, and by what factor it is loose."""
    off, loose = frame.standard_errors_off, frame.loose_by
    least, most = frame.n.min(), frame.n.max()
    ends = frame[(frame.base == "gaussian") & frame.n.isin((least, most))]
    table = ends.pivot_table(index=["target", "point", "family"], columns="n", values="loose_by")
    table["power of n"] = np.log(table[most] / table[least]) / math.log(most / least)
    return [
        f"Gradient variance (section 3.2): the bound holds in {int(frame.holds.sum())} of {len(frame)} cases, "
        f"and is {loose.min():.0f} to {loose.max():,.0f} times the exact variance.",
        "  The exact variance against a measured one: "
        f"rms {np.sqrt((off**2).mean()):.2f}, largest {off.abs().max():.2f} standard errors apart.",
        "  Bound over exact variance (Gaussian base), and the power of n with which that grows:",
        _indented(table.round(2).to_string()),
    ]


def report_complexity(frame: pd.DataFrame) -> list[str]:
    """What is promised, what was needed."""
    is_published = frame.published_best_updates.notna()
    ran, paper = frame[~is_published], frame[is_published]
    kept, loose, best, far = ran.holds.astype(bool), ran.loose_by, ran.promised_over_best, paper.promised_over_best
    names = {"d_star": "d*", "promised_updates": "promised T", "updates_at_stepsize": "observed T", "loose_by": "ratio"}
    names |= {"distance_after_promised": "distance after T", "best_updates": "best T"}
    names |= {"promised_over_best": "promised/best"}
    shown = ran[["family", "n", "stepsize", *names]].rename(columns=names)
    lines = [
        f"Complexity (section 3.2): the promise is kept in {int(kept.sum())} of {len(ran)} cases (mean squared "
        f"distance after the promised T, plus two standard errors, at most {frame.epsilon[0]:g}).",
        f"  At the theorem's stepsize the promised T is {loose.min():.2f} to {loose.max():.2f} times the observed T.",
        f"  At the best stepsize it is {best.min():.0f} to {best.max():,.0f} times the observed T here, and "
        f"{far.min():,.0f} to {far.max():,.0f} times that of figure 2.",
        _indented(shown.to_string(index=False, float_format=lambda value: f"{value:.4g}")),
        "  Figure 2's best T beside the promise, from its first to its last n, and the power of n fitted to each:",
    ]
    for family, here in paper.groupby("family"):
        words = []
        for word, column in (("promised", "promised_updates"), ("published", "published_best_updates")):
            power = np.polyfit(np.log(here.n), np.log(here[column]), 1)[0]
            words.append(f"{word} {here[column].iloc[0]:,.0f} to {here[column].iloc[-1]:,.0f} (power {power:.2f})")
        lines.append(f"    {family}, n = {here.n.iloc[0]} to {here.n.iloc[-1]}: {', '.join(words)}")
    return lines


def report_misprints(frame: pd.DataFrame) -> list[str]:
    """The two misprints of the complexity corollary, and what they change on the synthetic problem."""
    smooth, eps = frame.expected_smoothness, frame.epsilon
    mu = np.sqrt(4 * frame.sigma2 / frame.c_var)
    by_accuracy, right = eps * mu / (4 * frame.sigma2), np.minimum(1 / (2 * smooth), 1 / mu)
    printed = np.minimum(2 * smooth / mu, mu)
    same = np.isclose(np.minimum(by_accuracy, right), np.minimum(by_accuracy, printed), rtol=1e-6)
    over, follows = printed / right, frame.c_var / eps > frame.c_bias
    return [
        "Two misprints in the corollary on complexity, by its own lemma (stepsize at most min{1/(2 calL), 1/mu}):",
        "  1. The stepsize is min{eps mu/(4 sigma^2), 1/(2 calL), 1/mu}, printed with 2 calL/mu and mu as the last.",
        f"     On the synthetic problem those are {np.min(over):,.0f} to {np.max(over):.1e} times too large; at "
        f"eps = {eps[0]:g} the first term decides,",
        f"     so that the stepsize differs in {int((~same).sum())} of {len(frame)} cases.",
        "  2. C_bias = 2 calL/mu ends in + 2 kappa, printed + kappa. On the synthetic problem kappa = 1: C_bias, "
        f"{frame.c_bias.min():,.0f} to {frame.c_bias.max():,.0f},",
        f"     is printed one less. T follows C_var/eps, the larger one in {int(follows.sum())} of {len(frame)} cases.",
    ]


def report_dimension(frame: pd.DataFrame) -> list[str]:
    """The effective dimension of every problem and family, and where the paper's lemma says something else."""
    columns = ["full-rank", "structured", "mean-field"]
    table = frame.pivot(index="problem", columns="family", values="d_star").loc[frame.problem.unique(), columns]
    compared = frame.dropna(subset=["paper"])
    different = compared[compared.d_star != compared.paper]
    return [
        "Effective dimension d* (sections 3.2 and 3.3):",
        _indented(table.to_string()),
        "  The paper's d (full-rank) and d_z + d_y (structured) are "
        f"met in {len(compared) - len(different)} of {len(compared)} cases; not in:",
        *(
            f"    {row['problem']} {row['family']}: {row['d_star']}, not {int(row['paper'])}: l_t also uses y_(t-1), "
            "hence d_z + 2 d_y"
            for row in different.to_dict("records")
        ),
    ]


def report_counterexample(frame: pd.DataFrame) -> list[str]:
    """Whether the sign of the determinant is what the formula says, and where the paper says it is negative."""
    border = 1 / math.sqrt(3)
    negative, bent = frame.energy_determinant < 0, frame.negative_elbo_least_eigenvalue < 0
    beyond, interval = frame.y.abs() > border, (frame.y > 0) & (frame.y < border)
    definite = frame.energy_least_eigenvalue[interval] > 0
    return [
        "Counterexample (section 3.3): x^2 + z^2 + x^2 y^2 has a Hessian of determinant 8 x^2 (1 - 3 y^2).",
        f"  The determinant of the package's non-standardized energy, at {len(frame)} points, is at most "
        f"{frame.determinants_apart.max():.1e} from the formula.",
        f"  It is negative at {int(negative[beyond].sum())} of {int(beyond.sum())} points with |y| > 1/sqrt(3), and at "
        f"{int(negative[interval].sum())} of {int(interval.sum())} with 0 < y < 1/sqrt(3), where the paper says so:",
        f"  there the Hessian is positive definite (at {int(definite.sum())}). The paper's conclusion, that the energy "
        "is not convex, stands.",
        f"  The negative ELBO is not convex at {int(bent.sum())} points; the least eigenvalue of the standardized "
        f"energy is {frame.standardized_energy_least_eigenvalue.min():.6f}.",
    ]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
