"""`space bench [SECTION...] [--quick] [--json] [--samples FILE] [--against FILE]`: measure as root, on private servers.

It prints a table, or one object. The raw samples go into a file, and beside it a plot of each section; `--against` an earlier file of
samples says what got slower.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from space.bench import against, plot
from space.bench.figures import Section
from space.bench.stack import Stack, environment, stack
from space.config.instance import DATA_ROOT
from space.model.errors import PermissionDenied


def sections() -> dict[str, Callable[[Stack], Section]]:
    """Every section by name, in the order in which they run."""
    from space.bench import broker, control, density, files, gateway, idle, lives, reconnect, scale, start, tti
    from space.bench import exec as exec_

    return {
        "start": start.measure,
        "tti": tti.measure,
        "exec": exec_.measure,
        "files": files.measure,
        "idle": idle.measure,
        "gateway": gateway.measure,
        "broker": broker.measure,
        "control": control.measure,
        "reconnect": reconnect.measure,
        "lives": lives.measure,
        "density": density.measure,
        "scale": scale.measure,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status. Standard output has the table or the object alone; progress goes to standard error."""
    known = sections()
    parser = argparse.ArgumentParser(prog="space bench", description="Measure, beside baselines of the same run.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print one object: {section: {figure: {value, unit, baseline}}}")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="where the raw samples go (default: below the data directory)")
    parser.add_argument("--against", type=Path, metavar="FILE", help="samples of an earlier run: say what got slower beyond noise")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, where a section has many")
    options = parser.parse_args(argv)
    if unknown := sorted(set(options.sections) - set(known)):
        parser.error(f"no such section: {', '.join(unknown)} (there are {', '.join(known)})")
    if os.geteuid() != 0:
        raise PermissionDenied(f"space bench wants root, not uid {os.geteuid()}", hint="it starts a server and guests of its own")
    earlier = None if options.against is None else against.load(options.against)  # a wrong file is told before hours of measuring
    results: dict[str, Section] = {}
    surroundings: dict[str, object] = {}
    for name, measure in known.items():
        if options.sections and name not in options.sections:
            continue
        begun = time.monotonic()
        print(f"bench {name} ...", end="", file=sys.stderr, flush=True)
        with stack(quick=options.quick) as ours:  # a fresh server for each: none sees another's traces
            surroundings = surroundings or environment(ours.node().isolation)
            results[name] = measure(ours)
        print(f" {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    path = options.samples or DATA_ROOT / "bench" / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = {name: section.samples for name, section in results.items()}
    path.write_text(json.dumps({"environment": surroundings, "samples": samples}) + "\n")
    for name, series in samples.items():
        path.with_name(f"{path.stem}-{name}.svg").write_text(plot.svg(name, series))
    print(f"samples and plots: {path}", file=sys.stderr)
    print(_object(results) if options.json else _table(results, surroundings))
    if earlier is not None:
        print("\n".join(against.lines(earlier, samples)), file=sys.stderr if options.json else sys.stdout)
    return 0


def _object(results: dict[str, Section]) -> str:
    return json.dumps({name: {key: figure.as_json() for key, figure in section.figures.items()} for name, section in results.items()})


def _table(results: dict[str, Section], surroundings: dict[str, object]) -> str:
    lines = [", ".join(f"{key} {value}" for key, value in surroundings.items()), ""]
    for name, section in results.items():
        for key, figure in section.figures.items():
            spread = "" if figure.low is None or figure.high is None else f" [{figure.low:.4g} to {figure.high:.4g}]"
            baseline = ", ".join(f"{what} {number:.4g}" for what, number in figure.baseline.items())
            lines.append(
                f"{name + '.' + key:32} {figure.value:>10.4g} {figure.unit}{spread}" + (f"   beside {baseline}" if baseline else "")
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
