"""What knows nothing of inference: files, archives, checks of arguments, arrays, interrupts, threads."""
