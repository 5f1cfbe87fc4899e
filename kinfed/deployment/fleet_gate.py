"""What nodes reach of SuperLink: its Fleet API, and nothing else.

Flower's SuperLink has one port for three APIs. Two of them must not be reached by nodes: the Control API (run an app on
every node, register a key) asks for no account, and the Runtime API is for a run's server. So SuperLink listens on
loopback, and this gate listens for nodes and forwards what the Fleet API takes, where every request is signed.
"""

import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.checks import at_least, within
from kinfed.errors import ConfigError

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

CALL = re.compile(r"[a-z]+(-[a-z]+)*")  # of the Fleet API, such as push-object
OF_ONE_CONNECTION = {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}  # headers
SECONDS = 600.0  # that SuperLink has for a request


@dataclass(frozen=True)
class GateSettings:
    """Where nodes connect, where SuperLink is, and what the certificates are."""

    host: str
    port: int
    superlink: str  # ADDRESS:PORT on loopback
    root_certificates: Path  # of the authority that signed SuperLink's certificate
    certificate: Path  # the gate's own
    key: Path
    max_megabytes: int = 2048  # of one request

    def __post_init__(self) -> None:
        within(1, 65535, port=self.port)
        at_least(1, max_megabytes=self.max_megabytes)
        for path in (self.root_certificates, self.certificate, self.key):
            if not path.is_file():
                raise ConfigError(f"there is no file {path}: ./certificates.sh ADDRESS makes certificates to try with")


class OversizedRequest(Exception):
    """A request is longer than the gate lets through."""


def serve(settings: GateSettings) -> None:
    """Forwards nodes' requests until the process ends."""
    import uvicorn

    uvicorn.run(
        build_app(settings), host=settings.host, port=settings.port, log_level="warning",
        ssl_certfile=str(settings.certificate), ssl_keyfile=str(settings.key), server_header=False,
    )  # fmt: skip


def build_app(settings: GateSettings, transport: "httpx.AsyncBaseTransport | None" = None) -> "Starlette":
    """The gate as an app; another transport stands in for SuperLink."""
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Route

    verify = ssl.create_default_context(cafile=str(settings.root_certificates))
    client = httpx.AsyncClient(
        base_url=f"https://{settings.superlink}", verify=verify, timeout=SECONDS, transport=transport, trust_env=False
    )

    async def forward(request: "Request") -> "Response":
        return await forward_request(client, request, settings.max_megabytes * 10**6)

    return Starlette(routes=[Route("/v1/fleet/{call}", forward, methods=["POST"])])


async def forward_request(client: "httpx.AsyncClient", request: "Request", max_bytes: int) -> "Response":
    """What SuperLink's Fleet API replies to a request; an error where it is not one of its calls."""
    import httpx
    from starlette.background import BackgroundTask
    from starlette.responses import Response, StreamingResponse

    call = str(request.path_params["call"])
    if not CALL.fullmatch(call):
        return Response(status_code=404)
    content = bound_stream(request.stream(), max_bytes)
    headers = keep_headers(request.headers)
    try:
        forwarded = client.build_request("POST", f"/v1/fleet/{call}", headers=headers, content=content)
        reply = await client.send(forwarded, stream=True)
    except OversizedRequest:
        return Response(status_code=413)
    except httpx.TransportError:
        return Response(status_code=502)
    return StreamingResponse(
        reply.aiter_raw(), reply.status_code, keep_headers(reply.headers), background=BackgroundTask(reply.aclose)
    )


async def bound_stream(parts: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """The same parts; raises OversizedRequest once they are longer together."""
    total = 0
    async for part in parts:
        total += len(part)
        if total > max_bytes:
            raise OversizedRequest
        yield part


def keep_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are not about one connection alone."""
    return {name: value for name, value in headers.items() if name.lower() not in OF_ONE_CONNECTION}
