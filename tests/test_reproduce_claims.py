"""Verdicts on the paper's claims, from made tables in which the claim holds, fails, or cannot be told."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pyturingvi.reproduce.claims import BORNE_OUT, NOT_BORNE_OUT, UNSHOWN, judge, median_of, medians, sensitivity

STEPS = (1e-4, 10**-3.5, 1e-3)
NOISE = (-1.0, 0.2, -0.2, 1.0)  # of four replications; median 0


def made(curves, problem="rpoisson-small", iterations=50_000, n=4, scale=0.1):
    """A table in which the medians at STEPS are as given; None is a fit that diverges."""
    rows = []
    for family, values in curves.items():
        for step, median in zip(STEPS, values, strict=True):
            for seed in range(n):
                there = median is not None
                value = median + scale * NOISE[seed] if there else np.nan
                row = {"problem": problem, "family": family, "stepsize": step, "seed": seed, "status": "completed"}
                row |= {"n_iterations": iterations, "n_updates": iterations, "elbo": value, "std_error": 0.05}
                row |= {"elbo_5000": value - 1000, "std_error_5000": 0.05}
                if not there:
                    row |= {"status": "diverged", "n_updates": 7, "elbo_5000": np.nan}
                rows.append(row)
    return pd.DataFrame(rows)


def verdicts(frame, claim):
    found = judge(frame)
    return found[found.claim == claim].verdict.tolist()


STEEP, MIDDLE, FLAT = (-100.0, -110.0, -200.0), (-100.0, -105.0, -150.0), (-120.0, -121.0, -130.0)


def test_sensitivity_is_judged_for_both_pairs_and_both_measures():
    right = made({"mean-field": FLAT, "structured": MIDDLE, "full-rank": STEEP})
    assert verdicts(right, "sensitivity") == [BORNE_OUT] * 4
    wrong = made({"mean-field": STEEP, "structured": MIDDLE, "full-rank": FLAT})
    assert verdicts(wrong, "sensitivity") == [NOT_BORNE_OUT] * 4
    same = made({"mean-field": FLAT, "structured": FLAT, "full-rank": FLAT})
    assert verdicts(same, "sensitivity") == [UNSHOWN] * 4
    assert verdicts(right[right.family == "mean-field"], "sensitivity") == []


def test_the_measures_of_sensitivity_are_what_they_say():
    curves = medians(made({"structured": (-104.0, -100.0, -107.0)}))["rpoisson-small", 50_000]
    found = sensitivity(curves["structured"])
    assert found.spread.value == pytest.approx(7.0)
    assert found.loss.value == pytest.approx(7.0)
    assert found.best == pytest.approx(10**-3.5)
    assert found.good == pytest.approx(2 / 3)  # within 5 nats: the best itself and that 4 below


def test_a_family_that_diverges_is_the_more_sensitive_one():
    frame = made({"structured": MIDDLE, "full-rank": (-100.0, -110.0, None)})
    assert verdicts(frame, "sensitivity") == [BORNE_OUT] * 2
    assert judge(frame).value.iloc[0] == np.inf
    both = made({"structured": (-100.0, -110.0, None), "full-rank": (-100.0, -110.0, None)})
    assert verdicts(both, "sensitivity") == [UNSHOWN] * 2
    assert "diverged fits on both sides" in judge(both).remark.iloc[0]


def test_a_claim_on_the_end_of_the_run_is_not_settled_before_it():
    curves = {"mean-field": FLAT, "structured": MIDDLE, "full-rank": STEEP}
    found = judge(made(curves, iterations=5_000))
    early = found[found.claim == "sensitivity"]
    assert set(early.verdict) == {UNSHOWN}
    assert early.remark.str.contains("points for the claim").all()
    assert found[found.claim == "trade-off"].verdict.tolist() == [BORNE_OUT, UNSHOWN]


def test_one_replication_shows_nothing():
    found = judge(made({"mean-field": FLAT, "structured": MIDDLE}, n=1))
    assert set(found.verdict) == {UNSHOWN}
    assert found.remark.str.contains("no second replication").all()


def test_a_short_full_rank_run_is_compared_at_its_own_iteration():
    long = made({"mean-field": FLAT, "structured": MIDDLE})
    short = made({"full-rank": STEEP}, iterations=5_000).assign(elbo=lambda f: f.elbo_5000)
    found = judge(pd.concat([long, short]))
    by_iteration = found.groupby("iteration").quantity.agg(lambda q: q.str.contains("full-rank").any())
    assert by_iteration.to_dict() == {5_000: True, 50_000: False}
    early = found[(found.iteration == 5_000) & found.quantity.str.startswith("structured - full-rank")]
    assert early.value.tolist() == [0.0]  # both best at -100 - 1000


@pytest.mark.parametrize(
    ("structured", "full_rank", "verdict"),
    [
        ((-100, -101, -105), (-101, -105, -125), BORNE_OUT),  # gaps 1 and 20
        ((-100, -101, -105), (-120, -110, -106), NOT_BORNE_OUT),  # 20 and 1
        ((-100, -101, -105), (-110, -111, -115), UNSHOWN),  # 10 and 10
        ((-100, -101, -125), (-99, -101, -105), BORNE_OUT),  # either may be ahead
    ],
)
def test_the_gap_on_rpoisson(structured, full_rank, verdict):
    curves = {"structured": structured, "full-rank": full_rank}
    assert verdicts(made(curves), "gap") == [verdict]
    assert verdicts(made(curves, "volatility-small"), "gap") == []


@pytest.mark.parametrize(
    ("problem", "structured", "expected"),
    [
        ("irt-small (simulated)", (-101, -105, -130), [BORNE_OUT, BORNE_OUT]),
        ("irt-small", (-140, -105, -130), [BORNE_OUT, NOT_BORNE_OUT]),  # falls behind further
        ("irt-small", (-90, -91, -90), [NOT_BORNE_OUT]),  # nothing to catch up
        ("irt-middle", (-95, -105, -130), [BORNE_OUT, BORNE_OUT]),
        ("irt-middle", (-101, -105, -130), [BORNE_OUT, NOT_BORNE_OUT]),  # caught up, not overtaken
        ("irt-large", (-101, -105, -130), []),  # the paper claims nothing
    ],
)
def test_structured_against_mean_field_on_irt(problem, structured, expected):
    frame = made({"mean-field": (-100, -100, -110), "structured": structured}, problem)
    assert verdicts(frame, "irt") == expected


def test_the_trade_off_compares_each_family_at_its_best():
    frame = made({"mean-field": (-120, -110, -130), "structured": (-100, -110, -150), "full-rank": (-90, -300, None)})
    found = judge(frame)
    found = found[found.claim == "trade-off"]
    assert found.value.tolist() == pytest.approx([10.0, -10.0])
    assert found.verdict.tolist() == [BORNE_OUT, NOT_BORNE_OUT]


def test_the_interval_of_two_replications_is_welchs():
    a, b = np.array([1.0, 3.0]), np.array([10.0, 10.5])
    small = np.full(2, 1e-6)
    measured = (median_of(a, small) - median_of(b, small)).interval
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert measured == pytest.approx((expected.low, expected.high))


def test_equal_replications_are_no_more_certain_than_the_monte_carlo_error():
    low, high = median_of(np.full(4, -10.0), np.full(4, 2.0)).interval
    assert high - low > 2 * 1.96 * 2.0 / np.sqrt(4)
