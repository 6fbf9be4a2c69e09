"""A short soak on the page of the tests."""

import json

from lab.serving import soak


def test_a_short_soak_reports_what_became_of_every_visitor(capsys, monkeypatch):
    monkeypatch.setattr(soak, "SETTLE_S", 0.5)
    code = soak.main(["--minutes", "0.08", "--visitors", "3", "--seed", "5", "--pair", "pocket"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["wrong"], report["faults"]) == (0, [], [])
    told = sum(report[name] for name in ("served", "refused", "busy", "stopped", "left", "failed"))
    assert report["asked"] == told == sum(report["kinds"].values()) >= 3
    assert report["served"] > 0 and report["failed"] == 0
    assert report["threads"]["end"] > 0 and report["files"]["end"] > 0
