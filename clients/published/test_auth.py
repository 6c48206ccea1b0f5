"""The published client against a broker with access control: its bearer token is accepted."""

import base64
import contextlib
import hashlib
import hmac
import json
import signal
import time

import pytest
from queen import Queen

from conftest import running_broker

pytestmark = pytest.mark.usefixtures("loop")

SECRET = "a secret that is only used here, and long enough"


@pytest.fixture(scope="module")
def guarded():
    """The URL of a broker that requires tokens."""
    with running_broker({"JWT_ENABLED": "true", "JWT_SECRET": SECRET}) as url:
        yield url


def token(**claims):
    def part(value):
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    claims = {"sub": "python", "role": "read-write", "exp": int(time.time()) + 600, **claims}
    signed = part(b'{"alg":"HS256","typ":"JWT"}') + b"." + part(json.dumps(claims).encode())
    signature = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
    return (signed + b"." + part(signature)).decode()


@contextlib.asynccontextmanager
async def client(url, bearer):
    # The client handles these two signals itself, and pytest would not receive Ctrl-C.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    queen = Queen(url=url, bearer_token=bearer, retry_attempts=1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    yield queen
    await queen.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


async def test_a_token_lets_the_client_push_pop_and_acknowledge(guarded, queue):
    async with client(guarded, token()) as queen:
        await queen.queue(queue).push([{"data": {"n": 1}}])
        [message] = await queen.queue(queue).wait(False).pop()
        assert (message["data"], message["producerSub"]) == ({"n": 1}, "python")
        assert (await queen.ack(message, True))["success"]


@pytest.mark.parametrize("bearer", [None, "nonsense", "expired", "read-only", "elsewhere"])
async def test_without_a_good_token_a_push_fails(guarded, queue, bearer):
    tokens = {
        "expired": token(exp=int(time.time()) - 3600),
        "read-only": token(role="read-only"),
        "elsewhere": token(queen=[{"queues": ["other"], "rights": ["push"]}]),
    }
    refusal = "Authentication required|not a token|expired|Insufficient|no right to push"
    async with client(guarded, tokens.get(bearer, bearer)) as queen:
        with pytest.raises(Exception, match=refusal):
            await queen.queue(queue).push([{"data": {"n": 1}}])
