"""What `pyturingvi setup` and `pyturingvi doctor` do."""
