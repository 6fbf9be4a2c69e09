"""Lets threads that wait for work sleep soon, in every process of ours.

The threads of torch and of our kernels are one pool, GCC's OpenMP. Where one waits for the others,
it spins for several milliseconds before it sleeps, on a core that another program could have used,
often the one that it waits for. The pool reads the environment when torch is loaded.
"""

import os

SPINS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
N_SPINS = "30000"
"""About 1.5 ms: longer than what lies between two steps of a small model, so that the
next one finds its threads awake.
"""

if POLICY not in os.environ:
    os.environ.setdefault(SPINS, N_SPINS)
