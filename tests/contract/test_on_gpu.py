"""What only a GPU can show (`make test-gpu`): real graphs, kernels and draws, of tiny models."""

from types import SimpleNamespace

import pytest
import torch

from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.methods.base import choose
from specvl_demo.records import gather_lanes
from specvl_demo.serving.session import Sampling, race
from tests.contract.test_device_steps import decoders_of
from tests.cuda import with_graphs
from tests.shared import zoo
from tests.shared.tiny import ask, tiny_llava, tiny_prompt
from tests.unit.test_graphs import both_backends, decode

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", zoo.FAMILIES)
@torch.inference_mode()
def test_replays_of_every_family_say_what_a_processor_says(name: str):
    with torch.inference_mode(mode=False):
        truth = decode(HFDecoder(zoo.build(name)[0].eval()), 3)
        model = zoo.build(name)[0].eval().to(DEVICE)
    for decoder in decoders_of(model):
        torch.testing.assert_close(
            decode(with_graphs(decoder), 3), truth, atol=1e-3, rtol=1e-3, check_device=False
        )
        assert decoder.runner.refused is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_race_there_says_what_ar_says_on_a_processor(temperature: float):
    answers = []
    for place in ("cpu", DEVICE):
        models = both_backends(tiny_llava(layers=4).to(place), kinds=())["graphs"]
        request = ask(models.target, tiny_prompt(2), sampling=Sampling(temperature))
        loaded = SimpleNamespace(models=models)
        chosen = [choose(name) for name in ("ar", "chain", "tree", "tabed", "sage", "ngram")]
        answers += [lane.token_ids for lane in gather_lanes(race(loaded, request, chosen))]
    assert answers == [answers[0]] * len(answers)
