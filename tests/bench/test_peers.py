"""The library's ways of decoding draft as much as our own do, and say so."""

from __future__ import annotations

from specvl_demo import methods
from specvl_demo.bench.peers import HF_ASSISTED, HF_GENERATE, HF_LOOKUP, N_DRAFTED, RIVALS, drafted, note


def test_a_rival_drafts_as_many_tokens_as_our_method_of_its_kind() -> None:
    ours = [
        methods.choose("ar"),
        methods.choose("chain", {"gamma": 3}),
        methods.choose("ngram", {"gamma": 8}),
    ]
    assert [drafted(RIVALS[name], ours) for name in (HF_ASSISTED, HF_LOOKUP)] == [3, 8]
    assert drafted(RIVALS[HF_ASSISTED], ours[:1]) == N_DRAFTED
    assert note(RIVALS[HF_ASSISTED], 3).startswith("Drafts 3 tokens a round. The library's assistant never")
    assert note(RIVALS[HF_LOOKUP], 8) == "Drafts 8 tokens a round."
    assert note(RIVALS[HF_GENERATE], N_DRAFTED) is None
