from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from heathaze.collect.entropy import KeyStore, NoiseKey
from heathaze.errors import KeyDestroyed

ENTRY = "0123456789abcdef"
PROCESSES = 4
PRELOADED = [
    "heathaze.cli",
    "heathaze.collect.entropy",
    "heathaze.collect.ledger",
    "pyarrow.dataset",
    "deltalake.fs",
    "pyspark.sql",
    "pytest",
]
"""What the server of processes imports once, for all tests of a run that start processes."""


def secret_of(key: NoiseKey) -> bytes:
    return key._secret


def files_holding(secret: bytes, directory: Path) -> list[str]:
    return [file.name for file in directory.iterdir() if secret in file.read_bytes()]


def test_an_entry_has_one_key_for_every_run(tmp_path):
    first = secret_of(KeyStore(tmp_path / "keys").key_of(ENTRY))
    assert len(first) == 32
    assert secret_of(KeyStore(tmp_path / "keys").key_of(ENTRY)) == first
    assert secret_of(KeyStore(str(tmp_path / "keys")).key_of(ENTRY)) == first


def test_another_entry_or_another_place_has_another_key(tmp_path):
    keys = [KeyStore(tmp_path / place).key_of(entry) for place in ("a", "b") for entry in (ENTRY, "f" * 16)]
    assert len({secret_of(key) for key in keys}) == 4


def test_only_the_owner_can_read_a_key_and_see_the_directory(tmp_path):
    old = os.umask(0)
    try:
        KeyStore(tmp_path / "keys").key_of(ENTRY)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "keys" / ENTRY).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_nothing_but_the_key_is_left_in_the_directory(tmp_path):
    KeyStore(tmp_path).key_of(ENTRY)
    KeyStore(tmp_path).key_of(ENTRY)
    assert os.listdir(tmp_path) == [ENTRY]
    assert (tmp_path / ENTRY).stat().st_nlink == 1


def test_a_destroyed_key_cannot_be_had_or_drawn_again(tmp_path):
    store = KeyStore(tmp_path)
    secret = secret_of(store.key_of(ENTRY))
    store.destroy(ENTRY)
    for again in (store, KeyStore(tmp_path)):
        with pytest.raises(KeyDestroyed, match=f"the noise key of entry {ENTRY} must not be used again: it was destroyed"):
            again.key_of(ENTRY)
    assert files_holding(secret, tmp_path) == []
    assert os.listdir(tmp_path) == [ENTRY]


def test_an_error_about_a_destroyed_key_does_not_show_it(tmp_path):
    store = KeyStore(tmp_path)
    secret = secret_of(store.key_of(ENTRY))
    store.destroy(ENTRY)
    with pytest.raises(KeyDestroyed) as caught:
        store.key_of(ENTRY)
    assert secret.hex() not in str(caught.value) and repr(secret)[2:10] not in str(caught.value)


def test_a_key_destroyed_before_it_was_drawn_is_never_drawn(tmp_path):
    store = KeyStore(tmp_path / "keys")
    store.destroy(ENTRY)
    with pytest.raises(KeyDestroyed):
        store.key_of(ENTRY)


def test_destroying_twice_is_destroying_once(tmp_path):
    store = KeyStore(tmp_path)
    store.key_of(ENTRY)
    store.destroy(ENTRY)
    store.destroy(ENTRY)
    with pytest.raises(KeyDestroyed):
        store.key_of(ENTRY)


def test_destroying_one_key_leaves_the_others(tmp_path):
    store = KeyStore(tmp_path)
    kept = secret_of(store.key_of("kept"))
    store.key_of(ENTRY)
    store.destroy(ENTRY)
    assert secret_of(store.key_of("kept")) == kept


def test_a_file_that_a_crash_tore_is_no_key(tmp_path):
    """The process died while it wrote: half a key in a file of its own, and no key yet."""
    (tmp_path / f".{ENTRY}.4242.00000000").write_bytes(b"half a key")
    key = secret_of(KeyStore(tmp_path).key_of(ENTRY))
    assert len(key) == 32 and not key.startswith(b"half a key")
    assert secret_of(KeyStore(tmp_path).key_of(ENTRY)) == key


