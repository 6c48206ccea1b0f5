"""A broker as users run it, and a published client for each test."""

import asyncio
import contextlib
import inspect
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

import pytest
from queen import Queen

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = ["PATH", "HOME", "TMPDIR", "QUEEN_PG_BIN_DIR", "LOG_LEVEL", "RUST_BACKTRACE"]
START_PATIENCE = 60
STOP_PATIENCE = 30
TEST_PATIENCE = 60


@pytest.fixture(scope="session")
def broker():
    """A running broker's URL."""
    if url := os.environ.get("QUEEN_URL"):
        yield url
        return
    with running_broker() as url:
        yield url


@contextlib.contextmanager
def running_broker(more={}):
    """A broker with these additional settings."""
    binary = os.environ.get("QUEEN_BIN", ROOT / "target/debug/queen")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="queen-published-"))
    # As root, PostgreSQL runs as another user, who needs access to the folder.
    folder.chmod(0o755)
    log = folder / "log"
    settings = {"HOST": "127.0.0.1", "PORT": "0", "RETENTION_INTERVAL": "2000", "EVICTION_INTERVAL": "2000"}
    # Nothing is deferred only because this machine is busy.
    settings["OPQ_PATIENCE_MS"] = "3600000"
    # Not all variables: a stray PG_HOST would send the broker to another database.
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, "serve", "--data-dir", folder / "data"],
            env={**kept, **settings, **more},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield address(process, log)
        process.terminate()
        assert process.wait(STOP_PATIENCE) == 0, log.read_text()
        assert "panicked" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def address(process, log):
    deadline = time.monotonic() + START_PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if said := re.search(r"listening on (http://[\w.:\[\]-]+)\n", log.read_text()):
            return said[1]
        time.sleep(0.05)
    pytest.exit(f"the broker does not listen:\n{log.read_text()}", returncode=1)


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def refusals():
    """All responses with status 400 and above; the client swallows some and retries others. None may be left."""
    found = []
    yield found
    assert found == []


@pytest.fixture
def queen(loop, broker, refusals):
    async def note(response):
        if response.status_code >= 400:
            await response.aread()
            request = f"{response.request.method} {response.url}"
            refusals.append(f"{request}: {response.status_code} {response.text}")

    # The client handles these two signals itself, and pytest would not receive Ctrl-C.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    client = Queen(broker)
    client._http_client._client.event_hooks["response"].append(note)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    yield client
    loop.run_until_complete(client.close())
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def queue(request):
    """A unique name."""
    return f"{request.node.originalname}-{uuid.uuid4().hex[:8]}"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    test = asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_PATIENCE)
    pyfuncitem.funcargs["loop"].run_until_complete(test)
    return True
