"""DL2: sizes of jobs chosen by a learned network."""
