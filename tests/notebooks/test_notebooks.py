"""The notebooks run to their end on small real data, show something, and hold no code that belongs into the library."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tests.conftest import ROOT
from tests.e2e.nights import make_night

from heathaze.cli import main
from heathaze.evaluate.synthetic import City, synthesize

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUNS = {
    "evaluate_on_public_data.ipynb": ("synthesized", {"image/png", "text/markdown"}),
    "open_a_release.ipynb": ("released", {"image/png", "text/plain"}),
}
"""For each notebook, the fixture that makes the environment it runs in, and the kinds of output it must show."""


@pytest.fixture
def released(spark, tmp_path) -> dict[str, str]:
    """A tiny night, released."""
    night = make_night(tmp_path)
    assert main(night.arguments("release")) == 0
    return {"HEATHAZE_TABLES": str(night.tables)}


@pytest.fixture
def synthesized(tmp_path) -> dict[str, str]:
    """A small synthetic city, and a policy of few cells."""
    synthesize(City(users=500, events_per_user=10), tmp_path / "city")
    text = (ROOT / "conf" / "demo.toml").read_text().replace("= 144", "= 48")
    (tmp_path / "policy.toml").write_text(text)
    return {
        "HEATHAZE_EVENTS": str(tmp_path / "city"),
        "HEATHAZE_POLICY": str(tmp_path / "policy.toml"),
        "HEATHAZE_METHODS": "zero identity shrink",
        "HEATHAZE_EPSILONS": "0.2 2",
    }


def cells(notebook: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


def test_every_notebook_is_run_here():
    assert [notebook.name for notebook in NOTEBOOKS] == sorted(RUNS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_defines_nothing_and_sees_nothing_private(notebook):
    trees = [ast.parse(cell.source) for cell in cells(notebook)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {f"{node.module}." for node in nodes if isinstance(node, ast.ImportFrom)}
    assert any(name.startswith("heathaze.") for name in imported)
    assert not [name for name in imported if name.startswith("heathaze.collect")]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_kept_without_its_outputs(notebook):
    assert [(cell.outputs, cell.execution_count) for cell in cells(notebook)] == [([], None)] * len(cells(notebook))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_to_its_end_and_shows_something(notebook, request, tmp_path, monkeypatch):
    fixture, expected = RUNS[notebook.name]
    environment = {**request.getfixturevalue(fixture), "IPYTHONDIR": str(tmp_path / "ipython")}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    opened = nbformat.read(notebook, as_version=4)
    NotebookClient(opened, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(notebook.parent)}}).execute()
    ran = [cell for cell in opened.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in ran] == list(range(1, len(ran) + 1))
    outputs = [output for cell in ran for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    kinds = {kind for output in outputs for kind in output.get("data", {})} | {"text/plain" for o in outputs if "text" in o}
    assert expected <= kinds
    assert ran[-1].outputs, "the last cell shows something"
