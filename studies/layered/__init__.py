"""The studies of PipeDec and SpecPipe, one tree layer per step, on the servers of their authors."""
