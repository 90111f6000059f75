"""`heathaze collect` killed with -9 at its steps and at random moments, and run twice at once: one charge, one noisy table."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest
from tests.e2e.nights import Night, assert_collected_once, make_night

from heathaze import cli
from heathaze.collect import pipeline
from heathaze.collect.entropy import KeyStore, NoiseKey
from heathaze.collect.private import PrivateTables
from heathaze.schemas import SCHEMA_VERSION

pytestmark = pytest.mark.timeout(900)

STEPS = ["starting Spark", "charging the ledger", "checking the bound", "drawing noise"]
"""Where the chain is cut: each leaves the tables in another state, from nothing at all to noise that is not committed."""


@dataclass(frozen=True)
class Chain:
    """A night that was killed at every step and then allowed to finish."""

    night: Night
    exit_code: int
    was_committed: bool
    """Whether the last kill came too late to find the noise uncommitted."""
    orphans: list[Path]
    """Files of noise that the last kill left behind."""
    secret: bytes
    """The noise key that the last kill left behind."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory, start, command) -> Chain:
    night = make_night(tmp_path_factory.mktemp("chain"))
    for step in STEPS:
        run = start(*night.arguments("collect"))
        run.wait_for_step(step)
        if step == "drawing noise":
            run.wait_until(lambda: len(night.noise_files()) > 0)
        run.kill()
        assert len(night.entries() if night.tables.exists() else []) <= 1
    [entry] = night.entries()
    secret = (night.keys / entry.entry).read_bytes()
    was_committed, orphans = night.is_noise_committed(), night.noise_files()
    return Chain(night, command(*night.arguments("collect")), was_committed, orphans, secret)


def test_a_night_killed_at_every_step_is_charged_once_and_released_once(chain):
    assert chain.exit_code == 0
    assert_collected_once(chain.night)


def test_files_left_by_a_kill_hold_the_released_rows_and_nothing_else(chain):
    released = chain.night.noisy()
    committed = {Path(file).name for file in deltalake.DeltaTable(str(chain.night.tables / "noisy")).file_uris()}
    orphans = [file for file in chain.orphans if file.name not in committed]
    assert orphans or chain.was_committed
    for file in orphans:
        rows = pq.ParquetFile(file).read().drop_columns(["starts_at"]).to_pylist()
        assert rows
        for row in rows:
            assert row == {name: released[row["slice"]][name] for name in row}


def test_no_file_holds_the_key_of_a_released_night(chain):
    assert len(chain.secret) == 32
    assert not [name for name, content in chain.night.contents().items() if chain.secret in content]


def test_a_released_night_that_is_run_again_changes_no_byte(chain, command, capsys):
    before = chain.night.contents()
    assert command(*chain.night.arguments("collect")) == 0
    assert "charged nothing" in capsys.readouterr().out
    assert chain.night.contents() == before


def test_a_run_that_another_overtakes_before_it_takes_the_key_ends_well(chain, command, monkeypatch):
    """The other run commits its noise and destroys the key after this one has looked for a release and seen none."""
    asked, is_released, key_of = [], pipeline.is_released, KeyStore.key_of

    def key_of_overtaken(store: KeyStore, entry: str) -> NoiseKey:
        asked.append(entry)
        return key_of(store, entry)

    monkeypatch.setattr(KeyStore, "key_of", key_of_overtaken)
    monkeypatch.setattr(pipeline, "is_released", lambda night, entry: bool(asked) and is_released(night, entry))
    assert command(*chain.night.arguments("collect")) == 0
    assert asked


def test_two_runs_at_once_of_which_one_is_killed_again_and_again_make_one_release(tmp_path, start):
    night, moments = make_night(tmp_path), random.Random(7)
    steady = start(*night.arguments("collect"))
    for _ in range(2):
        killed = start(*night.arguments("collect"))
        killed.wait_for_step("charging the ledger")
        time.sleep(moments.uniform(0, 10))
        killed.kill()
    last = start(*night.arguments("collect"))
    assert (steady.finish(), last.finish()) == (0, 0), (steady.shown.decode(), last.shown.decode())
    assert_collected_once(night)


def test_counters_are_written_although_another_run_begins_their_table_at_the_same_moment(tmp_path, monkeypatch):
    """Two processes that create a table at once can leave its metadata in two commits, the second one after this run looked."""
    tables, write = PrivateTables(str(tmp_path)), deltalake.write_deltalake

    def write_overtaken(table: deltalake.DeltaTable, *rest: Any, **settings: Any) -> None:
        monkeypatch.setattr(deltalake, "write_deltalake", write)
        deltalake.DeltaTable(tables.address("counters")).alter.set_table_description(f"heathaze, schema version {SCHEMA_VERSION}")
        write(table, *rest, **settings)

    monkeypatch.setattr(deltalake, "write_deltalake", write_overtaken)
    tables.append_rows_once("counters", [{"entry": "e", "name": "rows", "value": 1}], token="e:rows")
    assert tables.load("counters").num_rows == 1


@pytest.mark.parametrize("what", ["noise keys must be kept in a folder", "the ledger"])
def test_a_place_that_cannot_be_written_is_a_mistake_that_is_named(tmp_path, command, capsys, what):
    place = tmp_path / "policy.toml" / "tables"
    night = replace(make_night(tmp_path), tables=place)
    keys = tmp_path / "keys" if what == "the ledger" else place / "private" / "keys"
    assert command(*night.arguments("collect"), "--keys", str(keys)) == 1
    shown = capsys.readouterr()
    assert f"InputError: {what}" in shown.err and str(place) in shown.err
    assert "Traceback" not in shown.err and shown.out == ""


def test_a_place_that_is_a_file_is_refused_before_spark_starts(tmp_path, capsys):
    night = replace(make_night(tmp_path), tables=tmp_path / "policy.toml")
    assert cli.main(night.arguments("collect")) == 1
    shown = capsys.readouterr().err
    assert "must name a folder or catalog.schema" in shown and "starting Spark" not in shown
