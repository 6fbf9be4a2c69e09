"""The photo target's recipe on tiny random models, from data to resuming."""

import itertools
import json
import random
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from recipes import (
    packing,
    photo_data,
    photo_questions,
    photo_reward,
    photo_scores,
    photo_tasks,
    photo_writer,
    train_photo,
)
from recipes.photo import Cells, Learner, Recipe
from recipes.photo_model import Decoder, Node, Row, pack
from recipes.photo_reward import Rewarder
from recipes.published_towers import VARIANTS, published_weights
from recipes.trainer import Trainer
from specvl_demo.vlm import photo_assembly
from specvl_demo.vlm.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel
from tests.shared.refusals import refuses

WIDTH, CLASSES = 32, ("grey fox", "tabby", "vase")
ROWS = 2 * 2 + 6
"""Visual tokens of a picture: cells and words."""
SPECIAL = ["<|im_start|>", "<|im_end|>", "<reponame>"]
DOGS = (
    "A black dog runs in the snow.",
    "A dog running through the snow with a red ball.",
    "The black dog is running in the snow.",
    "A black dog plays in snow.",
    "Dog running.",
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate([*letters, *SPECIAL])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    ends = dict.fromkeys(("eos_token", "pad_token"), SPECIAL[1])
    more = {"additional_special_tokens": SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=made, **ends, **more)


def language(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = LlamaConfig(**sizes, **heads, vocab_size=259, tie_word_embeddings=True)
    return LlamaForCausalLM(config).eval()


def tower(
    seed: int = 1, width: float = 0.25, depth: float = 0.3, image_size: int = 64
) -> EfficientNetLiteModel:
    torch.manual_seed(seed)
    sizes = {"hidden_size": WIDTH, "projector_size": 16}
    sizes |= {"num_classes": len(CLASSES), "likeliest": 2}
    shape = {"width": width, "depth": depth, "image_size": image_size}
    return EfficientNetLiteModel(EfficientNetLiteConfig(**sizes, **shape)).eval()


def learner_of(
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    paths: dict[str, list[Path]],
    base: LlamaForCausalLM | None = None,
    eyes: EfficientNetLiteModel | None = None,
) -> Learner:
    device, dtype = torch.device("cpu"), torch.float32
    return Learner(recipe, base or language(), eyes or tower(), tokenizer, paths, device, dtype)


def pictures(folder: Path, n: int) -> dict[str, list[Path]]:
    """The training set of so many noisy pictures."""
    return {"train": [folder / name for name in write_pictures(folder, n)]}


def random_lora(decoder: Decoder) -> dict[str, torch.Tensor]:
    for p in decoder.lora.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return decoder.lora.state_dict()


def test_tower_joins_maps_colours_and_class_words():
    model = tower(width=1.0, depth=1.0, image_size=224)
    torch.nn.init.normal_(model.class_words)
    torch.nn.init.normal_(model.position)
    pixels = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        rows = model(pixels).last_hidden_state
        fine = model.lower(pixels)
        top = model.upper(fine)
        row, column = 3, 5
        places = pixels[0, :, 96:128, 160:192].unfold(1, 8, 8).unfold(2, 8, 8).flatten(0, 2)
        parts = [
            F.layer_norm(top[0, :, row, column], (1280,)),
            F.layer_norm(fine[0, :, 6:8, 10:12].flatten(), (448,)),
            places.mean((1, 2)),
        ]
        inner = model.linear_1(torch.cat(parts) + model.position[row * 7 + column])
        cell = model.linear_2(F.gelu(inner))
        odds = model.classifier(top[0].mean((1, 2))).softmax(-1)
        values, best = odds.topk(2)
        shares = zip(values / values.sum(), best, strict=True)
        words = sum(share * model.class_words[i] for share, i in shares)
    assert rows.shape == (2, 49 + 6, WIDTH)
    torch.testing.assert_close(rows[0, row * 7 + column], cell, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(rows[0, 49:], words)
    assert not model.train().upper[0].depthwise.norm.training


def blocks(n: int) -> dict[str, torch.Tensor]:
    """A published weight of each of `n` blocks."""
    return {f"_blocks.{i}._depthwise_conv.weight": torch.zeros(1) for i in range(n)}


def test_published_names_are_all_known_or_refused():
    names = "_blocks.11._bn2.weight", "_conv_head.weight", "_fc.bias"
    rest = {name: torch.ones(1) for name in names}
    variant, told = published_weights(blocks(16) | rest)
    assert variant is VARIANTS[0] and len(told) == 16 + len(rest)
    assert set(told) >= {
        "lower.1.depthwise.conv.weight",
        "upper.0.project.norm.weight",
        "upper.5.conv.weight",
        "classifier.bias",
    }
    with pytest.raises(ValueError, match="_se_reduce"):
        published_weights(blocks(16) | {"_blocks.3._se_reduce.weight": torch.zeros(1)})
    refuses("21 .EfficientNet-Lite2.*have 5 blocks", published_weights, blocks(5))


def write_pictures(folder: Path, n: int) -> list[str]:
    folder.mkdir(parents=True)
    for i in range(n):
        noise = np.random.default_rng(i).integers(0, 255, (80, 60 + 10 * i, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"p{i}.jpg")
    return [f"p{i}.jpg" for i in range(n)]


@pytest.mark.parametrize("layout", ["tabs", "numbered", "commas", "coco"])
def test_captions_are_read_in_every_layout(tmp_path: Path, layout: str):
    names = write_pictures(tmp_path / "pictures", 9)
    if layout == "coco":
        images = [{"id": i, "file_name": n} for i, n in enumerate(names)]
        notes = [{"image_id": i, "caption": "two dogs , in snow ."} for i in range(9)]
        told = json.dumps({"images": images, "annotations": notes})
        (tmp_path / "captions.json").write_text(told)
    else:
        line = {"tabs": "{}\t{}\n", "numbered": "{}#0\t{}\n", "commas": '{},"{}"\n'}[layout]
        head = "image,caption\n" if layout == "commas" else ""
        text = "".join(line.format(n, "two dogs , in snow .") for n in names)
        (tmp_path / "captions.txt").write_text(head + text)
    train, dev = photo_data.read(tmp_path)
    assert [p.captions for p in train] == [("Two dogs, in snow.",)] * 7
    assert [p.path.name for p in dev] == ["p0.jpg", "p8.jpg"]
    (tmp_path / "dev.tsv").write_text("p3.jpg\tA man on a bench.\n")
    assert [p.path.name for p in photo_data.read(tmp_path)[1]] == ["p3.jpg"]


def test_a_folder_without_captions_is_refused_with_the_layout_it_needs(tmp_path: Path):
    write_pictures(tmp_path / "pictures", 2)
    refuses("Flickr8k's layout", photo_data.read, tmp_path)
    with pytest.raises(FileNotFoundError, match="captions file"):
        photo_data.read(tmp_path / "none")


def test_questions_follow_from_the_captions():
    index = photo_questions.WordIndex([DOGS, ("A man rides a horse.", "A man on a horse.")])
    told = {
        q.question: q.answer
        for seed in range(20)
        for q in photo_questions.ask(DOGS, random.Random(seed), 9, index)
    }
    assert told["What colour is the dog?"] == "Black."
    assert told["Where is the dog?"] == "In the snow."
    assert told["What is the dog doing?"] == "Running."
    assert told["How many dogs are there?"] == "One."
    assert told["Is there a dog in the picture?"] == "Yes."
    assert told["Is there a man in the picture?"] == "No."
    assert told["What colour is the ball?"] == "Red."


def test_nothing_is_asked_that_the_captions_contradict():
    captions = "A red car and a dog.", "A blue car on a road.", "Two dogs by a car.", "Three dogs."
    assert not [q for q in photo_questions.colour(captions) if "car" in q.question]
    assert not list(photo_questions.number(captions))
    # A crowd may hold a woman: no safe `no`.
    index = photo_questions.WordIndex([("A woman.", "A woman.")])
    assert index.absent(("People at a table.", "A crowd."), random.Random(0)) is None


def test_scores_agree_with_the_reference_code():
    rng = random.Random(0)
    words = ["a", "dog", "man", "runs", "in", "the", "snow", "red", "ball", "on", "grass", "two"]
    sentence = lambda: " ".join(rng.choices(words, k=rng.randint(4, 11)))  # noqa: E731
    told = [sentence() for _ in range(30)]
    references = [[sentence() for _ in range(4)] for _ in range(30)]
    said, other = [r[0] for r in references], photo_scores.cider(told, references)
    assert photo_scores.bleu_4(said, references) == pytest.approx(1)
    assert photo_scores.cider(said, references) > other
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu").Bleu(4)
    cider = pytest.importorskip("pycocoevalcap.cider.cider").Cider()
    truth, made = dict(enumerate(references)), {i: [t] for i, t in enumerate(told)}
    known = bleu.compute_score(truth, made, verbose=0)[0][3]
    assert photo_scores.bleu_4(told, references) == pytest.approx(known)
    assert other == pytest.approx(cider.compute_score(truth, made)[0])


def test_written_answers_are_checked():
    assert photo_scores.distinct("the dog runs and the dog runs and") == pytest.approx(4 / 6)
    assert photo_writer.finished("A dog runs. It is") == "A dog runs."
    assert not photo_writer.keep("The caption says so.", 60, 50, 125)
    job = photo_writer.next_job("p0.jpg", DOGS, random.Random(0))
    assert job.opening.startswith(DOGS[1]) and all(caption in job.prompt for caption in DOGS)


def test_long_answers_are_counted():
    text = "A dog runs on the grass. A dog runs on the sand. a dog runs on the grass!"
    assert photo_scores.different_sentences(text + " It is") == 2
    assert photo_scores.most_repeated(text) == 3
    assert photo_scores.most_repeated("A dog runs.") == 0


def test_a_written_answer_goes_on_from_its_opening_and_repeats_no_triple(
    tokenizer: PreTrainedTokenizerFast,
):
    ban = photo_writer.NoTripleTwice([1, 3])
    scores = ban(torch.tensor([[7, 1, 2, 3, 1, 2], [1, 2, 3, 4, 1, 2]]), torch.zeros(2, 9))
    assert scores[0].isinf().nonzero().tolist() == [[3]], "1, 2, 3 has been said"
    assert not scores[1].isinf().any(), "what stands before the answer may come again"
    jobs = [photo_writer.Job(str(n), "story", "?", "tell " * n, "once") for n in (1, 3)]
    written = list(photo_writer.write(language(), tokenizer, jobs, 8, distinct=True))
    assert [job for job, _ in written] == jobs
    assert all(text.startswith("once") and len(text) > 4 for _, text in written)


def test_decoder_computes_the_merged_model_on_trees():
    base = language()
    decoder = Decoder(base, 3, torch.float32)
    lora = random_lora(decoder)
    answers = [Node([40, 41, 42, 43], taught=True), Node([50, 51], taught=True)]
    below = [Node([9, 8], children=answers), Node([7], children=[Node([6, 5], True)])]
    tree = Row([], Node([1, 2, 3], children=below))
    packed = pack([tree, Row([], Node([4], children=[Node([5, 6], True)]))], torch.float32)
    with torch.no_grad():
        got = decoder.logits(decoder(decoder.embedding[packed.ids], packed)[packed.sources])
        photo_assembly.merge_lora(base, lora)
        start, *others = [1, 2, 3, 9, 8], ([1, 2, 3, 7], [6, 5]), ([4], [5, 6])
        paths = [(start, [40, 41, 42, 43]), (start, [50, 51]), *others]
        want = [base(torch.tensor([a + b])).logits[0, len(a) - 1 : -1] for a, b in paths]
    assert packed.targets.tolist() == [t for _, b in paths for t in b]
    torch.testing.assert_close(got, torch.cat(want), rtol=1e-4, atol=1e-4)


def test_assembled_folder_is_a_standard_llava(tmp_path: Path, tokenizer: PreTrainedTokenizerFast):
    base, eyes, shown = language(), tower(), tokenizer.convert_tokens_to_ids("<reponame>")
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    lora = random_lora(Decoder(base, 3, torch.float32))
    packing.write_delta(tmp_path / "delta", eyes, lora, CLASSES)
    photo_assembly.assemble(tmp_path / "base", tmp_path / "delta", tmp_path / "out")
    read = LlavaForConditionalGeneration.from_pretrained
    model = read(tmp_path / "out", dtype=torch.float32).eval()
    processor = LlavaProcessor.from_pretrained(tmp_path / "out")
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    text = processor.apply_chat_template(asked, add_generation_prompt=True)
    inputs = processor(images=Image.new("RGB", (300, 200), "red"), text=text, return_tensors="pt")
    ids = inputs["input_ids"][0]
    assert (ids == shown).sum() == ROWS
    with torch.no_grad():
        got = model(**inputs).logits[0, -1]
        photo_assembly.merge_lora(base, {k: v.half().float() for k, v in lora.items()})
        photo_assembly.fill_words(eyes, base.get_input_embeddings().weight, tokenizer, CLASSES)
        x = base.get_input_embeddings()(ids)
        x[ids == shown] = eyes(inputs["pixel_values"]).last_hidden_state[0]
        want = base(inputs_embeds=x[None]).logits[0, -1]
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_stopped_run_ends_as_one_that_was_not(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, reward: float
):
    names = write_pictures(tmp_path / "data" / "pictures", 4)
    lines = [f"{name}\t{caption}\n" for name in names for caption in DOGS]
    (tmp_path / "data" / "train.tsv").write_text("".join(lines))
    things = tmp_path / "data" / "things"
    write_pictures(things, 3)
    for i, name in enumerate(CLASSES):
        (things / f"p{i}.jpg").rename(things / f"n{i}_{name.replace(' ', '_')}.jpg")
    photos, _ = photo_data.read(tmp_path / "data")
    classes = photo_data.read_things(tmp_path / "data")
    assert [t.name for t in classes] == list(CLASSES)
    recipe = Recipe(rank=2, warm_steps=1, warm_batch=2, steps=2, batch=2, common=1, reward=reward)
    ends = []
    for folder, calls in (("whole", (None,)), ("halves", (0.0, 0.0))):
        for minutes in calls:
            eyes, base = tower(), language()
            paths = {"train": [p.path for p in photos], "things": [t.path for t in classes]}
            learner = learner_of(tokenizer, recipe, paths, base, eyes)
            (tmp_path / folder).mkdir(exist_ok=True)
            row = {"key": "Hi?", "kind": "plain", "question": "Hi?", "answer": "Hello."}
            (tmp_path / folder / "plain.jsonl").write_text(json.dumps(row) + "\n")
            shown = eyes.config.grid**2 + eyes.config.word_rows
            taught = photos, classes, tmp_path / folder
            tasks = photo_tasks.Tasks(tokenizer, *taught, shown, recipe.seed, reward)
            run = tmp_path / folder, asdict(recipe), minutes, False
            done = train_photo.train(learner, base, tasks, *run)
        assert done
        ends.append({**learner.tower.state_dict(), **learner.decoder.lora.state_dict()})
    assert any((ends[0][name] != value).any() for name, value in tower().state_dict().items())
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=0, msg=name)


def test_what_was_written_by_looking_is_taught(tmp_path: Path, tokenizer: PreTrainedTokenizerFast):
    """A scene's two captions and its questions; a lone thing keeps its close-up. Nothing is taught
    about a picture whose class is held out.
    """
    lines = map(json.loads, photo_data.LOOKED_AT.read_text(encoding="utf-8").splitlines())
    written = {line["file"]: line for line in lines}
    names = sorted(written)
    things = [photo_data.Thing(tmp_path / name, name[10:-4], i) for i, name in enumerate(names)]
    photo = photo_data.Photo(tmp_path / "p0.jpg", DOGS)
    tasks = photo_tasks.Tasks(tokenizer, [photo], things, tmp_path, ROWS, seed=1)
    held = photo_tasks.held_out(len(things))
    assert {seen.thing.index for seen in tasks.looked_at} == set(range(len(things))) - held
    rng = random.Random(0)
    for _ in range(40):
        row = tasks.scene(rng)
        ((_, index, _),) = row.pictures
        line = written[names[index]]
        close = photo_tasks.Tasks._thing(photo_tasks.CLOSE, things[index].name)
        answers = [answer for question in row.root.children for answer in question.children]
        expected = line["captions"] or [close]
        assert [a.ids for a in answers[: len(expected)]] == [
            [*tasks.tokens(text), tokenizer.eos_token_id] for text in expected
        ]
        short = set(tasks.short.tolist())
        assert all(a.kind == "long" or set(a.ids) <= short for a in answers)
        assert sum(a.kind == "question" for a in answers) == len(line["questions"])


def test_descriptions_by_looking_are_taught(tmp_path: Path, tokenizer: PreTrainedTokenizerFast):
    """Of a photograph with a question in a second turn, of a taught thing with what is known of it;
    nothing is written about a class that is held out.
    """
    lines = map(json.loads, photo_data.DESCRIBED.read_text(encoding="utf-8").splitlines())
    written = {line["file"]: line for line in lines}
    name = next(name for name, line in written.items() if line.get("story") and line["questions"])
    photo = photo_data.Photo(tmp_path / name, DOGS)
    classes = {json.loads(line)["file"] for line in photo_data.LOOKED_AT.open()}
    assert {file for file, line in written.items() if line.get("knowledge")} <= classes
    thing = photo_data.Thing(tmp_path / min(classes & set(written)), "vase", 0)
    tasks = photo_tasks.Tasks(tokenizer, [photo], [thing], tmp_path, ROWS, seed=1)

    def paths(node: Node, before: str = "") -> list[str]:
        text = before + tokenizer.decode(node.ids)
        return [p for child in node.children for p in paths(child, text)] or [text]

    line, rng = written[name], random.Random(0)
    taught = [text for _ in range(4) for text in paths(tasks.at_length_row(rng).root)]
    (_, (follow_up, reply)) = line["questions"]
    turn = f"<|im_start|>user\n{follow_up}<|im_end|>\n<|im_start|>assistant\n{reply}"
    assert any(f"{line['description']}<|im_end|>\n{turn}" in text for text in taught)
    assert any(line["story"] in text for text in taught)
    about_things = [text for _ in range(8) for text in paths(tasks.thing(rng).root)]
    knowledge = written[thing.path.name]["knowledge"]
    assert any("vase" in text and knowledge in text for text in about_things)


def test_what_an_answer_says_again_is_marked():
    """From the second time that four tokens stand in order; `pack` keeps each token's kind."""
    ids = [5, 1, 2, 3, 4, 9, 1, 2, 3, 4, 7]
    assert photo_tasks.repeats(ids) == ["own"] * 9 + ["wrong", "own"]
    looped = photo_tasks.repeats([1, 2, 3] * 60)
    assert looped.count("wrong") == photo_tasks.MAX_REPEATED and looped[-1] == "wrong"
    node = Node(ids, taught=True, kinds=photo_tasks.repeats(ids))
    packed = pack([Row([], Node([8], children=[node]))], torch.float32)
    assert packed.kinds == node.kinds and packed.targets.tolist() == ids


def test_the_end_of_a_short_story_is_wrong(tmp_path: Path, tokenizer: PreTrainedTokenizerFast):
    """Not that of a longer one, of a description, or of an answer that was cut off."""
    photo = photo_data.Photo(tmp_path / "a.jpg", DOGS)
    words = ("dog", "man", "ball", "hat")
    sentences = [tokenizer(f" A {w} runs .", add_special_tokens=False).input_ids for w in words]
    end, story = [tokenizer.eos_token_id], photo_tasks.STORY[0]
    answers = [
        (story, [*sum(sentences[:3], []), *end]),
        (story, [*sum(sentences, []), *end]),
        (story, [*sum(sentences[:3], []), 5]),
        (photo_tasks.DESCRIBE[0], [*sum(sentences[:3], []), *end]),
    ]
    lines = [{"images": ["a.jpg"], "prompt": q, "answer_ids": ids} for q, ids in answers]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    tasks = photo_tasks.Tasks(tokenizer, [photo], [], tmp_path, ROWS, seed=1)
    ending = [(q, node.ids) for *_, q, node in tasks.own if node.kinds[-1] == "wrong"]
    assert ending == answers[:1]


def test_sampled_captions_count_by_how_much_better_they_are(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    """They are what the updated model would say, and their weights tell good from bad."""
    base = language()
    paths = pictures(tmp_path / "pictures", 2)
    learner = learner_of(tokenizer, Recipe(rank=2, reward=1.0), paths, base)
    random_lora(learner.decoder)
    others = ("Two men sit on a bench.", "A man sits.")
    photos = [*map(photo_data.Photo, paths["train"], (DOGS, others))]
    tasks = photo_tasks.Tasks(tokenizer, photos, [], tmp_path, ROWS, seed=1, reward=1.0)
    rewarder = Rewarder(learner, base, tasks, tasks.short)
    rows = [row for row in rewarder.rows(0, 2) if row.sampled]
    assert rows
    for row in rows:
        said = row.root.children[0].children
        assert len(said) == photo_reward.SAMPLES
        assert sum(n.weight for n in said) == pytest.approx(0, abs=1e-4)
        assert all(set(n.ids) <= set(tasks.short.tolist()) for n in said)
    told = [c + photo_reward.END for c in DOGS]
    good, half = rewarder.cider.scores([told[0], DOGS[0]], told)
    assert good > half, "a caption that breaks off must not score as a whole one"
    packed, ids = pack(rows[:1], torch.float32), torch.tensor(rows[0].root.ids)
    visual, _ = learner.look(rows[0].pictures)
    with torch.no_grad():
        x = learner.embed(ids, visual)
        want = learner.decoder(learner.embed(packed.ids, visual), packed)[len(ids) - 1]
        got = rewarder.model.model(inputs_embeds=x[None]).last_hidden_state[0, -1]
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_rewarded_captions_have_a_mean_of_their_own(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    """However much the other answers of a step weigh, a rewarded caption counts the same."""
    learner = learner_of(tokenizer, Recipe(rank=2, hold=0.0), pictures(tmp_path / "pictures", 1))

    def row(kind: str, n: int) -> Row:
        weight = 0.5 if kind == "sampled" else 1.0
        told = Node([*range(5, 5 + n)], taught=True, kind=kind, weight=weight)
        return Row([("train", 0, 0)], Node([*[learner.image] * ROWS, 4], children=[told]))

    def loss(*rows: Row) -> float:
        return learner.loss(rows, torch.arange(3, 40))[0].item()

    asked, rewarded = row("question", 20), row("sampled", 3)
    assert loss(asked, rewarded) == pytest.approx(loss(asked) + loss(rewarded), rel=1e-4)
    random_lora(learner.decoder)
    chat = Row([], Node([4, 5], children=[Node([7, 8, 9], taught=True, kind="plain")]))
    without = loss(asked, rewarded)
    held = loss(asked, rewarded, chat) - without
    learner.recipe.distil *= 2
    assert held > 0 and loss(asked, rewarded, chat) - without == pytest.approx(2 * held, rel=1e-4)


def test_a_tower_that_takes_anothers_place_learns_its_cells(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
):
    """Where it has them there is nothing to learn; a larger one comes nearer every step."""
    old, paths = tower(), pictures(tmp_path / "pictures", 2)
    same = learner_of(tokenizer, Recipe(rank=2), paths)
    same.tower.load_state_dict(old.state_dict())
    places = Cells(same, old).batch(0)[:3]
    assert Cells(same, old).loss(places)[0].item() == pytest.approx(0, abs=1e-4)

    larger = tower(2, width=0.3, depth=0.6, image_size=96)
    recipe = Recipe(rank=2, lr=3e-3, imitate_steps=8)
    learner = learner_of(tokenizer, recipe, paths, eyes=larger)
    task = Cells(learner, old)
    parts, opts = {"tower": larger}, [learner.optimizer()]
    run = Trainer("imitate", tmp_path, {}, parts, opts, recipe.imitate_steps, 0.9, average=True)
    before = task.loss(places)[0].item()
    run.train(lambda _: itertools.repeat(places), task.loss)
    assert task.loss(places)[0].item() < 0.7 * before
