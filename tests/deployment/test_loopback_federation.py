"""The checks for traffic beyond loopback see it: an address for documentation stands for all others."""

import os
import socket
import subprocess
import sys

import pytest

from tests.deployment.loopback_federation import foreign_peers, isolate_network

ELSEWHERE = ("192.0.2.1", 9)
TRY = f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect({ELSEWHERE})"


def test_a_socket_that_has_a_peer_beyond_loopback_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_connection(here.getsockname()):
        assert foreign_peers({os.getpid()}) == set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(ELSEWHERE)  # sends nothing
        except OSError:
            pytest.skip("this machine has no route to other addresses")
        assert foreign_peers({os.getpid()}) == {"010200C0"}


def test_an_attempt_to_leave_a_network_namespace_is_counted():
    with isolate_network() as net:
        if not net.holder:
            pytest.skip("network namespaces are not permitted here")
        assert net.attempts() == 0
        result = subprocess.run([*net.entrance, sys.executable, "-c", TRY], capture_output=True, text=True)
        assert "unreachable" in result.stderr and net.attempts() == 1
