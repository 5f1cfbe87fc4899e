"""One thread: tests compare numbers to the bit, and two cores run two test processes."""

import torch

torch.set_num_threads(1)
