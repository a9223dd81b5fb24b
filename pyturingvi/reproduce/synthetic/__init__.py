"""Figures 1 and 2 (paper, section 4.1): updates that proximal SGD needs on an isotropic Gaussian."""

from pyturingvi.reproduce.figure import Figure
from pyturingvi.reproduce.synthetic.against_published import report
from pyturingvi.reproduce.synthetic.runs import compute

FIGURE = Figure(
    source="Figures 1 and 2: updates to accuracy over the stepsize, and their growth with n, on an isotropic Gaussian",
    presets={
        "quick": "points of up to 6,000 updates, full-rank up to n = 250; a minute with Julia, about 4 without",
        "paper": "every published point, the curves' neighbors, M = 8 beside; 40 minutes with Julia, 2.3 hours without",
        "full": "the same and all 50 stepsizes of figure 1; 3.5 hours with Julia, 12 hours without",
    },
    compute=compute,
    report=report,
    computed=["runs.csv"],
    reported=["points.csv", "scaling.csv", "exponents.csv", "curves.png", "scaling.png", "report.txt"],
)
