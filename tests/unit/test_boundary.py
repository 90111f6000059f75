"""Who may import what: the code right of the noise cannot reach people's data, and each special thing has one home."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import ROOT

from heathaze.collect.private import PrivateTables
from heathaze.schemas import PUBLIC
from heathaze.tables import Tables

LIBRARY = ROOT / "lib" / "heathaze"
RIGHT_OF_THE_NOISE = ("learn", "release", "evaluate")
PRIVATE_NAMES = sorted(PrivateTables.schemas.keys() - PUBLIC.keys())

MAY_IMPORT_DELTALAKE = {"tables.py", "evaluate/synthetic.py"}
MAY_IMPORT_DELTA = {"session.py", "tables.py", "collect/events.py"}
MAY_IMPORT_HOROVOD = {"learn/distributed.py"}
MAY_DRAW = {"collect/entropy.py"}
MAY_WAIT_AT_RANDOM = {"collect/ledger.py"}
"""The ledger spreads its retries with the module random; no noise is drawn there."""

SOURCES = {path.relative_to(LIBRARY).as_posix(): path.read_text() for path in sorted(LIBRARY.rglob("*.py"))}


def right_of_the_noise() -> dict[str, str]:
    return {
        file: text for file, text in SOURCES.items() if file.startswith(tuple(f"{package}/" for package in RIGHT_OF_THE_NOISE))
    }


def imports(file: str, text: str) -> Iterator[str]:
    """Full names of the modules and names that a file imports, relative imports resolved, and of those it loads by a string."""
    package = ["heathaze", *Path(file).parent.parts]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__", "find_spec", "run_module"):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            if names and isinstance(names[0], str):
                yield f"heathaze{names[0]}" if names[0].startswith(".") else names[0]


def called(node: ast.Call) -> str:
    """The last name of what is called: read for tables.read(...)."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def texts(text: str) -> Iterator[str]:
    """The string constants of a file that are no docstrings."""
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def reaches_the_private_side(file: str, text: str) -> bool:
    """Whether a file imports heathaze.collect in any way, or holds its name in a string."""
    return any(is_within(name, "heathaze.collect") for name in imports(file, text)) or any(
        "heathaze.collect" in s for s in texts(text)
    )


