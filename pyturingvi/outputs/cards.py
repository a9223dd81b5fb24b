"""What a fit shows of itself: a few lines in a console, a small table with the ELBO's course in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pyturingvi.result import Fit

_WIDTH, _HEIGHT, _POINTS = 160, 32, 200  # of the line, in pixels, and the most points along it


def text_of(fit: Fit) -> str:
    """The fit in a few lines."""
    lines = [f"Fit of {fit.model.label}: {fit.family.label}, p={fit.params.size:,}, {fit.engine} engine"]
    for name, words in _facts(fit):
        lines.append({"status": words, "ELBO": f"ELBO {words}"}.get(name, f"{name}: {words}"))
    return f"<{(chr(10) + '  ').join(lines)}>"


def html_of(fit: Fit) -> str:
    """The fit as a small table."""
    rows = [
        ("model", f"{fit.model.label}, d = {fit.model.dim:,}"),
        ("family", f"{fit.family.label}, {fit.params.size:,} parameters, {fit.engine} engine"),
        *_facts(fit),
    ]
    line = sparkline(fit.elbo["elbo"].to_numpy())
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(words)}{line if name == "ELBO" else ""}</td></tr>'
        for name, words in rows
    )
    return f"<table><tbody>{cells}</tbody></table>"


def sparkline(values: np.ndarray) -> str:
    """A line (n,) as inline SVG, its lowest tenth cut off, as in the ELBO plot; empty with fewer than two points."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return ""
    values = values[np.linspace(0, len(values) - 1, min(_POINTS, len(values))).round().astype(int)]
    low, high = float(np.quantile(values, 0.1)) if len(values) > 10 else float(values.min()), float(values.max())
    shares = (np.clip(values, low, None) - low) / (high - low or 1.0)
    x = np.linspace(1, _WIDTH - 1, len(values))
    y = _HEIGHT - 1 - shares * (_HEIGHT - 2)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return (
        f'<br><svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="course of the ELBO">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.2"/></svg>'
    )


def _facts(fit: Fit) -> Iterator[tuple[str, str]]:
    """What is to be known of it, by name."""
    why = f": {fit.message}" if fit.status in ("diverged", "interrupted") else ""
    yield "status", f"{fit.status} after {fit.n_updates:,} updates in {fit.seconds:.1f} s{why}"
    trace = fit.elbo
    if len(trace):
        last = trace.iloc[-1]
        yield "ELBO", f"{last['elbo']:.6g} (standard error {last['std_error']:.2g})"
    else:
        yield "ELBO", "not estimated"
    if fit.refined is not None:
        yield "refined", fit.refined.words
    yield "verdict", fit.verdict or "none yet: fit.diagnose() gives one"
    for warning in fit.warnings:
        yield "warning", warning
    for advice in fit.advice:
        yield "advice", advice
