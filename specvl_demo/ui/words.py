"""Every sentence that the serving side says to a visitor. Knows nothing else."""

from __future__ import annotations

TITLE = "SpecVL · speculative decoding of vision-language models"
ENDPOINTS = {
    "generate": "Answer a question about pictures or a clip with one method: the answer and its numbers.",
    "race": "Let methods (comma-separated) answer the same question in turns: every answer and its numbers.",
}

CANNOT_LISTEN = (
    "The page cannot listen at {host}, port {port}: the port is taken, or that is no address of this "
    "machine. Choose others with --host and --port."
)
BUSY = "This machine is busy: {waiting} visitors are waiting, which is all it takes. Try again in a minute."
TOO_LONG = (
    "The run was ended after {seconds:.0f} s, the limit for one run here. What came until then is above."
)
PAGE_FAILED = "The page itself failed ({reason}). Run again; if it comes back, the server's log says more."
ENGINE_DIED = (
    "The engine stopped unexpectedly ({reason}). It is being started again: run once more in a moment."
)
NO_MEMORY = "There was not enough memory for this run. Use fewer or smaller pictures, or fewer tokens."
RUN_FAILED = "The run failed: {reason}. What came until then stays; run again, or change the settings."
ENGINE_NO_START = "The engine could not be started ({reason}). Run once more in a moment."
NO_FILE = "{name} is no longer on the server. Add it again."
UPLOAD_TOO_LARGE = "A file of at most {most} MB is taken."
DISK_FULL = (
    "The disk of this machine is full: nothing can be added until older files are removed. Try again later."
)
NOT_TEXT = "{what} must be text, got {kind}."
TOO_MUCH_TEXT = "{what} is too long: {n} characters, at most {most} are taken."
NOTHING_ASKED = "Ask a question or add a picture first."
NO_PAIR = "There is no pair {name!r}. Known: {known}."
NO_METHOD = "There is no method {name!r}. Known: {known}."
TOO_MANY_LANES = "At most {most} methods race beside the plain model, got {n}."
TOO_MANY_FILES = "At most {most} pictures and clips fit in one question, got {n}."
TOO_MANY_TURNS = (
    "At most {most} earlier questions are remembered, got {n}. Begin a new conversation, or take an earlier "
    "question up again."
)
NOT_A_NUMBER = "{what} must be a number from {low} to {high}, got {value!r}."
TOO_COLD = "The temperature must be 0 (greedy) or at least {low}, got {value!r}."
ONLY_THIS_PAIR = "This Space lends its GPU to the pair {pair!r} alone; other pairs need a Space of their own."
NO_SCENE = "That is not the description of a scene: it needs a ground and a list of objects."

SLOTS = {"drafter": "drafter", "views": "views", "policy": "tree", "verifier": "verifier"}
SLOT_HELP = {
    "drafter": "Who guesses what comes next.",
    "views": "What the drafter sees of the prompt; several are mixed.",
    "policy": "The shape of what is drafted in a round.",
    "verifier": "Who decides which drafts stay.",
}
