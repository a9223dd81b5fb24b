"""Optimization: objectives, update rules, schedules, averaging and the loop."""
