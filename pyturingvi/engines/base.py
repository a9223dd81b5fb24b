"""What an engine is: it runs the objects that a user passed, through one `Stepper` and one loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from pyturingvi.models.base import Model
from pyturingvi.optimize.loop import StopWithin
from pyturingvi.optimize.monitor import Outcome, RunMonitor
from pyturingvi.settings import Settings


class Engine(ABC):
    """Runs the inner loop of a fit."""

    name: ClassVar[str]

    @abstractmethod
    def check_device(self, device: str) -> None:
        """Raise an InputError or EngineError unless this engine can run on `device` here and now."""

    def device_memory(self, device: str) -> int | None:
        """Free bytes on `device` if the engine has its own way to ask, else None."""
        return None

    @abstractmethod
    def run(
        self,
        model: Model,
        settings: Settings,
        initial: np.ndarray,
        noise: np.ndarray | None,
        monitor: RunMonitor,
        stop_within: StopWithin | None = None,
    ) -> Outcome:
        """Run the fit from the flat parameters `initial`, reporting to `monitor`.

        Parameters
        ----------
        settings : Settings
            The family, the rule and the averaging are run as they are.
        initial : (p,) array
        noise : (n_iterations, M, D) array or None
            Base draws in place of the generator.
        stop_within : StopWithin, optional
            Where the run ends early.
        """
