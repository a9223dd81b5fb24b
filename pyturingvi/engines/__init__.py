"""Engines: who runs the inner loop of a fit."""
