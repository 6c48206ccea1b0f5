"""Generated requests, valid and invalid: no 5xx, and only documented responses."""

import os
import pathlib
import subprocess
import sys

import httpx
import pytest

from conftest import running_broker

HERE = pathlib.Path(__file__).parent
# Bad parameters fall back to defaults and unknown fields are ignored, so acceptance is not checked.
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
]
EXAMPLES = os.environ.get("QUEEN_OPENAPI_EXAMPLES", "10")
PHASES = os.environ.get("QUEEN_OPENAPI_PHASES", "fuzzing")
SEED = os.environ.get("QUEEN_OPENAPI_SEED", "1")


@pytest.fixture
def broker_of_its_own():
    """A separate broker, because generated requests also turn maintenance on and delete objects of other tests."""
    with running_broker() as url:
        yield url


def test_made_up_requests_are_answered_as_described(broker_of_its_own, tmp_path):
    items = [{"queue": "orders", "partition": f"p{number % 3}", "payload": number} for number in range(30)]
    httpx.post(f"{broker_of_its_own}/api/v1/push", json={"items": items}).raise_for_status()
    command = [
        pathlib.Path(sys.executable).with_name("st"),
        *("run", f"{broker_of_its_own}/openapi.json", "--checks", ",".join(CHECKS)),
        *("--phases", PHASES, "--max-examples", EXAMPLES, "--seed", SEED),
        *("--request-timeout", "30", "--workers", "2", "--no-color", "--continue-on-failure"),
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(HERE)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert httpx.get(f"{broker_of_its_own}/health").status_code == 200
