"""The one Julia of this process: which environment, how it is started and compiled, and calls across."""
