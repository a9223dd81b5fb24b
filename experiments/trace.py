"""The appendix's figures: ELBO against the iteration at the published stepsizes, from the fits of `stepsize.py`.

Writes `results/trace_laptop_elbo.csv` (median and 80 % band over replications) and `results/trace_laptop_elbo.png`.

    python experiments/trace.py                    # fit what stepsize.py has not, then draw
    python experiments/trace.py --from-cells DIR   # take what the sweep in DIR has by now, and fit nothing
    python experiments/trace.py --from-csv         # draw again from the committed CSV
    python experiments/trace.py --variant released # the small problems as the paper's released code has them
"""

from __future__ import annotations

from reproduced import errors_in_one_line, run_figure

if __name__ == "__main__":
    with errors_in_one_line():
        run_figure("trace", __doc__)
