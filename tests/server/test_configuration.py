"""dragoman.toml: what it may say, and that whatever is wrong is said with line and field."""

from typing import get_args, get_type_hints

import pytest
from msgspec import Meta

from dragoman.core.interfaces import Secret
from dragoman.engines.find_format import NAMES
from dragoman.engines.profiles import BY_NAME
from dragoman.server.config import (
    LONGEST,
    Configuration,
    ConfigurationError,
    Upstream,
    load,
    read,
    with_keys,
)
from dragoman.server.settings import DIALECTS, Settings
from dragoman.wire.registry import WIRES

EVERYTHING = """
# A comment with [brackets] = and more
[server]
host = "0.0.0.0"
port = 9000
workers = 2
backlog = 100
keep_alive = 30
api_key_env = ["A_KEY"]
allowed_hosts = ["my.box"]
cors_origins = ["https://app.example"]
body_limit = 1_000
max_json_values = 1
min_rate = 1
max_items = 2
max_parts = 3
max_tools = 4
max_stop = 5
max_logit_bias = 6
max_choices = 7
max_inputs = 8
max_metadata = 9
max_metadata_bytes = 10
history_items = 70_000
memory = 5_000
answer_limit = 6_000
header_limit = 2_000
read_time = 3
concurrency = 4
queue = 0
background = 5
background_queue = 6
share = 0.25
queue_time = 6.5
deadline = 7
header_hold = 8
heartbeat = 9
heartbeat_data = ["agent"]
stall = 10
drain = 0
request_log = true
log_format = "json"
store = "memory"
pubsub = "redis://news.example"
retention = 100.0
log_retention = 50.0
max_responses = 10
max_responses_per_key = 5
max_conversations = 20
conversation_items = 30
max_file_bytes = 31
max_files_per_key = 32
max_file_bytes_per_key = 33
max_vector_stores_per_key = 34
max_vector_store_chunks = 35
audio_limit = 36
speech = "espeak-ng=de"
speech_key_env = "SPEECH_KEY"
transcription = "https://speech.example/v1 whisper"
transcription_key_env = "TRANSCRIPTION_KEY"
speech_detection = "energy"
embedding_model = "small"
conversation_bytes = 4000
store_time = 2.0
max_sockets_per_key = 3
session_audio = 2_000_000
max_calls = 8
call_host = "192.0.2.1"
inherit_instructions = true
lease = 5.0
requeue = true
encryption_key_env = "A_KEY"
reasoning_cache = 1000
reasoning_retry = false
dialect = "open-responses"

[[upstreams]]
name = "local"
url = "http://127.0.0.1:11434/v1"
wire = "completions"
format = "hermes"

[[upstreams]]
name = "cloud"
url = "https://api.example/v1"
key_env = "CLOUD_KEY"
wire = "responses"
profile = "generic"
models = ["big", "small"]
pass_client_key = true
retries = 2
realtime = "ga"

[upstreams.aliases]
fast = "small"
"gpt 5" = "big"
"""


def test_every_setting_can_be_written() -> None:
    configuration = read(EVERYTHING)
    settings = configuration.server
    default = Settings()
    written = [n for n in Settings.__struct_fields__ if getattr(settings, n) != getattr(default, n)]
    assert set(Settings.__struct_fields__) - set(written) == {"keys"}
    assert settings.port == 9000
    assert settings.api_key_env == ("A_KEY",)
    assert configuration.upstreams == (
        Upstream(
            name="local", url="http://127.0.0.1:11434/v1", wire="completions", format="hermes"
        ),
        Upstream(
            name="cloud",
            url="https://api.example/v1",
            key_env="CLOUD_KEY",
            wire="responses",
            profile="generic",
            models=("big", "small"),
            aliases={"fast": "small", "gpt 5": "big"},
            pass_client_key=True,
            retries=2,
            realtime="ga",
        ),
    )


@pytest.mark.parametrize("wire", WIRES)
def test_upstream_may_name_every_registered_wire(wire) -> None:
    format = "format = 'hermes'" if wire == "completions" else ""
    (upstream,) = read(
        f"[[upstreams]]\nname = 'a'\nurl = 'http://b'\nwire = '{wire}'\n{format}"
    ).upstreams
    assert upstream.wire == wire


def test_an_empty_file_changes_nothing() -> None:
    assert read("") == Configuration()


@pytest.mark.parametrize("kind", [Settings, Upstream])
def test_every_setting_explains_itself(kind) -> None:
    hints = get_type_hints(kind, include_extras=True)
    hints.pop("keys", None)
    for name, hint in hints.items():
        (meta,) = [extra for extra in get_args(hint) if isinstance(extra, Meta)]
        assert (meta.description or "").endswith("."), name


