"""The benchmarks themselves run, so that they can be repeated when they are needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.cases import CASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("case", sorted(CASES))
def test_every_benchmark_runs_at_a_small_scale(case: str, tmp_path: Path):
    command = [sys.executable, "-m", "tests.bench", "--json", "--rounds=2", "--scale=0.005", "--only", case]
    done = subprocess.run([*command, "--keep", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measures = json.loads(done.stdout)["cases"][case]
    assert measures
    assert all(each["ours"] and (each["raw"] or "not installed" in each["note"]) for each in measures)
