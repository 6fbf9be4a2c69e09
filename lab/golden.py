"""Golden traces: checks that the same questions still get the same tokens, over the same rounds.

    python -m lab.golden record  FILE [--pairs photo,pocket] [--methods all] [--tokens 24]
    python -m lab.golden compare FILE [--pairs …] [--methods …]

Asks every method of a pair, greedily and sampled with a fixed seed, about a picture, two pictures,
a clip, and the picture again. `record` writes the token ids and the accepted path of every round;
`compare` prints the differences and exits with 1 if any. Whether weights changed, git tells.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from specvl_demo import pairs
from specvl_demo.core import engine
from specvl_demo.media import MediaFile
from specvl_demo.options import Sampling
from specvl_demo.places import EXAMPLES
from specvl_demo.question import Question, Turn
from specvl_demo.records import Round
from specvl_demo.serving import choosing, loader, session

PICTURES = {"photo": ("cat.jpg", "coffee.jpg", "tour.webm")}
DRAWN = ("scene.png", "chart.png", "clip.webm")
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(1.0, seed=7)}


def conversations(pair: str) -> dict[str, list[Question]]:
    """Return the questions of each conversation by the kind of what is shown."""
    first, second, clip = (MediaFile(str(EXAMPLES / name)) for name in PICTURES.get(pair, DRAWN))
    described = Turn("Describe the picture.", (first,), "It shows several things.")
    return {
        "picture": [
            Question(described.question, described.shown),
            Question("What is in the middle?", earlier=(described,)),
        ],
        "two pictures": [Question("What is different between the two pictures?", (first, second))],
        "clip": [Question("What happens in the clip?", (clip,))],
    }


def traces(pair: str, methods: str, tokens: int) -> dict[str, dict[str, Any]]:
    """Return {name: {"tokens": ids, "paths": one list of nodes per round}} of every answer."""
    loaded = loader.load_pair(pairs.find(pair))
    found = {}
    for how, sampling in SAMPLINGS.items():
        # A method may not support a temperature.
        choices = [
            choosing.choose(loaded.pair, name, temperature=sampling.temperature)
            for name in choosing.supported_methods(loaded.pair, sampling.temperature)
            if methods == "all" or name in methods.split(",")
        ]
        for kind, args in conversations(pair).items():
            for i, question in enumerate(args):
                asked = replace(question, max_new_tokens=tokens, sampling=sampling)
                request = session.make_request(loaded, asked)
                title = kind if i == 0 else "follow-up"
                lanes: dict[str, dict[str, Any]] = {}
                for record in engine.race(session.make_lanes(loaded, request, choices)):
                    lane = lanes.setdefault(record.lane, {"tokens": [], "paths": []})
                    if isinstance(record, Round):
                        lane["tokens"] += [token.id for token in record.tokens]
                        lane["paths"].append(record.path)
                for name, lane in lanes.items():
                    found[f"{pair}, {title}, {how}, {name}"] = lane
    return found


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return one line for everything that has changed, including what only one side has."""
    lines = []
    for name in before | now:
        if name not in now or name not in before:
            lines.append(f"{name}: {'gone' if name in before else 'new'}")
        elif before[name] != now[name]:
            lines.append(f"{name}: {_first(before[name], now[name])}")
    return lines


def _first(before: Any, now: Any) -> str:
    """Describe the first difference between two traces."""
    for key in ("tokens", "paths"):
        for i, (old, new) in enumerate(zip(before[key], now[key], strict=False)):
            if old != new:
                return f"{key}[{i}] was {old}, is {new}"
    return f"{len(before['tokens'])} tokens before, {len(now['tokens'])} now"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--pairs", default="photo,pocket")
    parser.add_argument("--methods", default="all")
    parser.add_argument("--tokens", type=int, default=24)
    args = parser.parse_args()
    before: dict[str, Any] = {}
    if args.do == "compare":
        before = json.loads(args.file.read_text())
        args.tokens = before["limit"]
    found: dict[str, dict[str, Any]] = {}
    for pair in args.pairs.split(","):
        found |= traces(pair, args.methods, args.tokens)
    if args.do == "record":
        args.file.write_text(json.dumps({"limit": args.tokens, "traces": found}))
        sys.stdout.write(f"{len(found)} answers: {args.file}\n")
        return 0
    asked_for = {
        name: trace
        for name, trace in before["traces"].items()
        if name.split(", ")[0] in args.pairs.split(",")
        and (args.methods == "all" or name.split(", ")[-1] in args.methods.split(","))
    }
    lines = differences(asked_for, found)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{len(lines)} of {len(asked_for)} answers differ\n")
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main())
