"""The key that encrypts reasoning: out of the environment, out of a file, or for this process."""

import pwd
import stat
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragoman.core.item import Reasoning, Thought
from dragoman.server.config import ConfigurationError
from dragoman.server.settings import Settings
from dragoman.server.state.service import FILE, file_key, open_cipher, open_memory

THOUGHT = Reasoning((Thought("Hm."),))


def test_key_of_the_environment_decrypts_on_every_server() -> None:
    settings, environ = Settings(encryption_key_env="KEY"), {"KEY": " a key of sixteen or more "}
    blob = open_cipher(settings, environ).encrypt(THOUGHT, "ada", "m")
    assert open_cipher(settings, environ).decrypt(blob, "ada", "m") == THOUGHT
    other = open_cipher(settings, {"KEY": "quite another key of sixteen"})
    assert not other.is_ours(blob)


@pytest.mark.parametrize("value", [None, "", "too short"])
def test_empty_key_variable_is_an_error(value) -> None:
    environ = {} if value is None else {"KEY": value}
    with pytest.raises(ConfigurationError, match="KEY") as raised:
        open_memory(Settings(store="memory", encryption_key_env="KEY"), environ)
    assert value is None or not value or value not in str(raised.value)


def test_a_file_is_made_when_needed_and_read_from_then_on(tmp_path) -> None:
    environ, path = {"XDG_DATA_HOME": str(tmp_path)}, tmp_path / "dragoman" / FILE
    cipher = open_cipher(Settings(), environ)
    assert not path.exists()
    blob = cipher.encrypt(THOUGHT, "ada", "m")
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert open_cipher(Settings(), environ).decrypt(blob, "ada", "m") == THOUGHT


def test_servers_that_make_the_file_together_have_one_key(tmp_path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: file_key(tmp_path / FILE)(), range(32)))
    assert len(set(keys)) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_place_for_it_the_key_lives_as_long_as_the_process(tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    cipher = open_cipher(Settings(), {"XDG_DATA_HOME": str(tmp_path / "file")})
    assert cipher.decrypt(cipher.encrypt(THOUGHT, "", "m"), "", "m") == THOUGHT
    (tmp_path / FILE).write_bytes(b"cut")
    assert len(file_key(tmp_path / FILE)()) == 32


def test_user_without_a_home_directory_has_a_key(monkeypatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", dict[int, object]().__getitem__)
    cipher = open_cipher(Settings(), {})
    assert cipher.decrypt(cipher.encrypt(THOUGHT, "", "m"), "", "m") == THOUGHT


def test_a_server_whose_memory_is_its_process_writes_no_file(tmp_path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    cipher = open_cipher(Settings(store="memory"), environ)
    assert cipher.is_ours(cipher.encrypt(THOUGHT, "", "m"))
    assert list(tmp_path.iterdir()) == []


async def test_store_has_a_cipher_and_no_store_has_none(tmp_path) -> None:
    memory = open_memory(Settings(store=f"sqlite:{tmp_path / 'store.db'}"), {})
    assert memory.cipher is not None
    await memory.close()
    assert open_memory(Settings(store="none"), {}) is None