def test_dialects_are_those_that_can_be_set() -> None:
    assert {Settings(dialect=name).dialect for name in ("openai", "open-responses")} == set(
        DIALECTS
    )


OTHER = "[[upstreams]]\nname = 'b'\nurl = 'http://x'"
UP = "[[upstreams]]\nname = 'a'\nurl = 'http://x'"
FORMATS = ", ".join(sorted(NAMES))
HOOK = "[[webhooks]]\nurl = 'http://me:pw@a/b'\nsecret_env = 'S'"
MISTAKES = {
    "[server]\n\nport = 'x'": "3: server.port: is a string, and must be an integer",
    "[server]\nport = 65536": "2: server.port: is 65536, and must be between 0 and 65535",
    "[server]\nport = true": "2: server.port: is a boolean, and must be an integer",
    "[server]\nheartbeat = 0": "2: server.heartbeat: is 0, and must be at least 0.1",
    "[server]\nprot = 1": "2: server.prot: is not a setting; did you mean port?",
    "[server]\nzzz = 1": "2: server.zzz: is not a setting",
    "[server]\nkeys = ['k']": "2: server.keys: is not a setting",
    "[[upstreams]]\nname = 'a'\nurl = 'http://x'\napi_key = 'k'": (
        "4: upstreams[0].api_key: is not a setting: keys are in environment variables, which "
        "key_env names"
    ),
    "[server]\nhost = 'a'\ncors_origins = [\n'a',\n1]": (
        "3: server.cors_origins[1]: is a number, and must be a string"
    ),
    "[server]\ndialect = 'x'": (
        "2: server.dialect: is 'x', and must be one of open-responses, openai"
    ),
    "[servr]\nport = 1": "1: servr: is not a setting; did you mean server?",
    "prot = 1": "1: prot: is not a setting",
    "[[upstreams]]\nname = 'a'\nurl = 'http://x'\napi_key_env = 'X'": (
        "4: upstreams[0].api_key_env: is for the clients' keys, under [server]; here key_env names "
        "the variable"
    ),
    "port = 1": "1: port: belongs under [server]",
    "\nretries = 1": "2: retries: belongs under [[upstreams]]",
    "[server]\nurl = 'x'": "2: server.url: belongs under [[upstreams]]",
    "server = 1": "1: server: is a number, and must be an object",
    "\nserver.port = 'x'": "2: server.port: is a string, and must be an integer",
    "server = { port = 'x' }": "1: server.port: is a string, and must be an integer",
    "[[upstreams]]\nname = 'a'\nurl = 'http://b'\n\n[[upstreams]]\nname = 'b'": (
        "5: upstreams[1].url: is missing"
    ),
    "[[upstreams]]\nname = ''\nurl = 'http://b'\nrealtime = 'gaa'": (
        "4: upstreams[0].realtime: is 'gaa', and must be one of beta, ga"
    ),
    "[[upstreams]]\nname = ''\nurl = 'http://b'\nwire = 'smoke'": (
        "4: upstreams[0].wire: is 'smoke', and must be one of "
        "auto, chat, completions, messages, responses"
    ),
    "[[upstreams]]\nname = 'a'\nurl = 'http://b'\nprofile = 'olama'": (
        f"4: upstreams[0].profile: is 'olama', and must be one of {', '.join(sorted(BY_NAME))}"
        "; did you mean ollama?"
    ),
    "[[webhooks]]\nurl = 'a'\nsecret_env = 'b'\nallow = ['a.example']": (
        "4: webhooks[0].allow: has 'a.example', which is neither an address nor a network"
    ),
    "[[upstreams]]\nname = 'a'\nurl = 'http://b'\n[upstreams.aliases]\nx = 1": (
        "5: upstreams[0].aliases.x: is a number, and must be a string"
    ),
    "[[upstreams]]\nname = 'a'\nurl = 'http://b'\n\nformat = 'hermes'": (
        '5: upstreams[0].format: is for an upstream with the wire "completions"'
    ),
    "[[upstreams]]\nname = 'a'\nurl = 'http://b'\nwire = 'completions'\n": (
        "1: upstreams[0].format: is missing: over completions a model is spoken to in one of "
        f"{FORMATS}"
    ),
    "[[upstreams]]\nname = 'a'\nurl = 'http://b'\nwire = 'completions'\nformat = 'morse'": (
        f"5: upstreams[0].format: is 'morse', and must be a model's folder or one of {FORMATS}"
    ),
    "\n[server]\n[[upstream]]\nname = 'a'": (
        "3: upstream: is not a setting; did you mean upstreams?"
    ),
    "[[upstreams]]\nname = 'a'\n\nurl = 'localhost:80'": (
        "4: upstreams[0].url: the URL must begin with http:// or https://"
    ),
    f"{UP}\n{UP}": "5: upstreams[1].name: is 'a', as that of another upstream",
    f"{UP}\nmodels = ['m']\n{OTHER}\nmodels = ['n', 'm']": (
        "8: upstreams[1].models: has 'm', which a has too and would answer alone"
    ),
    f"{UP}\nmodels = ['m']\n{OTHER}\naliases = {{ m = 'n' }}": (
        "8: upstreams[1].aliases: has 'm', which a has too and would answer alone"
    ),
    f"{UP}\naliases = {{ a = 'b', b = 'a' }}": (
        "4: upstreams[0].aliases: has 'a' stand for 'b', which is an alias itself"
    ),
    f"{UP}\naliases = {{ '' = 'b' }}": "4: upstreams[0].aliases: has a name that is empty",
    f"{HOOK}\nevents = ['response.failed']\n{HOOK}": (
        "6: webhooks[1].url: is 'http://a/b', as that of another: name all events in one table"
    ),
    "[upstreams]\nname = 'a'": (
        "1: upstreams: is one table, and must be a list of them: [[upstreams]]"
    ),
    "upstreams = [1]": "1: upstreams[0]: is a number, and must be an object",
    "[server]\nport = 1\nport = 2\n[x]": "3: Cannot overwrite a value (at line 3, column 9)",
    "[server]\ndeadline = nan": "2: server.deadline: is nan, and must be a number",
    "[server\n": "1: Expected ']' at the end of a table declaration (at line 1, column 8)",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_is_reported_with_line_and_field(text) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(text)
    assert str(caught.value) == f"dragoman.toml:{MISTAKES[text]}"


def test_a_file_is_named_as_it_was_given(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[server]\nport = 'x'")
    with pytest.raises(ConfigurationError, match=r"mine\.toml:2: server\.port"):
        load(path)
    path.write_text("[server]\nport = 1")
    assert load(path).server.port == 1
    path.write_text("x =")
    with pytest.raises(ConfigurationError, match=r"mine\.toml(:1)?: Invalid value"):
        load(path)
    path.write_text("\ufeff[server]\nport = 1", encoding="utf-8")  # as Windows' Notepad writes it
    assert load(path).server.port == 1
    path.write_text(f"x = {'[' * 5_000}")
    with pytest.raises(ConfigurationError, match=r"mine\.toml is nested too deeply to be read\.$"):
        load(path)
    path.write_text(f"[server]\nport = {'1' * 5_000}")
    with pytest.raises(ConfigurationError, match=r"mine\.toml has a number that is too long"):
        load(path)
    path.write_text("#" * (LONGEST + 1))
    with pytest.raises(ConfigurationError, match="more than 1000000 characters"):
        load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load(path)
    with pytest.raises(ConfigurationError, match="No such file"):
        load(tmp_path / "none.toml")


def test_keys_come_from_the_environment() -> None:
    settings = Settings(api_key_env=("ONE", "TWO"), keys=(Secret("made"),))
    keys = with_keys(settings, {"ONE": " first ", "TWO": "second"}).keys
    assert [key.reveal() for key in keys] == ["made", "first", "second"]


@pytest.mark.parametrize("key", ["schl\u00fcssel", "\udcff", "a\x01b"])
def test_a_key_that_no_header_could_carry_is_refused_unsaid(key) -> None:
    with pytest.raises(ConfigurationError, match="in the environment variable ONE") as caught:
        with_keys(Settings(api_key_env=("ONE",)), {"ONE": key})
    assert key not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-secret", "AKIA/secret+1", "x" * 70, "my key"])
def test_a_key_in_place_of_its_variables_name_is_refused_unsaid(key) -> None:
    with pytest.raises(ConfigurationError, match="is to be given by its NAME") as caught:
        with_keys(Settings(api_key_env=(key,)), {})
    assert key not in str(caught.value)


def test_two_variables_with_the_same_key_are_named_without_it() -> None:
    environ = {"RED": "a-shared-key", "BLUE": "another-key", "GREEN": "a-shared-key "}
    with pytest.raises(ConfigurationError, match="RED and GREEN hold the same key") as refused:
        with_keys(Settings(api_key_env=("RED", "BLUE", "GREEN")), environ)
    assert "a-shared-key" not in str(refused.value)


@pytest.mark.parametrize("environ", [{}, {"ONE": ""}, {"ONE": "  "}])
def test_a_variable_without_a_key_is_named(environ) -> None:
    with pytest.raises(ConfigurationError, match="ONE"):
        with_keys(Settings(api_key_env=("ONE",)), environ)
