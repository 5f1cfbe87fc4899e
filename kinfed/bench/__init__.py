"""How fast rounds are: kinfed, a plain PyTorch loop and other simulators, in turns, on the same samples."""
