"""A JUnit report that a guest wrote: counted, with the words of its failures, and not trusted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET  # a document type, and so every entity, is refused first

_LARGEST = 16 << 20


class BadReport(Exception):
    """The report is none, or says something that cannot be."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a test run says of itself. failed: names of tests that failed or had an error."""

    tests: int
    skipped: int
    failed: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> int:
        return self.tests - self.skipped - len(self.failed)

    @property
    def is_good(self) -> bool:
        """Something passed and nothing failed."""
        return self.passed > 0 and not self.failed


def read(path: Path) -> Report:
    """The report at `path`, counted test by test. BadReport when it is no JUnit report or its own counts say otherwise."""
    size = path.stat().st_size
    if size > _LARGEST:
        raise BadReport(f"the report has {size} bytes, more than {_LARGEST}")
    data = path.read_bytes()
    if b"<!" in data.replace(b"<![CDATA[", b""):
        raise BadReport("the report holds a document type or a comment, which pytest's has not")
    try:
        root = ET.fromstring(data)  # noqa: S314  # without a document type there are no entities to expand
    except ET.ParseError as error:
        raise BadReport(f"the report is no XML: {error}") from error
    cases = list(root.iter("testcase"))
    failed = tuple(_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None)
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    suites = list(root.iter("testsuite"))
    try:
        told = sum(int(suite.get("tests", "")) for suite in suites)
        seconds = sum(float(suite.get("time", "0")) for suite in suites)
    except ValueError as error:
        raise BadReport(f"the report's counts are no numbers: {error}") from error
    if not suites or told != len(cases):
        raise BadReport(f"the report tells of {told} tests and holds {len(cases)}")
    return Report(len(cases), skipped, failed, seconds)


def _name(case: ET.Element) -> str:
    name = f"{case.get('classname', '')}.{case.get('name', '')}"[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in name)
