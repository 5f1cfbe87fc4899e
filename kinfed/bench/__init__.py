"""How fast rounds go: kinfed, a plain PyTorch loop and other simulators, in turns, on the same rows."""
