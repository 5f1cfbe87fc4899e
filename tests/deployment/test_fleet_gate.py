"""Of SuperLink's three APIs the gate forwards one, and of that what a node may ask."""

import asyncio
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from typer.testing import CliRunner

from kinfed.cli import app as kinfed
from kinfed.deployment import fleet_gate
from kinfed.deployment.fleet_gate import GateSettings, build_app, check_certificate
from kinfed.errors import ConfigError


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> GateSettings:
    folder = tmp_path_factory.mktemp("gate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", "key", "-out", "ca",
         "-days", "90", "-addext", "subjectAltName=DNS:fl.example.org,IP:10.0.0.7,IP:10.0.0.7"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return GateSettings("127.0.0.1", 8443, "127.0.0.1:8000", folder / "ca", folder / "ca", folder / "key", 1)


def ask(settings, method, path, **more) -> tuple[httpx.Response, list[httpx.Request]]:
    """What the gate replies, and what reached SuperLink."""
    reached = []

    async def reply(request: httpx.Request) -> httpx.Response:
        await request.aread()
        reached.append(request)
        headers = {"x-flwr": "said", "connection": "close"}
        return httpx.Response(401, headers=headers, stream=httpx.ByteStream(b"signature?"))

    async def run() -> httpx.Response:
        gate = httpx.ASGITransport(build_app(settings, httpx.MockTransport(reply)))
        async with httpx.AsyncClient(transport=gate, base_url="https://server") as client:
            return await client.request(method, path, **more)

    return asyncio.run(run()), reached


def test_a_nodes_request_reaches_the_fleet_api_as_it_is(settings):
    headers = {"x-flwr-public-key": "key", "content-type": "application/protobuf"}
    reply, [request] = ask(settings, "POST", "/v1/fleet/pull-messages", content=b"protobuf", headers=headers)
    assert str(request.url) == "https://127.0.0.1:8000/v1/fleet/pull-messages" and request.content == b"protobuf"
    assert headers.items() <= dict(request.headers).items() and request.headers["host"] == "127.0.0.1:8000"
    assert (reply.status_code, reply.content, reply.headers["x-flwr"]) == (401, b"signature?", "said")


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/v1/fleet/", "/docs",
             "/v1/fleet/../control/start-run", "/v1/fleet/..%2fcontrol%2fstart-run", "/v1/fleet/%2e%2e",
             "/openapi.json", "/v1/fleet/pull-messages/../../control/start-run",
             "//v1/control/start-run", "/v1/fleet/a%00b"],
)  # fmt: skip
def test_nothing_else_of_superlink_is_reached(settings, path):
    reply, reached = ask(settings, "POST", path)
    assert reply.status_code in (404, 405) and not reached


def test_the_gate_takes_no_other_verb_and_no_endless_body(settings):
    assert ask(settings, "GET", "/v1/fleet/pull-messages")[0].status_code == 405
    reply, reached = ask(settings, "POST", "/v1/fleet/push-object", content=bytes(10**6 + 1))
    assert reply.status_code == 413 and not reached
    assert ask(settings, "POST", "/v1/fleet/push-object", content=bytes(10**6))[0].status_code == 401


def test_without_superlink_the_gate_says_so_once(settings, caplog):
    gate = httpx.ASGITransport(build_app(replace(settings, superlink="127.0.0.1:9")))  # a port that nobody has

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=gate, base_url="https://server") as client:
            await client.post("/v1/fleet/pull-messages")
            return await client.post("/v1/fleet/pull-messages")

    assert asyncio.run(run()).status_code == 502
    assert len(caplog.messages) == 1 and "correct --superlink or --root-certificates" in caplog.messages[0]


def test_the_gate_says_for_whom_its_certificate_is_and_until_when(settings):
    now = datetime.now(UTC)
    assert check_certificate(settings, now) == f"fl.example.org, 10.0.0.7 until {now + timedelta(90):%Y-%m-%d}"
    assert "9 days left: replace it" in check_certificate(settings, now + timedelta(80, 60))


@pytest.mark.parametrize("days", [-1, 91])
def test_a_certificate_that_nodes_would_refuse_is_refused_when_the_gate_starts(settings, days):
    with pytest.raises(ConfigError, match=r"valid from .* nodes would refuse it; take a new one"):
        check_certificate(settings, datetime.now(UTC) + timedelta(days))


def test_a_key_of_another_certificate_and_a_file_that_is_no_certificate_are_refused(settings, tmp_path):
    key, text = tmp_path / "key", tmp_path / "text"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    text.write_text("no PEM")
    for wrong in (replace(settings, key=key), replace(settings, certificate=text)):
        with pytest.raises(ConfigError, match=r"is not the private key of .* wanted both as the authority gave them"):
            check_certificate(wrong, datetime.now(UTC))
    with pytest.raises(ConfigError, match=r"text: wanted certificates in PEM"):
        build_app(replace(settings, root_certificates=text))


def test_the_command_needs_certificates_and_listens_on_loopback_unless_told(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no file nowhere: ./certificates.sh"):
        GateSettings("127.0.0.1", 8443, "127.0.0.1:8000", Path("nowhere"), settings.certificate, settings.key)
    started: list[GateSettings] = []
    monkeypatch.setattr(fleet_gate, "serve", started.append)
    files = [f"--{name}={settings.certificate}" for name in ("root-certificates", "ssl-certfile", "ssl-keyfile")]
    assert CliRunner().invoke(kinfed, ["deploy", "gate", *files]).exit_code == 0
    assert (started[0].host, started[0].superlink) == ("127.0.0.1", "127.0.0.1:8000")
