"""Both shipped pairs give recorded answers, the same on every processor where our own kernels run.
Only by lossless methods: relaxed ones decide by thresholds, which the last bits of vision can
cross, and torch computes those differently on another number of threads.

python -m tests.contract.test_same_answers       records what this machine answers
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import specvl_demo as sv
from specvl_demo import places
from specvl_demo.decoders import kernels
from specvl_demo.methods.base import METHODS
from specvl_demo.native import build_kernels
from specvl_demo.serving import choosing

RECORDED = Path(__file__).with_name("same_answers.json")
PICTURES = {"pocket": "scene.png", "photo": "dogs.jpg"}
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
N_TOKENS, SEED = 16, 6
AVX2 = {
    build_kernels.VARIABLE: "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
"""Our own kernels, and torch, as on a processor without AVX-512. Vision is torch's, whose last bits
differ there: photo's picture and seed are such that no choice is as near as that.
"""

Answers = dict[str, dict[str, list[int] | str]]


def answers(name: str) -> Answers:
    """Return token ids by temperature and method; "ar" where they are AR's."""
    pair, said = sv.load(name), {}
    for way, temperature in TEMPERATURES.items():
        served = choosing.supported_methods(pair._loaded.pair, temperature)
        methods = [name for name in served if METHODS[name].lossless]
        picture = places.EXAMPLES / PICTURES[name]
        race = pair.race(
            "Describe the picture.",
            [picture],
            methods=methods,
            max_new_tokens=N_TOKENS,
            temperature=temperature,
            seed=SEED,
        )
        ids = {lane.begin.lane: lane.token_ids for lane in race.lanes}
        said[way] = {
            method: "ar" if method != "ar" and ids[method] == ids["ar"] else ids[method]
            for method in methods
        }
    return said


def said(name: str, **environment: str) -> Answers:
    """Return the answers of a process with the user's own cache, where the photo pair may be."""
    inherited = {key: value for key, value in os.environ.items() if key != places.CACHE_VARIABLE}
    command = [sys.executable, "-m", __name__, name]
    env = inherited | environment
    done = subprocess.run(command, env=env, cwd=places.ROOT, capture_output=True, text=True)
    if "language model is not here" in done.stderr:
        pytest.skip("the photo pair's language model is not fetched")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not kernels.available(), reason="our own kernels do not run here")
@pytest.mark.parametrize("pair", PICTURES)
def test_both_pairs_give_the_recorded_answers(pair: str):
    assert said(pair) == json.loads(RECORDED.read_text())[pair]


@pytest.mark.slow
@pytest.mark.skipif(
    build_kernels._compiler() is None
    or "avx2" not in {level.name for level in build_kernels.cpu_levels()},
    reason="this processor has no AVX2, or there is no compiler",
)
@pytest.mark.parametrize("pair", PICTURES)
def test_a_processor_with_avx2_only_gives_the_same_answers(pair: str):
    assert said(pair, **AVX2) == json.loads(RECORDED.read_text())[pair]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(answers(sys.argv[1])) + "\n")
    else:
        RECORDED.write_text(json.dumps({name: answers(name) for name in PICTURES}) + "\n")