def test_a_key_that_another_process_stores_first_is_the_one_that_is_used(tmp_path, monkeypatch):
    link, others = os.link, []

    def overtaken(source: Path, target: Path) -> None:
        if not others:
            others.append(b"")  # the other process does not meet a third one
            others[0] = secret_of(KeyStore(tmp_path).key_of(ENTRY))
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    assert secret_of(KeyStore(tmp_path).key_of(ENTRY)) == others[0] != b""
    assert os.listdir(tmp_path) == [ENTRY]


def test_a_key_destroyed_while_another_process_draws_it_stays_destroyed(tmp_path, monkeypatch):
    link = os.link

    def overtaken(source: Path, target: Path) -> None:
        KeyStore(tmp_path).destroy(ENTRY)
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    with pytest.raises(KeyDestroyed):
        KeyStore(tmp_path).key_of(ENTRY)
    assert os.listdir(tmp_path) == [ENTRY]


class Crash(BaseException):
    """The process ends here; what follows, clean-up included, does not happen."""


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    def crash(*_: object, **__: object) -> None:
        raise Crash

    monkeypatch.setattr(owner, name, crash)


def test_a_key_is_gone_after_destroy_even_if_a_crash_left_its_temporary_file(tmp_path, monkeypatch):
    """The process died between linking the key into place and removing the name it was written under."""
    with monkeypatch.context() as patched:
        crash_at(patched, Path, "unlink")
        with pytest.raises(Crash):
            KeyStore(tmp_path).key_of(ENTRY)
    store = KeyStore(tmp_path)
    secret = secret_of(store.key_of(ENTRY))
    store.destroy(ENTRY)
    assert files_holding(secret, tmp_path) == []


def test_a_crash_before_the_key_is_in_place_leaves_an_entry_without_a_key(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        crash_at(patched, Path, "unlink")
        crash_at(patched, os, "link")
        with pytest.raises(Crash):
            KeyStore(tmp_path).key_of(ENTRY)
    [orphan] = [file.read_bytes() for file in tmp_path.iterdir()]
    assert secret_of(KeyStore(tmp_path).key_of(ENTRY)) != orphan


def test_a_crash_while_destroying_leaves_the_same_key_to_the_next_run(tmp_path, monkeypatch):
    secret = secret_of(KeyStore(tmp_path).key_of(ENTRY))
    with monkeypatch.context() as patched:
        crash_at(patched, os, "replace")
        with pytest.raises(Crash):
            KeyStore(tmp_path).destroy(ENTRY)
    assert secret_of(KeyStore(tmp_path).key_of(ENTRY)) == secret


def test_a_file_of_the_wrong_length_is_no_key(tmp_path):
    (tmp_path / ENTRY).write_bytes(b"too short")
    with pytest.raises(ValueError, match="32 bytes"):
        KeyStore(tmp_path).key_of(ENTRY)


def draw_together(directory: str, entries: list[str], gate: object, results: object) -> None:
    """In a process of its own: wait for the others before each entry, then ask for its key."""
    store, found = KeyStore(directory), []
    for entry in entries:
        gate.wait(60)
        found.append(secret_of(store.key_of(entry)))
    results.put(found)


def test_processes_that_ask_at_once_get_one_key(tmp_path):
    context = multiprocessing.get_context("forkserver")  # fresh processes as with spawn, but what they import is imported once
    context.set_forkserver_preload(PRELOADED)
    gate, results = context.Barrier(PROCESSES), context.Queue()
    entries = [f"entry{i:03d}" for i in range(100)]
    workers = [context.Process(target=draw_together, args=(str(tmp_path), entries, gate, results)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert all(keys == found[0] for keys in found)
    assert len(set(found[0])) == len(entries)
    assert sorted(os.listdir(tmp_path)) == entries
