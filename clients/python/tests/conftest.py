"""A broker as users run it, and both clients for each test that uses `api`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from typing import Any, Callable, Iterator

import pytest

from queen_client import AsyncQueen, Queen

ROOT = pathlib.Path(__file__).resolve().parents[3]
ENVIRONMENT = ["PATH", "HOME", "TMPDIR", "QUEEN_PG_BIN_DIR", "LOG_LEVEL", "RUST_BACKTRACE"]
START_PATIENCE = 60
STOP_PATIENCE = 30
TEST_PATIENCE = 60


class Api:
    """One of the two clients, with a common interface."""

    def __init__(self, url: str | list[str], sync: bool, **options: Any) -> None:
        self.sync = sync
        # Through `do`, both clients are used alike.
        self.queen: Any = Queen(url, **options) if sync else AsyncQueen(url, **options)

    async def do(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a method and waits for it, in a thread if needed."""
        if self.sync:
            return await asyncio.to_thread(method, *args, **kwargs)
        result = method(*args, **kwargs)
        return await result if inspect.iscoroutine(result) else result

    async def close(self) -> None:
        await self.do(self.queen.close)

    def handler(self, handle: Callable[[Any], object]) -> Any:
        """A handler that does the same in both."""
        if self.sync:
            return handle

        async def wrapped(argument: Any) -> None:
            handle(argument)

        return wrapped


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """The URL of a running broker."""
    if url := os.environ.get("QUEEN_URL"):
        yield url
        return
    with running_broker() as url:
        yield url


@contextlib.contextmanager
def running_broker() -> Iterator[str]:
    binary = os.environ.get("QUEEN_BIN", ROOT / "target/debug/queen")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="queen-client-"))
    # As root, PostgreSQL runs as another user, who needs access to the folder.
    folder.chmod(0o755)
    log = folder / "log"
    # Not all variables: a stray PG_HOST would send the broker to another database.
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, "serve", "--data-dir", folder / "data"],
            # Nothing is deferred only because this machine is busy.
            env={**kept, "HOST": "127.0.0.1", "PORT": "0", "OPQ_PATIENCE_MS": "3600000"},
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


def address(process: subprocess.Popen[bytes], log: pathlib.Path) -> str:
    deadline = time.monotonic() + START_PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if said := re.search(r"listening on (http://[\w.:\[\]-]+)\n", log.read_text()):
            return said[1]
        time.sleep(0.05)
    pytest.exit(f"the broker does not listen:\n{log.read_text()}", returncode=1)


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api(broker: str, kind: str) -> Api:
    """Closed after the test."""
    return Api(broker, kind == "sync")


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A unique name."""
    return f"{request.node.originalname}-{uuid.uuid4().hex[:8]}"[-200:]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def test() -> None:
        try:
            await asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_PATIENCE)
        finally:
            for argument in arguments.values():
                if isinstance(argument, Api):
                    await argument.close()

    asyncio.run(test())
    return True
