"""Measures how soon a follow-up question is answered, compared with the first question of its
conversation.

    python -m studies.followups [--pair pocket] [--methods ar,chain,hivis] [--repeats 8]

Prints one JSON document: a row per method and kind of picture with the median milliseconds from the
question to its first tokens (prompt, vision, prefill, the drafter's prefill, first round), of the
first question and of the follow-up, and the median ratio within a conversation. The prefix cache
makes the difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from PIL import Image

from specvl_demo import pairs
from specvl_demo.bench import cases, provenance
from specvl_demo.core.prefix_cache import PrefixCache
from specvl_demo.methods.base import Choice
from specvl_demo.serving import choosing, loader, session
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm.prompts import Turn, VideoFrames

FRAMES = (1, 4, 16)
"""Pictures a conversation is about: a single one, or a clip of so many frames."""
FIRST, THEN = "Describe what you see.", "What colour is the background?"
MAX_NEW_TOKENS = 48


def conversation(
    loaded: Loaded, choice: Choice, shown: Image.Image | VideoFrames
) -> tuple[float, float]:
    """Return the seconds to the first tokens of a question, and of its follow-up."""
    cache = PrefixCache()
    first, answer = ask(loaded, choice, [Turn(FIRST, (shown,))], cache)
    return first, ask(loaded, choice, [Turn(FIRST, (shown,), answer), Turn(THEN)], cache)[0]


def ask(
    loaded: Loaded, choice: Choice, turns: Sequence[Turn], cache: PrefixCache
) -> tuple[float, str]:
    """Return the seconds to the first tokens, and the whole answer."""
    started = time.perf_counter()
    request = session.request(loaded, turns, MAX_NEW_TOKENS, detail="light", cache=cache)
    ready_s = time.perf_counter() - started
    (told,) = session.answers(loaded, request, [choice])
    return ready_s + told.begin.before_s + sum(one.seconds for one in told.rounds[:1]), told.text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", default="pocket")
    parser.add_argument("--methods", default="ar,chain,tabed,sage,eagle2,hivis,dream")
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args()
    pair = pairs.find(args.pair)
    loaded = loader.load(pair)
    choices = [choosing.choose(pair, name) for name in args.methods.split(",")]
    watch = provenance.Watch()
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for repeat in range(args.repeats + 1):
        for frames in FRAMES:
            clip = cases.clip(frames, first=(repeat % 4) * frames)
            for choice in choices:
                found = conversation(loaded, choice, clip.frames[0] if frames == 1 else clip)
                if repeat:  # the first run is the warm-up
                    seconds[choice.method.name, frames].append(found)
    rows = [
        {
            "method": method,
            "frames": frames,
            "first_ms": 1e3 * median(first for first, _ in some),
            "follow_up_ms": 1e3 * median(then for _, then in some),
            "of_first": median(then / first for first, then in some),
        }
        for (method, frames), some in seconds.items()
    ]
    machine = {**provenance.describe(loaded), **watch.read()}
    sys.stdout.write(json.dumps({"machine": machine, "rows": rows}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
