"""The parts of `compare()`: what is measured, the recorded reference, and the report."""
