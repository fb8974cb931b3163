"""Hosts for tests: namespaces with a network, mounts, a host name, shared memory and processes of their own.

Each host is a network namespace (``ip netns``) with an address on a bridge that lives in one more namespace, so
nothing of the real machine's network is touched. What runs on a host runs in mount, UTS, IPC and PID namespaces of
its own: without the last, ranks would open each other's memory through /proc, and share it unnoticed. ``tc``
limits what a host sends and what it is sent. Files are those of the real machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[3]
PORT = 29533
DEADLINE = 400.0  # starting alone takes minutes where others use the cores


def missing() -> str | None:
    """Why hosts cannot be made here; None if they can."""
    for tool in ("ip", "tc", "unshare", "mount", "hostname"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    if os.getuid() != 0:
        return "not root"
    try:
        with Hosts(2, megabytes=50) as hosts:
            hosts.check(hosts.command(0, ["hostname"]))
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"hosts cannot be made: {error}"
    return None


class Hosts:
    """``count`` hosts on one bridge; a context manager that removes all that it made.

    A host may have several network cards. Each is a network namespace of its own, because Linux sends what goes to
    one network by one card, whatever it is told; a rank that runs in the namespace of a card has this one alone.

    Args:
        count: How many.
        megabytes: MB/s that each card may send, and be sent; None: no limit.
        cards: How many a host has.
    """

    def __init__(self, count: int, megabytes: float | None = None, cards: int = 1):
        self.count, self.cards = count, cards
        self._name = f"dgcl{secrets.token_hex(3)}"
        self._megabytes = megabytes
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ):
        for process in self._running:
            if process.poll() is None:
                process.kill()  # unshare --kill-child takes what runs on the host with it
            process.wait()
        names = [self.namespace(host, card) for host in range(self.count) for card in range(self.cards)]
        for name in [*names, f"{self._name}-switch"]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def namespace(self, host: int, card: int = 0) -> str:
        """The name of the network namespace of a host's card."""
        return f"{self._name}-{host}-{card}"

    def address(self, host: int, card: int = 0) -> str:
        """Its address on the bridge."""
        return f"10.77.{card}.{host + 1}"

    def check(self, command: Sequence[str]) -> str:
        """What a command says.

        Raises:
            RuntimeError: It fails.
        """
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """A command as it runs on a host."""
        names = "".join(f"{self.address(other)} host{other}\\n" for other in range(self.count))
        script = (
            'hostname "$1" && shift && mount -t tmpfs -o size=16m tmpfs /dev/shm'
            f" && printf '127.0.0.1 localhost\\n{names}' > /dev/shm/hosts"
            ' && mount --bind /dev/shm/hosts /etc/hosts && exec "$@"'
        )
        return [
            *("ip", "netns", "exec", self.namespace(host)),
            *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-c", script, "sh", f"host{host}", *command),
        ]

    def torchrun(self, ranks: Sequence[int], module: str, *args: str, timeout: float = DEADLINE):
        """Run a module under torchrun, with ``ranks[h]`` ranks on host h, to its end.

        Raises:
            AssertionError: A rank fails, or it takes too long; with what was said.
        """
        self.start(ranks, module, *args)
        self.finish(timeout)

    def start(self, ranks: Sequence[int], module: str, *args: str):
        """Start that, and return at once."""
        for host, count in enumerate(ranks):
            run = [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(ranks)}"),
                *(f"--nproc-per-node={count}", "--rdzv-backend=c10d", "--rdzv-id=test"),
                *(f"--rdzv-endpoint={self.address(0)}:{PORT}", f"--local-addr={self.address(host)}"),
                *("-m", module, *args),
            ]
            self._running.append(
                subprocess.Popen(
                    self.command(host, run),
                    cwd=ROOT,
                    env=environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def check_running(self):
        """Fail with what they said if any has ended."""
        if any(process.poll() for process in self._running):
            self.finish(0.5)

    def finish(self, timeout: float = DEADLINE):
        """Wait for what was started."""
        until = time.monotonic() + timeout
        said = []
        for host, process in enumerate(self._running):
            try:
                text, _ = process.communicate(timeout=max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                for other in self._running:
                    other.kill()
                text, _ = process.communicate()
                text += f"\nnot over after {timeout:g} s"
            said.append(f"--- host {host}, exit code {process.returncode}\n{text[-6000:]}")
        failed = any(process.returncode for process in self._running)
        self._running = []
        assert not failed, "\n".join(said)

    def process(self, host: int) -> int:
        """The process whose end takes all with it that was started on a host."""
        return self._running[host].pid

    def pause(self, host: int, paused: bool):
        """Stop all processes that were started on a host, or let them go on."""
        waiting = [self.process(host)]
        while waiting:
            process = waiting.pop()
            with suppress(OSError):
                children = Path(f"/proc/{process}/task/{process}/children").read_text()
                waiting += [int(child) for child in children.split()]
                os.kill(process, signal.SIGSTOP if paused else signal.SIGCONT)

    def cut_off(self, host: int):
        """Take a host's links down, with nothing said to anybody."""
        self._set(host, "down")

    def restore(self, host: int):
        """And up again."""
        self._set(host, "up")

    def _set(self, host: int, state: str):
        for card in range(self.cards):
            self.check(["ip", "-n", f"{self._name}-switch", "link", "set", f"port{host}-{card}", state])

    def limit(self, host: int, megabytes: float):
        """Limit what each card of a host sends, and what it is sent, to ``megabytes`` MB/s.

        The burst is what the kernel may be late by on a busy machine without the link losing speed; the queue drops
        nothing, as a switch with flow control.
        """
        rate = f"{megabytes * 8e6:.0f}bit"
        shape = ["root", "tbf", "rate", rate, "burst", "512kb", "limit", "16mb"]
        for card in range(self.cards):
            ends = ((self.namespace(host, card), "eth0"), (f"{self._name}-switch", f"port{host}-{card}"))
            for namespace, port in ends:
                self.check(["tc", "-n", namespace, "qdisc", "replace", "dev", port, *shape])

    def _make(self):
        switch = f"{self._name}-switch"
        self.check(["ip", "netns", "add", switch])
        self.check(["ip", "-n", switch, "link", "add", "bridge", "type", "bridge"])
        self.check(["ip", "-n", switch, "link", "set", "bridge", "up"])
        for host in range(self.count):
            for card in range(self.cards):
                self._make_card(host, card)
            if self._megabytes is not None:
                self.limit(host, self._megabytes)

    def _make_card(self, host: int, card: int):
        switch, name, port = f"{self._name}-switch", self.namespace(host, card), f"port{host}-{card}"
        self.check(["ip", "netns", "add", name])
        ends = ["eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch]
        self.check(["ip", "link", "add", *ends])
        self.check(["ip", "-n", switch, "link", "set", port, "master", "bridge", "up"])
        self.check(["ip", "-n", name, "addr", "add", f"{self.address(host, card)}/16", "dev", "eth0"])
        for device in ("lo", "eth0"):
            self.check(["ip", "-n", name, "link", "set", device, "up"])


def environment() -> dict[str, str]:
    """What ranks on hosts are started with."""
    return {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}


def read_counter(name: str = "tx_bytes") -> int:
    """What this rank's card has sent so far, or ``rx_bytes``: been sent; called by what runs on the host."""
    lines = (
        Path("/proc/self/net/dev").read_text().splitlines()
    )  # of the network that the process is in, unlike /sys
    words = next((line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:")), None)
    if words is None:
        raise RuntimeError("there is no eth0 here")
    return int(words[{"rx_bytes": 0, "tx_bytes": 8}[name]])
