"""Beyond the paper: its protocol at the best of its stepsizes, beside the default fit, which has no stepsize."""

from pyturingvi.reproduce.beyond.fits import PRESETS, compute
from pyturingvi.reproduce.beyond.page import report
from pyturingvi.reproduce.figure import Figure

FIGURE = Figure(
    source="Beyond the paper: Adam at its best stepsize, T = 50,000, beside natural gradients that end by themselves",
    presets={name: preset.words for name, preset in PRESETS.items()},
    compute=compute,
    report=report,
    computed=["fits.csv"],
    reported=["claims.csv", "elbo.png"],
)