def names_a_private_table(file: str, text: str) -> bool:
    """Whether a file asks a method of Tables for a private table, names their class, or spells their place."""
    methods = {name for name in vars(Tables) if not name.startswith("_")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in methods:
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(isinstance(argument, ast.Constant) and argument.value in PRIVATE_NAMES for argument in arguments):
                return True
        if "PrivateTables" in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", "")):
            return True
    return any(re.search(r"(^|/)private(/|$)|_private\b", s) for s in texts(text))


def draws_randomness(file: str, text: str) -> bool:
    """Whether a file has a source of randomness other than the module random."""
    sources = ("secrets", "cryptography", "numpy.random", "os.urandom", "os.getrandom", "torch", "scipy.stats")
    if any(is_within(name, source) for name in imports(file, text) for source in sources):
        return True
    names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    calls = {called(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}
    of_numpy = re.search(r"\b(np|numpy)\.random\b", ast.unparse(ast.parse(text)))
    of_spark = re.search(r"\b(rand|randn|uuid)\(\)", " ".join(texts(text)))
    return bool(
        names & {"urandom", "getrandom", "SystemRandom", "default_rng"}
        or calls & {"AES", "rand", "randn"}
        or of_numpy
        or of_spark
    )


def uses_module_random(file: str, text: str) -> bool:
    return any(is_within(name, "random") for name in imports(file, text))


def importing(module: str) -> Callable[[str, str], bool]:
    return lambda file, text: any(is_within(name, module) for name in imports(file, text))


def files_where(rule: Callable[[str, str], bool], sources: dict[str, str] = SOURCES) -> set[str]:
    return {file for file, text in sources.items() if rule(file, text)}


def test_every_package_of_the_library_was_looked_at():
    packages = {Path(file).parts[0] for file in SOURCES if "/" in file}
    assert {"collect", *RIGHT_OF_THE_NOISE} <= packages
    assert len(SOURCES) > 15 and "evaluate/synthetic.py" in right_of_the_noise()


def test_nothing_right_of_the_noise_imports_the_private_side():
    assert files_where(reaches_the_private_side, right_of_the_noise()) == set()


@pytest.mark.parametrize(
    "text",
    [
        "import heathaze.collect",
        "import heathaze.collect.private as p",
        "from heathaze import collect",
        "from heathaze.collect import private",
        "from heathaze.collect.private import PrivateTables",
        "from .. import collect",
        "from ..collect import private",
        "from ..collect.private import PrivateTables",
        "def f():\n    from heathaze.collect.events import read_source",
        "import importlib\nimportlib.import_module('heathaze.collect.private')",
        "from importlib import import_module\nimport_module('.collect.private', 'heathaze')",
        "__import__('heathaze.collect')",
        "name = 'heathaze.collect' + '.private'",
    ],
)
def test_the_check_sees_every_way_to_import_the_private_side(text):
    assert reaches_the_private_side("learn/x.py", text)


@pytest.mark.parametrize(
    "text",
    [
        "import collections",
        "from collections.abc import Callable",
        "from heathaze import tables",
        '"""Not heathaze.collect."""',
        "import gc",
    ],
)
def test_the_check_lets_other_imports_pass(text):
    assert not reaches_the_private_side("learn/x.py", text)


def test_a_module_of_the_private_side_would_be_caught_right_of_the_noise():
    assert reaches_the_private_side("learn/pipeline.py", SOURCES["collect/pipeline.py"])
    assert names_a_private_table("learn/pipeline.py", SOURCES["collect/pipeline.py"])


def test_nothing_right_of_the_noise_names_a_private_table():
    assert files_where(names_a_private_table, right_of_the_noise()) == set()


@pytest.mark.parametrize(
    "text",
    [
        "tables.read('sample', spark)",
        "tables.address(name='histogram')",
        "PrivateTables('x')",
        "private.PrivateTables('x')",
        "spark.read.load(root + '/private/sample')",
        "spark.table(f'{catalog}.city_private.sample')",
    ],
)
def test_the_check_sees_a_private_table_that_is_named(text):
    assert names_a_private_table("learn/x.py", text)


@pytest.mark.parametrize("place", ["some/folder", "catalog.schema"])
@pytest.mark.parametrize("name", [*PRIVATE_NAMES, *(f"private/{name}" for name in PRIVATE_NAMES), "../private/sample", "events"])
def test_the_tables_that_any_stage_may_read_have_no_name_for_a_private_one(place, name):
    tables = Tables(place)
    with pytest.raises(KeyError):
        tables.address(name)
    with pytest.raises(KeyError):
        tables.exists(name)


def test_there_are_private_tables_and_they_lie_apart_from_the_others():
    assert PRIVATE_NAMES == ["counters", "histogram", "sample"]
    for place in ("some/folder", "catalog.schema"):
        everything = PrivateTables(place)
        public = {Tables(place).address(name) for name in PUBLIC}
        private = {everything.address(name) for name in PRIVATE_NAMES}
        assert len(public | private) == len(PUBLIC) + len(PRIVATE_NAMES)
        assert all("private" in address for address in private) and not any("private" in address for address in public)
        assert {everything.address(name) for name in PUBLIC} == public


def test_one_file_of_the_private_side_draws_randomness():
    private = {file: text for file, text in SOURCES.items() if file.startswith("collect/")}
    assert files_where(draws_randomness, private) == MAY_DRAW
    assert files_where(uses_module_random, private) <= MAY_WAIT_AT_RANDOM


@pytest.mark.parametrize(
    "text",
    [
        "import secrets",
        "from os import urandom",
        "import os\nos.urandom(32)",
        "import numpy as np\nnp.random.laplace(0, 1)",
        "from numpy.random import default_rng",
        "import numpy\nrng = numpy.random.default_rng()",
        "from cryptography.hazmat.primitives.ciphers.algorithms import AES",
        "from pyspark.sql import functions as F\nF.rand()",
        "events.orderBy(F.expr('rand()'))",
        "import random\nrandom.SystemRandom()",
    ],
)
def test_the_check_sees_every_source_of_randomness(text):
    assert draws_randomness("collect/x.py", text)


def test_the_retries_of_the_ledger_are_the_only_other_use_of_chance():
    """uuid4 names an entry and random.uniform spreads retries: neither touches a count."""
    tree = ast.parse(SOURCES["collect/ledger.py"])
    of_random = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "random"
    }
    assert of_random <= {"uniform"}


@pytest.mark.parametrize(
    ("module", "allowed", "needed"),
    [
        ("deltalake", MAY_IMPORT_DELTALAKE, {"tables.py"}),
        ("delta", MAY_IMPORT_DELTA, {"session.py"}),
        ("horovod", MAY_IMPORT_HOROVOD, set()),
    ],
)
def test_a_library_that_must_stay_replaceable_is_imported_in_its_place_only(module, allowed, needed):
    found = files_where(importing(module))
    assert needed <= found <= allowed


IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    module = importlib.import_module(package)
    names = [package, *(found.name for found in pkgutil.walk_packages(module.__path__, package + "."))]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
            print("imported", name)
print("reached", *sorted(name for name in sys.modules if name.startswith("heathaze.collect")))
"""


def modules_reached_from(*packages: str) -> tuple[set[str], set[str]]:
    """What a fresh process imports from these packages, and what of the private side came with it."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, *packages], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[1] for line in lines if line[0] == "imported"}, {
        name for line in lines if line[0] == "reached" for name in line[1:]
    }


def test_importing_everything_right_of_the_noise_brings_nothing_of_the_private_side():
    imported, reached = modules_reached_from(*(f"heathaze.{package}" for package in RIGHT_OF_THE_NOISE))
    assert reached == set()
    expected = {
        f"heathaze.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}" for file in right_of_the_noise()
    }
    assert imported >= {name for name in expected if not name.endswith("__main__")}


def test_importing_the_private_side_is_seen_by_the_same_look():
    _, reached = modules_reached_from("heathaze.collect")
    assert {"heathaze.collect", "heathaze.collect.private", "heathaze.collect.entropy"} <= reached
