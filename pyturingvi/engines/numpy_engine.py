"""The embedded engine: NumPy on the CPU, the same code through CuPy on a GPU."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from pyturingvi.array_namespace import namespace_for
from pyturingvi.engines.base import SUPPORTS, Engine, FitSpec, Outcome
from pyturingvi.models.base import Model
from pyturingvi.monitor import RunMonitor
from pyturingvi.optimize.averaging import PolynomialAveraging
from pyturingvi.optimize.loop import Observer, run_loop
from pyturingvi.optimize.noise import GivenNoise, NoiseStream
from pyturingvi.optimize.objective import Objective
from pyturingvi.parallel import Workers, available_cores


class NumpyEngine(Engine):
    """Runs every model that gives a gradient in Python, on device "cpu" or "cuda"."""

    name: ClassVar[str] = "numpy"
    supports: ClassVar[frozenset[str]] = SUPPORTS["numpy"]

    def __init__(self, n_threads: int | None = None) -> None:
        self.n_threads = n_threads

    def run(
        self,
        model: Model,
        spec: FitSpec,
        initial: np.ndarray,
        noise: np.ndarray | None,
        monitor: RunMonitor,
        observer: Observer | None = None,
    ) -> Outcome:
        xp = namespace_for(spec.device)
        dtype = np.dtype(spec.dtype)
        rule = spec.rule
        averaging = PolynomialAveraging(spec.averaging["eta"]) if spec.averaging else None
        bound = spec.family_object.bind(model.layout, dtype, xp)
        # the products are too small for BLAS threads, which would wait for each other beside ours
        with threadpool_limits(1, user_api="blas"), Workers(self.n_threads or available_cores()) as workers:
            objective = Objective(model, bound, spec.n_samples, rule.energy_only, workers)
            stream = (
                GivenNoise(noise, dtype, xp)
                if noise is not None
                else NoiseStream(
                    bound.base, spec.seed, spec.n_samples, model.dim, spec.n_iterations, dtype, xp, workers
                )
            )
            return run_loop(objective, rule.start(bound, workers), stream, spec, initial, monitor, averaging, observer)
