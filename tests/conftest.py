"""Options of the whole suite, and what fixtures may know of their test."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# What every change runs gives the same examples each time, so that a failure is the change's; the long tier looks for new ones. A deadline
# of one example measures what else the machine does.
settings.register_profile("every", deadline=None, derandomize=True)
settings.register_profile("full", deadline=None, max_examples=500)
settings.load_profile("every")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runtime",
        type=Path,
        default=None,
        metavar="PYTHON",
        help="test the services of this interpreter's environment instead of the installed runtime (for development)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a fixture's teardown see whether its test failed: `request.node.failed`."""
    report = yield
    item.failed = getattr(item, "failed", False) or report.failed  # type: ignore[attr-defined]
    return report
