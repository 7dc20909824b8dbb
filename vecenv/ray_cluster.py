"""The connection to a Ray cluster: joined, or a cluster of our own started, when first needed; let go by the last user.

Ray is connected once per process, so what is kept here belongs to the process. A cluster of our own listens on the
loopback interface only, has no dashboard, reports nothing to anyone, and ends with its last user. A connection that was
there before (the user's own ``ray.init``) is used as it is and never ended; neither is one that the user made after
having ended ours.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import ipaddress
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from vecenv.cores import usable_cores
from vecenv.errors import MissingExtra, WorkersUnavailable
from vecenv.interrupts import interrupts_afterwards

#: What a cluster of our own is told by the environment: report nothing, loopback only, leave GPU variables alone, let
#: actors have the cores as worker processes have them (by default Ray makes them give way to everything else), and send
#: replies up to 4 MiB in the message itself: on one machine the object store costs more than the copy that it saves.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
    "RAY_max_direct_call_object_size": str(4 * 2**20),
}
#: HTTP/2's client preface and an empty settings frame: what a gRPC server answers with settings of its own.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS_FRAME = 4
_CONNECT_SECONDS = 5.0
# Users of the connection that this module made, in the process of that id; which one that was, and by what address.
_users: set[int] = set()
_owner: int | None = None
_ours: tuple[str, str] | None = None
_joined = ""


class RayUnreachable(WorkersUnavailable, ConnectionError):
    """The cluster cannot be reached or started."""


class NotEnoughResources(WorkersUnavailable):
    """The cluster has less than the actors ask for, or nothing of it became free in time."""


class RayConnection:
    """One user's hold on the connection of this process.

    Args:
        address: see `RaySettings`.
        object_store_memory: bytes, for a cluster of our own.
        timeout: seconds that reaching it may take.
        num_cpus: of a cluster of our own; None: usable cores.

    Raises:
        MissingExtra: Ray is not installed.
        RayUnreachable: nothing answers at the address, or Ray refuses.
        ValueError: this process is connected to another cluster.
    """

    def __init__(
        self,
        address: str | None = None,
        object_store_memory: int | None = None,
        timeout: float = 60.0,
        num_cpus: int | None = None,
    ) -> None:
        global _owner, _ours, _joined
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("ray", "ray")
        self._held = False
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        if not _is_connected():
            try:
                _connect(address, object_store_memory, timeout, num_cpus or usable_cores())
                _owner, _ours, _joined = os.getpid(), _current(), address
            except BaseException:  # Ctrl-C among them: a connection that belongs to nobody would never be ended
                _disconnect()
                raise
            _users.clear()
        else:
            _check_same(address)
        self._session = _current()
        if _owner == os.getpid() and _ours == self._session:
            _users.add(id(self))
            self._held = True

    @property
    def stands(self) -> bool:
        """Whether the process is still connected as it was: with another connection the actors of this one are gone."""
        return _is_connected() and _current() == self._session

    def release(self) -> None:
        """Let go; the last user of a connection made here ends it. A second call does nothing."""
        global _owner
        if not self._held:
            return
        self._held = False
        if _owner != os.getpid() or _ours != self._session:  # a fork of the process that is connected, or an old hold
            return
        _users.discard(id(self))
        if not _users:
            _owner = None
            if self.stands:
                _disconnect()

    def check_demand(self, demand: dict[str, float], advice: str) -> None:
        """Refuse what the cluster will never have.

        Raises:
            NotEnoughResources: it has less in all.
        """
        ray: Any = importlib.import_module("ray")
        total = ray.cluster_resources()
        for name, amount in demand.items():
            if amount > total.get(name, 0.0) + 1e-6:
                raise NotEnoughResources(
                    f"the actors ask for {amount:g} of {name!r}, the Ray cluster has {total.get(name, 0.0):g}; {advice}"
                )

    def free(self) -> dict[str, float]:
        """What of the cluster nobody has set aside, by Ray's names of resources."""
        ray: Any = importlib.import_module("ray")
        free: dict[str, float] = ray.available_resources()
        return free


def _is_connected() -> bool:
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _current() -> tuple[str, str]:
    """Which connection this is: the cluster's session, which no other has, and the number of the job in it."""
    import ray

    context = ray.get_runtime_context()
    return str(context.get_session_name()), str(context.get_job_id())


