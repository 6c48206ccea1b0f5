"""The shared scenarios of clients/scenarios, with both Python clients."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest

from scenarios import Runner

DIR = pathlib.Path(os.environ.get("QUEEN_SCENARIOS_DIR", "."))
SCENARIOS: list[Any] = []
if "QUEEN_SCENARIOS_CONTROL" in os.environ:
    SCENARIOS = [
        pytest.param(scenario, id=f"{file.stem}: {scenario['name']}")
        for file in sorted(DIR.glob("*.json"))
        for scenario in json.loads(file.read_text())
    ]


def test_there_are_scenarios() -> None:
    assert SCENARIOS, "run this with: queen-testkit scenarios -- …"


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_scenario(scenario: Any, kind: str) -> None:
    control = os.environ["QUEEN_SCENARIOS_CONTROL"]
    urls = os.environ["QUEEN_SCENARIOS_URLS"].split(",")
    await Runner(scenario, urls, control, kind == "sync").run()
