"""One thread: on a small machine two of them cost more than they bring for tensors of this size."""

import torch

torch.set_num_threads(1)
