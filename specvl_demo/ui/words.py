"""Every sentence that the serving side says to a visitor. Knows nothing else."""

from __future__ import annotations

TITLE = "SpecVL · speculative decoding of vision-language models"
DESCRIPTION_GENERATE = (
    "Answer a question about pictures or a clip with one method; gives the answer and its numbers."
)
DESCRIPTION_RACE = (
    "Let several methods answer the same question in fair turns; gives every lane's answer and numbers."
)

BUSY = "This machine is busy: {waiting} visitors are waiting, which is all it takes. Try again in a minute."
TOO_LONG = (
    "The run was ended after {seconds:.0f} s, the limit for one run here. What came until then is above."
)
ENGINE_DIED = (
    "The engine stopped unexpectedly ({reason}). It is being started again: run once more in a moment."
)
ENGINE_NO_START = "The engine could not be started: {reason}"
NO_FILE = "{name} is no longer on the server. Add it again."
NOT_TEXT = "{what} must be text, got {kind}."
TOO_MUCH_TEXT = "{what} is too long: {n} characters, at most {most} are taken."
NOTHING_ASKED = "Ask a question or add a picture first."
NO_PAIR = "There is no pair {name!r}. Known: {known}."
NO_METHOD = "There is no method {name!r}. Known: {known}."
TOO_MANY_LANES = "At most {most} methods race beside the plain model, got {n}."
TOO_MANY_FILES = "At most {most} pictures and clips fit in one question, got {n}."
NOT_A_NUMBER = "{what} must be a number from {low} to {high}, got {value!r}."
NO_SCENES = "This pair does not know drawn scenes."
