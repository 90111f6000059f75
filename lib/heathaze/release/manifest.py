"""The manifest: what a release is, how it was made, what it cost, and how to check it."""

from __future__ import annotations

import hashlib
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from heathaze import __version__
from heathaze.policy import as_dict
from heathaze.release.candidate import Candidate
from heathaze.statement import promise

MANIFEST_VERSION = 1


def release_name(candidate: Candidate) -> str:
    """The same measurement under the same policy is the same release; anything else has another name."""
    identity = f"{candidate.entry}:{candidate.policy.hash}"
    return f"{candidate.policy.dataset.name}-{candidate.period.name}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def checksum(values: np.ndarray) -> str:
    """SHA-256 of one published slice, as little-endian float32."""
    return digest(np.ascontiguousarray(values, dtype="<f4").tobytes())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_manifest(candidate: Candidate, gates: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything that a reader may want to know or check, as JSON values."""
    policy, budget, grid = candidate.policy, candidate.budget, candidate.grid
    return {
        "manifest_version": MANIFEST_VERSION,
        "release": release_name(candidate),
        "dataset": policy.dataset.name,
        "period": candidate.period.name,
        "period_starts": candidate.period.start.isoformat(),
        "period_ends": candidate.period.end.isoformat(),
        "published_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "entry": candidate.entry,
        "promise": promise(policy),
        "policy": as_dict(policy),
        "policy_hash": policy.hash,
        "stages": [
            *candidate.statements,
            {"stage": "denoise", "does": _denoise_sentence(candidate), "sensitivity": "none: reads noisy tables only"},
            {"stage": "refine", "does": _refine_sentence(candidate), "sensitivity": "none: reads noisy tables only"},
        ],
        "epsilon": {
            "spent": budget.charged,
            "delta": budget.delta,
            "unit": policy.privacy.unit,
            "window": budget.window,
            "total_so_far": budget.spent,
            "left": budget.left,
            "cap": budget.cap,
        },
        "grid": {
            "south": grid.south,
            "west": grid.west,
            "north": grid.north,
            "east": grid.east,
            "rows": grid.rows,
            "cols": grid.cols,
            "row_0": "south",
            "col_0": "west",
        },
        "slices": [edge.isoformat() for edge in candidate.period.edges],
        "noise": {
            "law": "discrete Laplace",
            "scale": str(candidate.scale),
            "total_scale": str(policy.privacy.totals_scale),
            "map_scale": None if policy.privacy.map_scale is None else str(policy.privacy.map_scale),
            "block": candidate.side,
        },
        "noisy_sample_size": candidate.sample_size,
        "event_count": candidate.event_count,
        "event_count_is": "declared" if policy.privacy.declared_event_count is not None else "measured, with noise",
        "refinement": {name: value for name, value in candidate.refinement.items() if name != "uncertainty"},
        "uncertainty": candidate.refinement.get("uncertainty"),
        "denoise": candidate.denoise_facts,
        "model": None if candidate.model is None else {"name": candidate.model["model"], **candidate.model["lineage"]},
        "code": {"heathaze": __version__, "commit": _commit()},
        "gates": gates,
        "checksums": [checksum(image) for image in candidate.refined],
        "squares": None
        if candidate.squares is None
        else {"bytes": len(candidate.squares), "checksum": digest(candidate.squares)},
    }


def explain(manifest: dict[str, Any]) -> str:
    """A manifest in plain words."""
    epsilon, model = manifest["epsilon"], manifest["model"]
    lines = [f"Release {manifest['release']}, published {manifest['published_at']}.", "", *manifest["promise"]]
    lines += ["", "How it was made:"]
    lines += [f"- {stage['stage']}: {stage['does']} Sensitivity: {stage['sensitivity']}" for stage in manifest["stages"]]
    if model:
        lines.append(f"- model {model['name']} was trained on {', '.join(model['periods'])}.")
    lines += ["", f"It cost epsilon {epsilon['spent']}. For {epsilon['window']}, {epsilon['total_so_far']} of {epsilon['cap']} "]
    lines[-1] += f"had been spent then, and {epsilon['left']} was left."
    lines += ["", "Gates:"]
    lines += [f"- {'held' if gate['held'] else 'FAILED'}: {gate['expectation']} ({gate['seen']})" for gate in manifest["gates"]]
    return "\n".join(lines)


def _denoise_sentence(candidate: Candidate) -> str:
    facts = candidate.denoise_facts
    nights = facts.get("nights_used", 1)
    return f"Estimates the counts before noise by {facts.get('method', 'none')}, from the noisy tensors of {nights} night(s)."


def _refine_sentence(candidate: Candidate) -> str:
    facts = candidate.refinement
    why = "from the sample to all events"
    if facts["uniformity"] is not None:
        why = f"C {facts['uniformity']:.3g}, {'chosen from the noisy tensor' if facts['was_chosen'] else 'of the policy'}"
    return (
        f"Multiplies by gamma {facts['gamma']:.4g} ({why}); the total goes from "
        f"{facts['total_denoised']:.0f} to {facts['total_published']:.0f}."
    )


def _commit() -> str:
    """Commit of the code where it runs from a checkout, empty where it was installed."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()
