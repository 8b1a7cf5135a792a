"""Settings shared by all tests."""

import torch

# Small tensors gain nothing from a second thread, and lose much on a busy machine.
torch.set_num_threads(1)
