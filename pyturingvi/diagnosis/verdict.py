"""From figures to plain words: what they say of a fit, and how much of it to believe."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyturingvi.diagnosis.check import LARGE_MOVE, LARGE_RATIO
from pyturingvi.diagnosis.findings import Findings
from pyturingvi.diagnosis.moves import CORRECTED_DRAWS, SLOPE
from pyturingvi.diagnosis.trend import LEAST_GAIN
from pyturingvi.diagnosis.weights import LARGEST_K, ImportanceWeights

DISTRUST, MORE = "The fit converged, but do not trust it.", "fit.diagnose() says more."  # about what tv.fit warns of
GOOD, CARE, BAD = "good", "usable with care", "do not trust"
LEVELS = (GOOD, CARE, BAD)

SMALL_MOVE = 0.3  # of a mean, in the fit's standard deviations
SMALL_RATIO = 1.5  # between standard deviations
TAIL_RATIO, TAIL_K = 1.3, 0.5  # between standard deviations, where the weights have no variance: the least of it
LARGE_GAIN = 5.0  # nats in a third of a run
EQUAL_ELBOS, LESSER_MODE = 2.0, 10.0  # nats between modes as good, beside six errors; and that may still matter
TOO_NOISY = 20.0  # nats: an ELBO that is known no better tells no mode from another
EVEN = 0.9  # of the draws, as effective sample size: weights so much alike have no tail that could count
LARGE_SPREAD = 1.5  # nats between the log weights of draws: more than that, and the density has another shape


def judge(found: Findings) -> tuple[str, list[str]]:
    """The verdict, and a sentence for each thing that led to it, the gravest first."""
    of_the_globals = list(_of_the_globals(found))
    corrected = found.globals is not None and found.globals.by == CORRECTED_DRAWS
    if not (corrected and any(level for level, _ in of_the_globals)):  # draws that are right have told it better
        of_the_globals += _of_the_check(found)
    marks = [*_of_the_run(found), *of_the_globals, *_of_restarts(found)]
    if found.starts is not None:
        marks.append((int(found.starts.disagree), found.starts.words))
    marks += [(1, advice) for advice in found.advice]
    if found.warned and not any(level == LEVELS.index(BAD) for level, _ in marks):
        marks += [(2, f"tv.fit found, by other draws: {words}") for words in found.warned]
    marks.sort(key=lambda mark: -mark[0])
    if not marks[0][0] and not found.restarts and found.starts is None:
        marks.append((0, "Draws of one fit cannot show another mode: diagnose(seeds=[1, 2, 3]) fits from other seeds."))
    return LEVELS[marks[0][0]], [sentence for _, sentence in marks]


def _of_the_run(found: Findings) -> Iterator[tuple[int, str]]:
    if found.status == "diverged":
        yield 2, f"The fit diverged: {found.message}"
    elif found.status == "interrupted":
        yield 1, f"The fit was interrupted: {found.message}."
    if not np.isfinite(found.elbo):
        yield 2, "The log density is not finite at some draws of the fit, so that it has no ELBO."
    elif found.spread > 10 * found.dim:
        yield (
            2,
            (
                f"log p - log q differs by {found.spread:.3g} nats from draw to draw: the fit is far from the density, "
                "or has exploded."
            ),
        )
    if found.status == "converged":
        ended = "The globals were" if found.refined else "The optimizer ended by itself"
        yield 0, f"{ended} {found.message}."
        return
    if found.cut_short:  # its rate falls and rises, and so does the ELBO
        rising = found.gain is not None and found.gain[0] > max(LARGE_GAIN, 3 * found.gain[1])
        remedy = "" if found.astray else " Go on with init=fit."  # else the message has one of its own
        yield 2 if found.capped or rising else 1, f"The fit had not converged: {found.message}.{remedy}"
        return
    if found.status == "diverged" or not np.isfinite(found.elbo):  # what its trace says is of no use
        return
    if found.gain is None:
        if found.status == "completed":
            yield 0, "The ELBO trace is too short to tell whether there is more to gain."
        return
    rise, error = found.gain
    if rise > LEAST_GAIN and rise > 3 * error:
        yield (
            (2 if rise > LARGE_GAIN else 1),
            (
                f"The ELBO was still rising when the run ended, by {rise:.1f} nats (standard error {error:.1f}) in a "
                "third of its updates. Go on with init=fit."
            ),
        )
    else:
        yield 0, "The ELBO was no longer rising."


def _of_the_check(found: Findings) -> Iterator[tuple[int, str]]:
    """Draws of a fit that is too narrow say little of the tails that it leaves out; slopes along lines do."""
    check = found.check
    if check is not None and check.told:
        remedy = "fit.refine() integrates the locals out and corrects them" if found.refinable else ""
        alone = f" {remedy or 'tv.sample_nuts is the reference'}." if found.moves is None else ""
        out = ", with the locals integrated out," if found.has_locals else ""
        yield 2 if check.grave else 1, f"By the slopes{out} {check.words}.{alone}"
    if found.forgetful:
        yield (
            2,
            "The family takes the locals as independent, and the model says that they are a chain: take tv.Markov().",
        )


def _of_the_globals(found: Findings) -> Iterator[tuple[int, str]]:
    for words in found.far_out:
        yield 1, words
    joint, moves, globals_, check = found.joint, found.moves, found.globals, found.check
    if moves is None or globals_ is None:
        always = f"the weights of {found.dim:,} variables at once are always bad"
        reference = f"{'fit.refine() can' if found.refinable else 'tv.sample_nuts is the reference'}."
        if joint.spread < 0.5 or (joint.reliable and joint.spread <= LARGE_SPREAD):
            yield 0, f"The fit's draws are nearly those of the density itself ({_k_hat(joint)})."
        elif check is not None and check.told:
            pass  # it says more
        elif check is None or not found.has_locals:
            why = "the locals of this model can be integrated out neither one by one nor as a chain"
            why = why if found.has_locals else "it has no locals that could be integrated out"
            yield 1, f"Whether the globals are right cannot be told from the fit: {always}, and {why}. {reference}"
        else:
            yield (
                1,
                (
                    "By the slopes, with the locals integrated out to second order, no global seems off. Weights "
                    f"cannot prove it, since {always} and this model does not tell its log terms. {reference}"
                ),
            )
        return
    first, where = moves.first, " with the locals integrated out" if found.integrated else ""
    n = len(first.weights)
    heavy = first.k_hat > LARGEST_K and first.ess < EVEN * n
    poor = heavy or first.ess < n / 4 or first.spread > LARGE_SPREAD
    yield (
        int(poor),
        (
            f"The draws' weights{where} have {_k_hat(first)} and an effective sample size of {first.ess:,.0f} "
            f"of {n:,}{': the density has another shape than the fit' if poor else ''}."
        ),
    )
    change, shift = globals_.change, globals_.shift
    off, sure_change = globals_.sure, globals_.sure_change
    large = off.max() > LARGE_MOVE or sure_change.max() > LARGE_RATIO
    named = [k for k in np.argsort(-np.abs(shift)) if off[k] > SMALL_MOVE][:5]
    untold = check is None or not check.told
    wide = (change > TAIL_RATIO) & (first.k_hat > TAIL_K and untold)  # draws that have a tail show too little of it
    narrow = [k for k in np.argsort(-change) if sure_change[k] > SMALL_RATIO or wide[k]][:5]
    if named:
        listed = ", ".join(f"{globals_.labels[k]} by {shift[k]:+.1f}" for k in named)
        yield 2 if large else 1, f"Means would have to be moved, in the fit's standard deviations: {listed}."
    if narrow:
        listed = ", ".join(f"{globals_.labels[k]} by {globals_.ratio[k]:.1f}" for k in narrow)
        yield 2 if large else 1, f"Standard deviations would have to be multiplied: {listed}."
    if found.refinable and (poor or named or narrow):
        yield 0, "fit.refine() steps the globals on this density, and weights them."
    if globals_.by == SLOPE:
        # in many dimensions weights are bad for many small reasons; in few there is one large one
        remedy = "" if moves.rounds > 1 else "; a larger n may do"
        yield (
            2 if moves.rounds > 1 else 1,
            (
                f"No draws were found whose weights can be relied on{remedy}. The moves are those of a Gaussian laid "
                "through the log density: take them as a direction."
            ),
        )
    elif found.status == "diverged":  # weights of draws that stayed near say nothing of where the mass has gone
        return
    elif named or narrow:
        yield 0, "The corrected means and standard deviations in `.globals` rest on weights that can be relied on."
    else:
        most = f"more than {np.abs(shift).max():.2f} of its standard deviations"
        if _is_elsewhere_too(found):
            yield 0, f"Around the fit itself no global would move by {most}: its draws do not see what lies elsewhere."
        else:
            yield 0, f"No global would move by {most}."


def _k_hat(weights: ImportanceWeights) -> str:
    """The index of their tail, in words where it is no number."""
    if np.isneginf(weights.k_hat):
        return "no tail (k-hat -inf: none stands out)"
    if np.isposinf(weights.k_hat):
        return "a tail that is beyond estimate (k-hat inf)"
    return f"k-hat {weights.k_hat:.2f}"


def _is_elsewhere_too(found: Findings) -> bool:
    """Whether restarts found another place that is as good, better, or not much worse."""
    least = found.elbo - max(_equal(found), LESSER_MODE)
    return any(one.distance > LARGE_MOVE and one.elbo >= least for one in found.restarts)


def _equal(found: Findings) -> float:
    """Nats between ELBOs that do not tell which fit is right."""
    return EQUAL_ELBOS + 6 * found.elbo_error


def _of_restarts(found: Findings) -> Iterator[tuple[int, str]]:
    if not found.restarts:
        return
    n, ends = len(found.restarts), [one for one in found.restarts if np.isfinite(one.elbo)]
    equal = _equal(found)
    if len(ends) < n:
        yield 1, f"{n - len(ends)} of {n} fits from other starts diverged."
    if not ends:
        return
    best = max(ends, key=lambda one: one.elbo)
    higher = best.elbo - found.elbo
    if not higher <= equal:  # a fit without an ELBO has none as good
        yield (
            2,
            (
                f"The fit from seed {best.seed} and another start ends {higher:.1f} nats higher: take that one, "
                f"init=diagnosis.restarts[{found.restarts.index(best)}].params."
            ),
        )
    as_good = [one for one in ends if abs(one.elbo - found.elbo) <= equal]
    near = [one for one in ends if equal < found.elbo - one.elbo <= LESSER_MODE]
    apart = max(as_good, key=lambda one: one.distance, default=None)
    if apart is not None and equal > TOO_NOISY:
        yield (
            2 if apart.distance > LARGE_MOVE else 1,
            (
                f"The ELBO's Monte Carlo standard error, {found.elbo_error:.3g} nats, is too large to say which of {n} "
                "fits from other seeds and starts are as good; their means are up to "
                f"{apart.distance:.2f} standard deviations away{f' ({apart.where})' if apart.where else ''}."
            ),
        )
    elif apart is not None:
        words = f"{len(as_good)} of {n} fits from other seeds and starts end with the same ELBO, to {equal:.1f} nats,"
        words += f" and their means up to {apart.distance:.2f} standard deviations away"
        words += f" ({apart.where})" if apart.where else ""
        if apart.distance > LARGE_MOVE:
            yield 2, f"{words}: the posterior has more than one mode, or is wider than the fit says."
        else:
            yield int(apart.distance > SMALL_MOVE), f"{words}."
    if any(one.distance > LARGE_MOVE for one in near):
        yield (
            1,
            (
                f"{len(near)} of {n} fits from other starts end up to {found.elbo - min(o.elbo for o in near):.1f} "
                "nats lower elsewhere: a mode of less weight, which this fit leaves out."
            ),
        )
    lower = sum(found.elbo - one.elbo > max(equal, LESSER_MODE) for one in ends)
    if lower:
        yield 0, f"{lower} of {n} fits from other starts ended lower, where they had been caught."
