"""The executable specification: the paper's algorithms in float64 on plain lists, written to be read next to the paper.

`philox` is the randomness, `distributions` the processed distribution, the acceptance test and the residual, `stopping` where an
accepted run ends, `algorithms` Algorithms 1 and 2 as the paper states them, `verification` and `schedules` the same steps for
every verification mode and schedule that the decoder has.  `ordered` is Algorithm 3 with its serial reference, and
`ordered_schedules` the schedules of models that decode in any order; their names are imported from there.  No torch, no numpy,
no attention to speed: the fast versions are tested against this package.
"""

from __future__ import annotations

from packed_ss.reference.algorithms import packed, packed_sampling
from packed_ss.reference.distributions import accepts, argmax, categorical, log_probabilities, log_residual, process
from packed_ss.reference.philox import ACCEPT, DRAFT, TARGET, Randomness, gumbel, philox4x32, uniform, word_to_uniform
from packed_ss.reference.schedules import autoregressive, branched, linear, quadratic
from packed_ss.reference.stopping import Generation, Stops
from packed_ss.reference.verification import Coupled, Greedy, Rejection, make_rule

__all__ = [
    "ACCEPT",
    "DRAFT",
    "TARGET",
    "Coupled",
    "Generation",
    "Greedy",
    "Randomness",
    "Rejection",
    "Stops",
    "accepts",
    "argmax",
    "autoregressive",
    "branched",
    "categorical",
    "gumbel",
    "linear",
    "log_probabilities",
    "log_residual",
    "make_rule",
    "packed",
    "packed_sampling",
    "philox4x32",
    "process",
    "quadratic",
    "uniform",
    "word_to_uniform",
]
