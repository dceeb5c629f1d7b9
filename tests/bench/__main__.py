"""`python -m tests.bench [--only NAME]... [--json] [--rounds N] [--scale X] [--keep DIR]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.bench.cases import CASES, Bench, Measure


def shown(samples: list[float], unit: str) -> str:
    if not samples:
        return ""
    value = median(samples)
    if unit == "MB":
        return f"{value / 1e6:.1f} MB"
    value *= 1000
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def row(measure: Measure) -> str:
    ratio = measure.ratio
    cells = (
        measure.what,
        shown(measure.ours, measure.unit),
        measure.raw_what,
        shown(measure.raw, measure.unit),
        "" if ratio is None else f"{ratio:.2f}",
        measure.reach,
        measure.note,
    )
    return "| " + " | ".join(cells) + " |"


def machine() -> str:
    load = os.getloadavg()[0]
    return f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores, load {load:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Medians; each beside its raw operation."
    )
    parser.add_argument("--only", action="append", choices=list(CASES), help="run this case (may be given again)")
    parser.add_argument("--json", action="store_true", help="all samples, in seconds or bytes, as one JSON document")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="1 = 100,000 entries, 100 MB, 2,000 sessions")
    parser.add_argument("--keep", type=Path, help="keep the generated sessions in this folder and use them again")
    args = parser.parse_args()

    scratch = Path(tempfile.mkdtemp(prefix="dshd-bench-"))
    folder = args.keep.resolve() if args.keep else scratch / "data"
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, scratch, args.rounds, args.scale)
    found: dict[str, list[Measure]] = {}
    failed = False
    if not args.json:
        print(f"{machine()}; medians of {args.rounds} or more, scale {args.scale:g}\n")
        print("| what | dshd | raw operation | raw | ratio | to reach | |")
        print("|---|---|---|---|---|---|---|")
    try:
        for name in args.only or CASES:
            started = time.perf_counter()
            found[name] = []
            try:
                for measure in CASES[name](bench):
                    found[name].append(measure)
                    if not args.json:
                        print(row(measure), flush=True)
            except (RuntimeError, OSError, AssertionError) as exc:
                failed = True
                print(f"{name}: {type(exc).__name__}: {exc}", file=sys.stderr)
            print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if args.json:
        cases = {name: [vars(measure) for measure in measures] for name, measures in found.items()}
        print(json.dumps({"machine": machine(), "scale": args.scale, "cases": cases}, indent=1))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
