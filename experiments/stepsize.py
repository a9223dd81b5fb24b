"""Figure 4: ELBO after T updates against the stepsize, on the problems and at the sizes of the preset `laptop`.

rpoisson and volatility, small and middle, mean-field and structured at T = 50,000; irt-small on simulated data;
full-rank on the two smallest, at 5,000 updates beside the others. Writes `results/stepsize_laptop_elbo.csv` (one row
a fit), `results/stepsize_laptop_claims.csv` (each claim of the paper with a verdict) and
`results/stepsize_laptop_elbo.png`.

    python experiments/stepsize.py                    # fit into experiments/cells, then draw (hours on two cores)
    python experiments/stepsize.py --from-cells DIR   # take what the sweep in DIR has by now, and fit nothing
    python experiments/stepsize.py --from-csv         # draw and judge again from the committed CSV
    python experiments/stepsize.py --variant released # the small problems as the paper's released code has them
"""

from __future__ import annotations

from reproduced import errors_in_one_line, run_figure

if __name__ == "__main__":
    with errors_in_one_line():
        run_figure("stepsize", __doc__)
