"""Random settings of sampling for the property that no draft changes an answer."""

import random

from specvl_demo.options import Sampling

FURTHER = {
    "top_k": lambda rng: rng.choice((1, 4, 30)),
    "min_p": lambda rng: rng.choice((0.02, 0.3)),
    "top_p": lambda rng: rng.choice((0.95, 0.6)),
    "repetition_penalty": lambda rng: rng.choice((0.7, 1.1, 1.8)),
    "presence_penalty": lambda rng: rng.uniform(-2, 2),
    "frequency_penalty": lambda rng: rng.uniform(-1, 2),
    "logit_bias": lambda rng: {
        rng.randrange(12): rng.choice((-100.0, -1.5, 2.0)) for _ in range(3)
    },
    "min_new_tokens": lambda rng: rng.randint(1, 20),
    "ignore_eos": lambda rng: True,
    # Of `tiny.spell`: within a token, at its end, across two and three of them.
    "stop": lambda rng: tuple(rng.choices(("1", "7 ", "3 1", " 4 ", "1 5 1"), k=rng.randint(1, 2))),
    "logprobs": lambda rng: rng.choice((1, 5, 20)),
}


def drawn_sampling(rng: random.Random, temperature: float, share: float) -> Sampling:
    """Return settings at this temperature, each of the others set with this probability."""
    names = [name for name in FURTHER if rng.random() < share]
    values = {name: FURTHER[name](rng) for name in names}
    return Sampling(temperature, seed=rng.randrange(1000), **values)
