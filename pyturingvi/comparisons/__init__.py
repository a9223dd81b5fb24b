"""`tv.compare`: what is measured, the recorded reference, and the report."""
