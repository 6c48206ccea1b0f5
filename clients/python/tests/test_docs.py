"""The README's quickstarts and the examples run, and generated files are up to date."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = sorted((HERE / "examples").glob("*.py"))
QUICKSTARTS = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)
OPENAPI = HERE.parents[1] / "docs/openapi.json"


def run(program: str, broker: str) -> str:
    environment = {**os.environ, "QUEEN_URL": broker}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_ends(example: pathlib.Path, broker: str) -> None:
    assert run(example.read_text(), broker)


def test_there_are_five_examples_and_two_quickstarts() -> None:
    assert (len(EXAMPLES), len(QUICKSTARTS)) == (5, 2)


def test_the_quickstarts_do_what_they_say(broker: str) -> None:
    outputs = [run(program.replace("http://localhost:6632", broker), broker) for program in QUICKSTARTS]
    assert outputs == ["customer-7 pays 10\ncustomer-7 pays 20\n2 handled\n", "customer-7: 3 kg\n"]


def test_the_shapes_of_answers_are_those_of_the_broker() -> None:
    sys.path.insert(0, str(HERE / "tools"))
    import shapes

    sys.path.pop(0)
    shown = (HERE / "src/queen_client/shapes.py").read_text()
    todo = "run: python tools/shapes.py > src/queen_client/shapes.py"
    assert shapes.written(json.loads(OPENAPI.read_text())) == shown, todo
