"""Every sentence that the server shows to a visitor; `question` has those on the question."""

from __future__ import annotations

from typing import Any, Literal

from specvl_demo import __version__

NO_REPORT = "This is no comparison: a saved bench.json is needed."
NO_BENCH = "This comparison is no longer on the server: others have replaced it. Start it again."
NO_QUESTIONS = "There is no question in these lines."
NO_PICTURE = "A question names {name}, which was not added."
BENCH_TOO_LARGE = "{n} answers (questions × repeats × methods) are too many: the limit is {most}."
TITLE = "SpecVL · speculative decoding of vision-language models"
ENDPOINTS = {
    "generate": "Answer a question about pictures or a clip with one method; gives figures too.",
    "race": "Answer a question with several methods in turns: every answer and its figures.",
}
ABOUT = (
    "A small drafter guesses ahead; the large target checks all guesses in one pass and keeps what"
    " it agrees with. That pays because reading all its weights from memory takes most of a large"
    " model's pass, for one token or for many. Colours tell where every token comes from.",
    "To cite: the methods' papers, and @software{specvl_demo, author = {{The SpecVL demo authors}},"
    f" title = {{{{SpecVL demo}}}}, year = {{2026}}, version = {{{__version__}}} }}"
    " (CITATION.bib has the papers too).",
    "Programs can ask too: at /v1/chat/completions, as OpenAI's, or Gradio's way (docs/api.md has"
    " examples).",
)

CANNOT_LISTEN = (
    "The page cannot listen at {host}, port {port}: the port is in use, or the address does not"
    " belong to this machine. Choose others with --host and --port."
)
BUSY = "This machine is busy: {waiting} visitors wait, which is the limit. Try again in a minute."
TOO_LONG = "The run was ended after {seconds:.0f} s, the limit. What was written is shown."
PAGE_FAILED = "The page failed ({reason}). Run again; if it happens again, see the server's log."
ENGINE_DIED = "The engine stopped ({reason}) and is being restarted. Run again in a moment."
DEVICE_LOST = (
    "The GPU stopped responding ({reason}). The engine is being restarted, and the answers so far"
    " are kept: run again in a moment, with other settings if it happens again."
)
NO_MEMORY = "There was not enough memory. Ask for fewer methods, pictures or tokens."
RUN_FAILED = "The run failed: {reason}. The answers are kept: run again, or change the settings."
ENGINE_NO_START = "The engine could not be started ({reason}). Run again in a moment."
NO_FILE = "{name} is no longer on the server. Add it again; in Compare, begin again."
UPLOAD_TOO_LARGE = "Files may have at most {most} MB."
DISK_FULL = "This machine's disk is full: nothing can be added until older files are removed."
NOT_KEPT = "This machine cannot store files: its upload folder is not writable. Ask without a file."
NOT_FOUND = "There is nothing here."
USE_POST = "Use POST here, with a JSON object as the body."
NOT_JSON = "The body of this request must be a JSON object."
BAD_JSON = "The body of this request is not valid JSON: {reason}."
NOT_NAMED = 'Send all arguments, or some by name: {"prompt": …} to /gradio_api/call/v2/generate.'
BODY_TOO_LARGE = "A request of this kind may have at most {most:.2g} MB, with all that it shows."
TOO_MANY_PARTS = "The request has too many parts: at most {most} lists and objects are allowed."
TOO_DEEP = "The request is nested too deeply: at most {most} levels are allowed."
NOT_UPLOADED = "A file in this request is not here, or no longer. Upload it first, then ask."
WRONG_HOST = "This page is not served under that name. Use its own, or start it with --hosts NAME."
WRONG_ORIGIN = "Other sites may not send requests here; --hosts NAME at the start allows one."
NOT_LOGGED_IN = "Log in first: this page requires an account."
NO_LOGPROBS = "`top_logprobs` needs `logprobs`: true."
NO_SUCH_MODEL = "There is no model {name!r} here; /v1/models lists them."
UNKNOWN = "`{}` is not known here; leave it out."
# What follows "must be", of a field that `/v1` refuses:
LEFT_OUT = "left out here"
A_MODEL = "the id of a pair, or pair/method (/v1/models lists them)"
A_CONVERSATION = 'a list such as [{"role": "user", "content": "Why is the sky blue?"}]'
A_MESSAGE = "an object with `role` and `content`"
A_ROLE = "{allowed} here (system prompts come first, a user's message last; there are no tools)"
A_CONTENT = "text, or a list of text, image_url and video_url parts"
A_PART = 'a part whose `type` is text, image_url or video_url, as {"type": "text", "text": "Hi"}'
A_DATA_URL = "a data URL (data:image/png;base64,…), which holds the file itself"
A_BASE64 = "base64 after the comma"
BY_USER = "in a message of the role user"
BY_STATUS = {
    400: "The request is not valid for this page.",
    403: "There is no such file here, or it no longer exists.",
    404: NOT_FOUND,
    405: "This address does not support that kind of request.",
    422: "The request is not valid for this page: a value is missing or has the wrong type.",
    500: "The page failed on this request. If this happens again, the server's log has details.",
    503: "The page is busy or stopping. Try again in a minute.",
}
"""Used when the web server's libraries refuse a request or fail."""
TOO_MANY_LANES = "At most {most} methods can race against the autoregressive lane, got {n}."
TOO_MANY_FILES = "A question can have at most {most} pictures and clips, got {n}."
ONLY_THIS_PAIR = "This Space lends its GPU only to the pair {pair!r}; others need their own."
ONLY_THESE_WEIGHTS = "This Space loads its weights in advance: precision and packing are fixed."
ONLY_THESE_DRAFTERS = "This Space loads its drafters in advance, and not this one: {roles}."
ONLY_SO_MANY = (
    "This Space lends its GPU for {seconds} s, enough for {n} of the {asked} tokens. Race fewer"
    " methods for more."
)
SHARING = "Other races are being read. Try again in a moment."
NOT_SHARED = "This race has more than 8 MB: download its trace instead."


Code = Literal["busy", "late", "failed"]
"""Why a run ended that its request is not to blame for: the line was full, the limit of time was
reached, or something failed here.
"""


def error_event(sentence: str, code: Code | None = None) -> dict[str, Any]:
    """Return the event that ends a run with this sentence; without a code, the run is refused."""
    return {"k": "error", "text": sentence} | ({"code": code} if code else {})


def loading_event(text: str) -> dict[str, Any]:
    """Return an event with the progress of loading."""
    return {"k": "status", "stage": "loading", "detail": text}


class Refusal(ValueError):
    """What a program is told of a run that cannot continue. status: As in HTTP."""

    def __init__(self, sentence: str, code: Code | None) -> None:
        super().__init__(sentence)
        # Programs retry after a 503, so it is used only if that helps.
        self.status = {"busy": 503, None: 400}.get(code, 500)
