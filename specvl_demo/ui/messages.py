"""Every sentence that the serving side says to a visitor. Knows nothing else."""

from __future__ import annotations

NO_BENCH = "This bench is no longer on the server: it was replaced, or is older than two hours."
NO_QUESTIONS = "There is no question in these lines."
NO_PICTURE = "{name} is named by a question, but was not added."
BENCH_BOUND = "The {what} of a bench must be whole numbers or few: from 1, at most {most}."
BENCH_TOO_LARGE = (
    "This bench would take {n} answers (questions × repeats × temperatures × ways of decoding); at"
    " most {most} are given to one visitor."
)
NOT_VARIED = "None of the chosen methods has a parameter {names}."
TITLE = "SpecVL · speculative decoding of vision-language models"
ENDPOINTS = {
    "generate": (
        "Answer a question about pictures or a clip with one method: the answer and its numbers."
    ),
    "race": (
        "Let methods (comma-separated) answer the same question in turns: every answer and its"
        " numbers."
    ),
    "bench": (
        "Let methods answer many questions, repeatedly: the report of `bench --json`. Each question"
        " is a run of its own in the line, so that others are let in between."
    ),
}

CANNOT_LISTEN = (
    "The page cannot listen at {host}, port {port}: the port is taken, or that is no address of"
    " this machine. Choose others with --host and --port."
)
BUSY = (
    "This machine is busy: {waiting} visitors are waiting, which is all it takes. Try again in a"
    " minute."
)
UNHEARD = "The run was ended: nobody has listened to it for {seconds:.0f} s."
TOO_LONG = (
    "The run was ended after {seconds:.0f} s, the limit for one run here. What came until then is"
    " above."
)
PAGE_FAILED = (
    "The page itself failed ({reason}). Run again; if it comes back, the server's log says more."
)
ENGINE_DIED = (
    "The engine stopped unexpectedly ({reason}). It is being started again: run once more in a"
    " moment."
)
NO_MEMORY = (
    "There was not enough memory for this run. Use fewer or smaller pictures, or fewer tokens."
)
RUN_FAILED = (
    "The run failed: {reason}. What came until then stays; run again, or change the settings."
)
ENGINE_NO_START = "The engine could not be started ({reason}). Run once more in a moment."
NO_FILE = "{name} is no longer on the server. Add it again."
UPLOAD_TOO_LARGE = "A file of at most {most} MB is taken."
DISK_FULL = (
    "The disk of this machine is full: nothing can be added until older files are removed. Try"
    " again later."
)
SHARE_FULL = (
    "Your files in questions take up the {most} MB that one visitor may keep here. Close a"
    " conversation, or try again later."
)
NOT_KEPT = (
    "This machine cannot keep files: its folder for uploads cannot be written. Ask without a file."
)
NOT_FOUND = "There is nothing here."
NOT_JSON = "The body of this request must be a JSON object."
BODY_TOO_LARGE = "A request of this kind holds at most {most} bytes."
TOO_MANY_PARTS = "The request has too many parts: at most {most} lists and objects are taken."
TOO_DEEP = "The request is nested too deeply: at most {most} levels are taken."
NO_ARGUMENT = "There is no argument {name!r}. Known: {known}."
ALL_ARGUMENTS = (
    "`data` must list all {n} arguments in this order: {known}. At /call/v2/ they may be given by"
    " name."
)
NOT_UPLOADED = (
    "A file in this request was not uploaded here, or is gone. Upload it first, then ask."
)
WRONG_HOST = (
    "This page is not served under that name. Ask for it by its own address, or start it with"
    " --hosts NAME."
)
WRONG_ORIGIN = (
    "Another site may not ask in a visitor's name. Start the page with --hosts NAME to allow that"
    " site."
)
NOT_LOGGED_IN = (
    "Log in first: this page is for those who have a login (an API key is user:password)."
)
TOO_MANY_GUESSES = "Too many wrong passwords: try again in {seconds:.0f} s."
TOO_MANY_STREAMS = "Too many connections from one address: close some of the page's tabs."
NOT_SERVED = "`{name}` is not served here; leave it out."
NO_MODEL = "`model` must be the id of a pair, or pair/method; /v1/models lists them."
NO_MESSAGES = (
    "`messages` must be a list: system prompts first, then user and assistant in turns, a user's"
    " last; pictures belong to users."
)
NO_PART = "A message's content must be text, or a list of text, image_url and video_url parts."
NO_DATA_URL = (
    "Pictures and clips come as data URLs (data:image/png;base64,…); addresses are not fetched."
)
BY_STATUS = {
    400: "The request is not one that this page takes.",
    403: "There is no such file here, or it is gone.",
    404: NOT_FOUND,
    405: "This address does not take that kind of request.",
    422: "The request is not one that this page takes: a value is missing or of the wrong kind.",
    500: "The page failed on this request. If it comes back, the server's log says more.",
    503: "The page is busy or stopping. Try again in a minute.",
}
"""What is said where the web server's libraries refuse or fail."""
TOO_MUCH_TEXT = "{what} is too long: {n} characters, at most {most} are taken."
LONG_PREFIX = "The answer goes on from {n} tokens; at most {most} are taken."
NOTHING_ASKED = "Ask a question or add a picture first."
NO_PAIR = "There is no pair {name!r}. Known: {known}."
PAIRS_ELSEWHERE = "{known}; not on this machine: {others}"
NOT_HERE = "{pair} does not run on this machine: {reason}"
NO_METHOD = "There is no method {name!r}. Known: {known}."
METHODS_ELSEWHERE = "{known}; others do not run with {pair} here: ask for one to learn why"
TOO_MANY_LANES = "At most {most} methods race beside the autoregressive lane, got {n}."
TOO_MANY_FILES = "At most {most} pictures and clips fit in one question, got {n}."
TOO_MANY_SHOWN = (
    "At most {most} pictures and clips fit in one conversation, got {n}. Begin a new one."
)
WRONG_KIND = "{what} must be {wanted}, not {kind}."
TOO_MANY_TURNS = (
    "At most {most} earlier questions are remembered, got {n}. Begin a new conversation, or take an"
    " earlier question up again."
)
NOT_A_DETAIL = "The picture detail must be a number from {low} to {high}, got {value!r}."
NOT_ONE_OF = "{what} is one of {known}, got {value!r}."
ONLY_THIS_PAIR = (
    "This Space lends its GPU to the pair {pair!r} alone; other pairs need a Space of their own."
)
ONLY_THESE_WEIGHTS = (
    "This Space loads its weights before a GPU is lent: precision and packing are those it was"
    " started with."
)
ONLY_THESE_DRAFTERS = (
    "This Space loads its drafters before a GPU is lent, and this one is not among them: {roles}."
)
ONLY_SO_MANY = (
    "Without an account this Space lends its GPU for {seconds} s, which is room for {n} of the"
    " {asked} tokens. Sign in to Hugging Face for more, or race fewer methods."
)
SHARING = "Another race is being written into a file. Try again in a moment."
NOT_SHARED = "This race has more than 8 MB: download its trace instead."
