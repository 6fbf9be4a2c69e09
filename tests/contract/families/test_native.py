"""Gemma 4 with its assistant, both random models of the library's classes, from folders to a
race.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers import DynamicCache

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Verdict
from specvl_demo.methods.base import assemble, choose
from specvl_demo.methods.native import AssistantDrafter
from specvl_demo.question import Question
from specvl_demo.records import Begin, Round
from specvl_demo.serving import choosing, loader
from specvl_demo.serving.custom import custom_pair
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm import hub
from tests.conftest import ask
from tests.contract.families import zoo
from tests.heads import begun

TOKENS = 12
if not hasattr(hf, "Gemma4AssistantForCausalLM"):
    pytest.skip("this transformers has no Gemma 4 assistants", allow_module_level=True)
hub.mend_gemma4()


def assistant(target: torch.nn.Module, width: int) -> hf.Gemma4AssistantForCausalLM:
    like = target.config.text_config.to_dict()
    del like["per_layer_config"]
    own = {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "global_head_dim": 32,
    }
    layers = {"layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 2}
    text = hf.Gemma4TextConfig(**like | own | layers)
    torch.manual_seed(5)
    config = hf.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=width)
    return hf.Gemma4AssistantForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gemma4")
    model, processor = zoo.build("gemma4")
    model.save_pretrained(folder / "target")
    processor.save_pretrained(folder / "target")
    assistant(model, model.config.text_config.hidden_size).save_pretrained(folder / "drafter")
    processor.tokenizer.save_pretrained(folder / "drafter")
    return folder / "target", folder / "drafter"


@pytest.fixture(scope="module")
def loaded(folders: tuple[Path, Path]) -> Loaded:
    pair = custom_pair(*map(str, folders))
    assert list(pair.drafters) == ["assistant"] and "native" in choosing.served(pair)
    return loader.load(pair)


@pytest.mark.parametrize(
    "settings", [{}, {"policy": "best-first", "nodes": 9, "width": 3, "loops": 2}]
)
@pytest.mark.parametrize("shown", [(), (zoo.picture(0),)], ids=["text", "a picture"])
def test_it_says_what_the_target_says(
    loaded: Loaded, shown: tuple[object, ...], settings: dict[str, object]
) -> None:
    prompt = loaded.prompter.prompt(Question("what is this ?", shown))
    request = ask(loaded.models.target, prompt, max_new_tokens=TOKENS)
    shared, said = SharedPrefill(request), {}
    lanes = [
        Lane(name, assemble(choose(name, more), loaded.models), shared)
        for name, more in (("ar", {}), ("native", settings))
    ]
    for record in race(lanes):
        if isinstance(record, Round):
            said.setdefault(record.lane, []).extend(token.id for token in record.tokens)
            assert (
                record.lane == "ar" or len(record.tree.tokens) > 1 or len(said["native"]) == TOKENS
            )
        if isinstance(record, Begin):
            assert record.lossless
    assert said["native"] == said["ar"] and len(said["ar"]) == TOKENS


@torch.inference_mode()
def test_its_drafts_are_those_of_the_librarys_forward(loaded: Loaded) -> None:
    """Over keys and values that the library itself computed, for three drafts in a row after two
    rounds.
    """
    target, drafts = loaded.models.target, loaded.models.drafters["assistant"]
    prompt = loaded.prompter.prompt(Question("what is this ? what is this ? what is this ?"))
    drafter = AssistantDrafter(drafts)
    session = begun(target, drafter, prompt, 8).session
    tokens = prompt.ids.tolist()
    model = target.vlm.model.model.language_model
    for _ in range(2):
        said = [drafter.extend(torch.tensor(tokens[-1:]), (-1,))]
        drafted = [int(said[0].argmax())]
        for depth in range(2):
            said.append(drafter.extend(torch.tensor(drafted[-1:]), (depth,)))
            drafted.append(int(said[-1].argmax()))
        cache = DynamicCache()
        known = model(input_ids=torch.tensor([tokens[:-1]]), past_key_values=cache, use_cache=True)
        shared = {
            kind: (cache.layers[layer].keys, cache.layers[layer].values)
            for kind, layer in {"sliding_attention": 1, "full_attention": 2}.items()
        }
        state, fed = known.last_hidden_state[:, -1:], tokens[-1]
        for step, token in enumerate(drafted):
            embedded = model.embed_tokens(torch.tensor([[fed]]))
            made = drafts.model(
                inputs_embeds=torch.cat((embedded, state), -1),
                position_ids=torch.tensor([[len(tokens) - 1]]),
                shared_kv_states=shared,
                use_cache=False,
            )
            allowed = said[step][0].isfinite()
            truth = made.logits[0, 0, : len(allowed)].float().masked_fill(~allowed, -torch.inf)
            torch.testing.assert_close(said[step][0], truth.log_softmax(-1), atol=1e-4, rtol=1e-4)
            state, fed = made.last_hidden_state, token
        tree = DraftTree(torch.tensor(tokens[-1:]), chain(0))
        scores = session.score(tree)
        chosen = int(scores.logits[0].argmax())
        session.commit([0])
        drafter.commit(tree, Verdict([0], [chosen], []), scores)
        tokens.append(chosen)


def test_it_drafts_for_the_target_that_it_was_made_for_alone(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    target, drafter = folders
    model, processor = zoo.build("gemma3")
    model.save_pretrained(tmp_path / "other")
    processor.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="reads the keys and values of a Gemma 4"):
        custom_pair(str(tmp_path / "other"), str(drafter))
    wide = assistant(zoo.build("gemma4")[0], 96)
    wide.save_pretrained(tmp_path / "wide")
    for file in drafter.glob("tokenizer*"):
        (tmp_path / "wide" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match="made for a target 96 wide"):
        loader.load(custom_pair(str(target), str(tmp_path / "wide")))
    with pytest.raises(ValueError, match="is of type 'gemma4_assistant'"):
        custom_pair(str(drafter))
