"""The Databricks bundle, checked offline: it parses, everything it names exists, and its tasks run here in its order."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import sys
from datetime import date
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job
from pyspark.sql import SparkSession
from tests.conftest import ROOT

from heathaze.evaluate.synthetic import City, synthesize
from heathaze.release.publish import releases
from heathaze.tables import Tables

BUNDLE = yaml.safe_load((ROOT / "databricks.yml").read_text())
RESOURCE = ROOT / "conf" / "bundle" / "nightly_release.job.yml"
JOB = yaml.safe_load(RESOURCE.read_text())["resources"]["jobs"]["nightly_release"]
VERBS = ["gate_events", "bound", "count", "noise", "denoise", "refine", "gate_release", "publish"]


def _values(target: str) -> dict[str, str]:
    """Every variable of the bundle as it is in a target."""
    values = {name: about.get("default") for name, about in BUNDLE["variables"].items()}
    return {f"var.{name}": str(value) for name, value in {**values, **BUNDLE["targets"][target].get("variables", {})}.items()}


def _resolved(value: Any, known: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, known) for item in value]
    if not isinstance(value, str):
        return value
    for name, text in known.items():
        value = value.replace("${" + name + "}", text).replace("{{" + name + "}}", text)
    return value


def _job_module(task: dict[str, Any]) -> ModuleType:
    path = (RESOURCE.parent / task["spark_python_task"]["python_file"]).resolve()
    assert path.is_file(), f"{task['task_key']} names {path.name}, which does not exist"
    spec = importlib.util.spec_from_file_location(f"job_{task['task_key']}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["dev", "staging", "prod"])
def test_the_job_parses_and_every_variable_resolves(target: str) -> None:
    known = {**_values(target), "workspace.file_path": "/Workspace/heathaze"}
    resolved = _resolved(JOB, known)
    left = re.findall(r"\$\{[^}]+\}", yaml.safe_dump(resolved))
    assert not left, f"unresolved in {target}: {left}"
    assert all(value != "None" for value in known.values()), f"a variable has no value in {target}"
    numbers = _with_numbers(resolved)
    job = Job.from_dict(numbers)
    assert [task.task_key for task in job.tasks] == VERBS  # type: ignore[union-attr]


def test_tasks_clusters_files_and_arguments_exist() -> None:
    clusters = {cluster["job_cluster_key"] for cluster in JOB["job_clusters"]}
    keys = [task["task_key"] for task in JOB["tasks"]]
    assert keys == VERBS
    for task in JOB["tasks"]:
        assert task["job_cluster_key"] in clusters
        assert all(one["task_key"] in keys for one in task.get("depends_on", []))
        assert task["timeout_seconds"] > 0
        parsed = _job_module(task).parser().parse_args(task["spark_python_task"]["parameters"])
        assert parsed.period == "{{job.parameters.period}}"
    for cluster in JOB["job_clusters"]:
        for script in cluster["new_cluster"].get("init_scripts", []):
            destination = script["workspace"]["destination"].replace("${workspace.file_path}", str(ROOT))
            assert os.access(destination, os.X_OK)


def test_noise_is_never_retried_and_training_has_the_gpus() -> None:
    tasks = {task["task_key"]: task for task in JOB["tasks"]}
    assert tasks["noise"]["max_retries"] == 0
    assert tasks["gate_release"]["max_retries"] == 0
    assert [key for key, task in tasks.items() if task["job_cluster_key"] == "train"] == ["denoise"]
    public = [key for key, task in tasks.items() if not any("--events" in p for p in task["spark_python_task"]["parameters"])]
    assert public == ["count", "noise", "denoise", "refine", "gate_release", "publish"]
    assert all("--keys" not in " ".join(tasks[key]["spark_python_task"]["parameters"]) for key in public[2:])


def test_production_runs_as_a_service_principal_and_has_no_secret() -> None:
    assert BUNDLE["targets"]["prod"]["run_as"]["service_principal_name"]
    assert BUNDLE["targets"]["prod"]["mode"] == "production"
    text = (ROOT / "databricks.yml").read_text() + RESOURCE.read_text()
    assert not re.search(r"(?i)(token|password|secret)\s*[:=]|dapi[0-9a-f]{8}", text)


def test_the_task_graph_runs_to_a_published_release(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is a program of its own in the session that is there, as on Databricks."""
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")

    day = "2026-11-13"
    synthesize(City(users=300, events_per_user=8, first_day=date.fromisoformat(day)), tmp_path / "events")
    policy = (ROOT / "conf" / "demo.toml").read_text()
    (tmp_path / "workspace" / "conf").mkdir(parents=True)
    (tmp_path / "workspace" / "conf" / "nightly.toml").write_text(
        policy.replace("rows = 144", "rows = 48").replace("cols = 144", "cols = 48").replace("cells = 400_000", "cells = 40_000")
    )
    known = {
        **_values("dev"),
        "var.events": str(tmp_path / "events"),
        "var.tables": str(tmp_path / "tables"),
        "var.files": str(tmp_path / "files"),
        "var.keys": str(tmp_path / "keys"),
        "workspace.file_path": str(tmp_path / "workspace"),
        "job.parameters.period": "before:2026-11-14",
    }
    tasks = {task["task_key"]: task for task in _resolved(JOB, known)["tasks"]}
    graph = {key: {one["task_key"] for one in task.get("depends_on", [])} for key, task in tasks.items()}
    for key in TopologicalSorter(graph).static_order():
        what = tasks[key]["spark_python_task"]
        file = (RESOURCE.parent / what["python_file"]).resolve()
        monkeypatch.setattr(sys, "argv", [str(file), *what["parameters"]])
        runpy.run_path(str(file), run_name="__main__")  # a task that fails exits
    published = releases(Tables(str(tmp_path / "tables")))
    assert [one.period for one in published] == [day]
    assert (tmp_path / "files" / "releases" / published[0].release / "report.html").exists()


def _with_numbers(value: Any) -> Any:
    """Variables are text; the workflow's numbers are numbers."""
    if isinstance(value, dict):
        return {key: int(item) if key == "num_workers" else _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value
