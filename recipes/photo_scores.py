"""BLEU-4 and CIDEr of captions, as the COCO caption evaluation computes them.

Papineni et al. 2002 (corpus BLEU, closest reference length); Vedantam, Zitnick and Parikh 2015
(CIDEr-D as in the reference code: clipped counts, a Gaussian over the difference of lengths,
document frequencies of the scored set). The tests compare both with `pycocoevalcap` where that is
installed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

ORDERS = 4
SIGMA = 6.0


def tokens(text: str) -> list[str]:
    """Lower-case words; punctuation is dropped."""
    return re.findall(r"[a-z0-9']+", text.lower())


def ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter(
        tuple(words[i : i + n]) for n in range(1, ORDERS + 1) for i in range(len(words) - n + 1)
    )


def bleu_4(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return corpus BLEU-4 of one caption per photograph against several each."""
    right, made = [0] * ORDERS, [0] * ORDERS
    length = reference_length = 0
    for text, others in zip(texts, references, strict=True):
        words = tokens(text)
        refs = [tokens(r) for r in others]
        length += len(words)
        reference_length += min((abs(len(r) - len(words)), len(r)) for r in refs)[1]
        most: Counter[tuple[str, ...]] = Counter()
        for r in refs:
            most |= ngrams(r)
        for gram, n in ngrams(words).items():
            made[len(gram) - 1] += n
            right[len(gram) - 1] += min(n, most[gram])
    if not all(right):
        return 0.0
    mean = sum(math.log(r / m) for r, m in zip(right, made, strict=True)) / ORDERS
    return math.exp(mean + min(0.0, 1 - reference_length / length))


class Cider:
    """CIDEr of single captions, with the document frequencies of a set of photographs' captions."""

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        self._documents = Counter(
            gram for others in references for gram in {g for r in others for g in ngrams(tokens(r))}
        )
        self._total = math.log(len(references))

    def _vector(self, text: str) -> tuple[list[dict], list[float], int]:
        counts = ngrams(tokens(text))
        parts: list[dict] = [{} for _ in range(ORDERS)]
        for gram, n in counts.items():
            rarity = self._total - math.log(max(1.0, self._documents[gram]))
            parts[len(gram) - 1][gram] = n * rarity
        norms = [math.sqrt(sum(v * v for v in part.values())) for part in parts]
        # The reference code uses the number of two-word sequences as the length.
        return parts, norms, sum(n for gram, n in counts.items() if len(gram) == 2)

    def scores(self, texts: Sequence[str], references: Sequence[str]) -> list[float]:
        """Return the score of each caption of one photograph, against all these."""
        refs = [self._vector(r) for r in references]
        out = []
        for mine, mine_norm, mine_length in map(self._vector, texts):
            score = 0.0
            for ref, its_norm, its_length in refs:
                near = math.exp(-((mine_length - its_length) ** 2) / (2 * SIGMA**2))
                for n in range(ORDERS):
                    if mine_norm[n] and its_norm[n]:
                        counts = ((v, ref[n].get(g, 0.0)) for g, v in mine[n].items())
                        both = sum(min(v, its) * its for v, its in counts)
                        score += both / (mine_norm[n] * its_norm[n]) * near
            out.append(10 * score / ORDERS / len(refs))
        return out


def cider(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the mean CIDEr of one caption per photograph against several each."""
    one, pairs = Cider(references), zip(texts, references, strict=True)
    return sum(one.scores([text], refs)[0] for text, refs in pairs) / len(texts)


def distinct(text: str) -> float:
    """Return the share of distinct three-word sequences of a text; 1 for texts without any."""
    words = tokens(text)
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(triples)) / len(triples) if triples else 1.0


def different_sentences(text: str) -> int:
    """Return how many complete sentences of a text differ in more than case and punctuation."""
    whole = re.findall(r"[^.!?]+[.!?]", text)
    return len({tuple(words) for sentence in whole if (words := tokens(sentence))})


def most_repeated(text: str, n: int = 4) -> int:
    """Return how often the most frequent sequence of n words occurs; 0 for shorter texts."""
    words = tokens(text)
    counts = Counter(zip(*(words[i:] for i in range(n)), strict=False))
    return max(counts.values(), default=0)
