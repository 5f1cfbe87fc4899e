"""What nodes reach of SuperLink: its Fleet API, and nothing else.

Flower's SuperLink has one port for three APIs. Two of them must not be reached by nodes: the Control API (run an app on
every node, register a key) asks for no account, and the Runtime API is for a run's server. So SuperLink listens on
loopback, and this gate listens for nodes and forwards what the Fleet API takes, where every request is signed.
"""

import logging
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.checks import at_least, within
from kinfed.errors import ConfigError

if TYPE_CHECKING:
    import httpx
    from cryptography.x509 import Certificate
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOG = logging.getLogger("kinfed")
CALL = re.compile(r"[a-z]+(-[a-z]+)*")  # of the Fleet API, such as push-object
OF_ONE_CONNECTION = {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}  # headers
SECONDS = 600.0  # that SuperLink has for a request
SOON = 30  # days before its end from which on a certificate is warned of


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


@dataclass
class ConnectionLog:
    """Logs once that SuperLink cannot be reached and why, and once that it can again."""

    superlink: str
    problem: str = ""

    def note(self, problem: str) -> None:
        """Takes note of why a request failed; empty: it did not."""
        if problem and problem != self.problem:
            LOG.warning(
                "SuperLink at %s is not reached (%s): nodes get 502 until it is; start it, or correct --superlink or "
                "--root-certificates", self.superlink, problem,
            )  # fmt: skip
        elif self.problem and not problem:
            LOG.warning("SuperLink at %s is reached again", self.superlink)
        self.problem = problem


def check_certificate(settings: GateSettings, now: datetime) -> str:
    """Whom the gate's certificate is for, and until when; ConfigError where no node would accept it."""
    certificate = load_certificate(settings)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now < end:
        raise ConfigError(
            f"{settings.certificate} is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and now it is "
            f"{now:%Y-%m-%d %H:%M}: nodes would refuse it; take a new one from your authority"
        )
    soon = f" ({(end - now).days} days left: replace it in time)" if (end - now).days < SOON else ""
    return f"{list_names(certificate)} until {end:%Y-%m-%d}{soon}"


def load_certificate(settings: GateSettings) -> "Certificate":
    """The gate's certificate; ConfigError where it and its key do not belong together."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate, settings.key)
        return load_pem_x509_certificate(settings.certificate.read_bytes())
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{settings.key} is not the private key of {settings.certificate}, or one of them is no PEM file "
            f"({error}): wanted both as the authority gave them"
        ) from None


def list_names(certificate: "Certificate") -> str:
    """The addresses that nodes may know the server by."""
    from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName

    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return "no address, since it has no subjectAltName,"
    return ", ".join(dict.fromkeys(str(name.value) for name in names))


def serve(settings: GateSettings) -> None:
    """Forwards nodes' requests until the process ends."""
    import uvicorn

    valid = check_certificate(settings, datetime.now(UTC))
    print(f"nodes connect to port {settings.port}; the certificate is for {valid}", flush=True)
    uvicorn.run(
        build_app(settings), host=settings.host, port=settings.port, log_level="warning",
        ssl_certfile=str(settings.certificate), ssl_keyfile=str(settings.key), server_header=False,
    )  # fmt: skip


def build_app(settings: GateSettings, transport: "httpx.AsyncBaseTransport | None" = None) -> "Starlette":
    """The gate as an app; another transport stands in for SuperLink."""
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Route

    try:
        verify = ssl.create_default_context(cafile=str(settings.root_certificates))
    except ssl.SSLError as error:
        raise ConfigError(f"{settings.root_certificates}: wanted certificates in PEM, got: {error}") from None
    connection = ConnectionLog(settings.superlink)
    client = httpx.AsyncClient(
        base_url=f"https://{settings.superlink}", verify=verify, timeout=SECONDS, transport=transport, trust_env=False
    )

    async def forward(request: "Request") -> "Response":
        return await forward_request(client, request, settings.max_megabytes * 10**6, connection)

    return Starlette(routes=[Route("/v1/fleet/{call}", forward, methods=["POST"])])


async def forward_request(
    client: "httpx.AsyncClient", request: "Request", max_bytes: int, connection: ConnectionLog
) -> "Response":
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
    except httpx.TransportError as error:
        connection.note(str(error) or type(error).__name__)
        return Response(status_code=502)
    connection.note("")
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