def _connect(address: str, object_store_memory: int | None, timeout: float, num_cpus: int) -> None:
    """Start a cluster of our own or join one, quietly."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        settings |= {"num_cpus": num_cpus, "include_dashboard": False, "object_store_memory": object_store_memory}
    else:
        address = _checked_address(address, min(timeout, _CONNECT_SECONDS))
    with _quiet_environment(address == "local"):
        import ray

        try:
            with interrupts_afterwards():  # a connection made half-way ends the interpreter by SIGSEGV
                ray.init(address=address, **settings)
        except (Exception, SystemExit) as error:  # Ray exits where it gives up on an address
            what = "start a Ray cluster on this machine" if address == "local" else f"join the Ray cluster {address!r}"
            raise RayUnreachable(f"cannot {what}: {error}") from error


def _disconnect() -> None:
    """End the connection, and with it a cluster of our own; nothing where there is none."""
    if _is_connected():
        import ray

        ray.shutdown()


@contextlib.contextmanager
def _quiet_environment(own_cluster: bool) -> Iterator[None]:
    """The variables of a cluster of our own, for as long as it takes to start it; its processes keep them."""
    if not own_cluster:
        yield
        return
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update({name: value for name, value in _QUIET.items() if before[name] is None})
    try:
        from ray._private import ray_constants

        several_machines = ray_constants.ENABLE_RAY_CLUSTER
        # Read from the variable when Ray was imported, maybe before it was set.
        ray_constants.ENABLE_RAY_CLUSTER = False
        try:
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = several_machines
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _checked_address(address: str, timeout: float) -> str:
    """Make sure that a cluster is there to be joined; gives its address, where "auto" was given the one that Ray means.

    Raises:
        RayUnreachable: none is.
        NotImplementedError: an address of Ray's client protocol.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address  # Ray takes it from there, too
    if address != "auto":
        _check_alive(address, timeout)
        return address
    from ray._private.services import get_ray_address_from_environment

    try:
        address = get_ray_address_from_environment("auto", None)
        _check_alive(address, timeout)
    except ConnectionError as error:
        why = error if isinstance(error, RayUnreachable) else "Ray knows of none"
        raise RayUnreachable(
            f"address='auto': no Ray cluster runs on this machine ({why}); `ray start --head` starts one"
        ) from error
    return address


def _check_alive(address: str, timeout: float) -> None:
    """Ask whether anything that could be Ray listens: Ray itself would try for two minutes, then end the process.

    Raises:
        RayUnreachable: nothing does.
        NotImplementedError: an address of Ray's client protocol.
    """
    if "://" in address:
        raise NotImplementedError(
            f"address={address!r}: Ray's client protocol is not supported; run the script on a machine of the cluster "
            "and give 'host:port' or 'auto'"
        )
    if address == "local":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"address: expected 'host:port', 'auto' or 'local', got {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout) as probe:
            probe.settimeout(timeout)
            probe.sendall(_HELLO)
            if not _is_settings_frame(probe, time.monotonic() + timeout):
                raise RayUnreachable(f"what listens at {address} is no Ray cluster")
    except OSError as error:
        if isinstance(error, RayUnreachable):
            raise
        raise RayUnreachable(f"no Ray cluster answers at {address} within {timeout:g} s: {error}") from error


def _is_settings_frame(probe: socket.socket, deadline: float) -> bool:
    header = b""
    while len(header) < 9 and time.monotonic() < deadline:
        part = probe.recv(9 - len(header))
        if not part:
            break
        header += part
    return len(header) == 9 and header[3] == _SETTINGS_FRAME


def _check_same(address: str) -> None:
    """Refuse an address that the process is not connected to.

    Ray tells the address of this node in place of a loopback address, so it is not the text that is compared.
    """
    ray: Any = importlib.import_module("ray")

    connected = str(ray.get_runtime_context().gcs_address)
    if address in ("local", "auto", connected) or (_current() == _ours and address == _joined):
        return
    here = ray.util.get_node_ip_address()
    if _places(address, here).isdisjoint(_places(connected, here)):
        raise ValueError(
            f"address={address!r}: this process is connected to the Ray cluster {connected}; call ray.shutdown() first"
        )


def _places(address: str, here: str) -> set[tuple[str, str]]:
    """Numeric addresses and port that a 'host:port' stands for, this node's own `here` for loopback; {}: for none."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):
        return set()
    numbers = [str(place[0]) for *_, place in found]
    return {(here if ipaddress.ip_address(number).is_loopback else number, port) for number in numbers}
