"""What every test shares."""

from __future__ import annotations

import torch

# Models here are small: a second thread costs more than it brings, and test processes run side by side.
torch.set_num_threads(1)
