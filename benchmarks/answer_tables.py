"""The table of `time_to_answer.py`: rows that replace others, and what the goals say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from answer_problems import GOALS, SPREAD
from machine import markdown, settings

PARTS = ["answer", "adam", "peers", "seeds"]
FASTER = {("rpoisson-small", "nuts"): 10.0, ("rpoisson-large", "nuts"): 20.0}  # times as fast as the peer
KEY = ["part", "problem", "engine", "method"]
SHOWN = {
    "answer": ["problem", "engine", "method", "seconds", "adam_ms", "in_adam_updates", "in_adam_updates_cpu",
               "allowed_updates", "elbo", "std_error",
               "least_elbo", "status", "in_time", "high_enough"],
    "adam": ["problem", "engine", "family", "method", "seconds", "elbo", "std_error"],
    "peers": ["problem", "method", "setting", "seconds", "without_compile", "elbo", "engine", "ours_s", "ours_elbo",
              "over_ours", "over_ours_without_compile", "least_over_ours", "fast_enough"],
    "seeds": ["problem", "engine", "fits", "range", "allowed_range", "narrow_enough", "lowest", "highest", "slowest"],
}  # fmt: skip


def read(path: Path) -> pd.DataFrame:
    """The table as it stands; an empty one where there is none."""
    return pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=KEY)


def write(frame: pd.DataFrame, path: Path) -> None:
    """All rows, with the verdicts of those that have some."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [rows for part, rows in judged(frame).items() if part != "seeds"]
    whole = pd.concat([*parts, frame[frame["part"] == "seeds"]], ignore_index=True)
    whole.to_csv(path, index=False, float_format="%.8g")


def merged(old: pd.DataFrame, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The old table with new rows in place of those of the same case; all seeds of a problem are one case."""
    new = pd.DataFrame(rows).assign(**settings())
    if old.empty:
        return new
    return pd.concat([old[~cases(old).isin(cases(new))], new], ignore_index=True)


def cases(frame: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(frame[KEY].assign(method=frame["method"].where(frame["part"] != "seeds", "")))


def judged(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The table of each part that has rows, with what the issue's goals say of it."""
    parts = {part: rows.copy() for part, rows in frame.groupby("part")}
    reached = {}
    if "adam" in parts:
        reached = {key: rows["elbo"].max() for key, rows in parts["adam"].groupby(["problem", "family"])}
    if "answer" in parts:
        t = parts["answer"]
        goals = [GOALS[problem] for problem in t["problem"]]
        measured = [{f: e for (p, f), e in reached.items() if p == problem} for problem in t["problem"]]
        t["in_adam_updates"] = 1e3 * t["seconds"] / t["adam_ms"]
        t["in_adam_updates_cpu"] = 1e3 * t["cpu_s"] / t["adam_cpu_ms"]
        t["allowed_updates"] = [goal.updates or np.nan for goal in goals]
        t["limit_s"] = [goal.limit(ms) for goal, ms in zip(goals, t["adam_ms"], strict=True)]
        t["least_elbo"] = [goal.least(best) for goal, best in zip(goals, measured, strict=True)]
        t["in_time"] = verdicts(t["seconds"] <= t["limit_s"], t["limit_s"])
        t["high_enough"] = verdicts(t["elbo"] >= t["least_elbo"], t["least_elbo"])
    if "peers" in parts:
        t = parts["peers"]
        t["over_ours"], t["over_ours_without_compile"] = t["seconds"] / t["ours_s"], t["without_compile"] / t["ours_s"]
        t["least_over_ours"] = [FASTER.get(key, np.nan) for key in zip(t["problem"], t["method"], strict=True)]
        t["fast_enough"] = verdicts(t["over_ours"] >= t["least_over_ours"], t["least_over_ours"], "")
    if "seeds" in parts:
        found = parts["seeds"].groupby(["problem", "engine"])
        t = found["elbo"].agg(fits="size", lowest="min", highest="max").join(found["seconds"].max().rename("slowest"))
        t = t.reset_index().assign(range=t["highest"].to_numpy() - t["lowest"].to_numpy())
        t["allowed_range"] = t["problem"].map(SPREAD)
        t["narrow_enough"] = verdicts(t["range"] <= t["allowed_range"], t["allowed_range"])
        parts["seeds"] = t
    return {part: parts[part] for part in PARTS if part in parts}


def verdicts(held: pd.Series, limit: pd.Series, unknown: str = "?") -> list[str]:
    """Yes or no, and `unknown` where there is no limit, or none has been measured yet."""
    return [unknown if pd.isna(least) else "yes" if yes else "no" for yes, least in zip(held, limit, strict=True)]


def not_met(tables: dict[str, pd.DataFrame]) -> list[str]:
    """One line for each goal that is missed, or open for want of what it is held against."""
    lines = []
    for part, table in tables.items():
        for verdict in ("in_time", "high_enough", "fast_enough", "narrow_enough"):
            for _, row in table.iterrows():
                if row.get(verdict) in ("no", "?"):
                    name = " ".join([part, row["problem"], *([row["method"]] if part in ("answer", "peers") else [])])
                    lines.append(f"{name}, {row['engine']} engine: {verdict}: {row[verdict]}")
    return lines


def shown(part: str, table: pd.DataFrame) -> str:
    """The table for the README: ELBOs to a hundredth of a nat, which three digits would hide."""
    elbos = [c for c in ("elbo", "least_elbo", "ours_elbo", "lowest", "highest") if c in table]
    texts = {c: ["" if pd.isna(value) else f"{value:.2f}" for value in table[c]] for c in elbos}
    return markdown(table.assign(**texts), SHOWN[part])
