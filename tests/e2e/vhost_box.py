"""sluiced on vhost-user ports, as anyone can run it: no root, no NIC, no hugepages."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from lab import BOX_ADDRESS, stop
from workers import BUILD


class VhostBox:
    """A context that runs sluiced with `ports` vhost-user sockets in `directory`."""

    def __init__(self, directory: Path, ports: int, secret: str = "lab", extra: str = "",
                 limits: str = "", port_extra: str = "", appliance_extra: str = "",
                 metrics: str = '[metrics]\naddress = ""',  # boxes of several tests share loopback
                 binary: Path = BUILD / "dataplane" / "sluiced"):
        self.binary = binary
        self.directory, self.ports, self.secret, self.extra = Path(directory), ports, secret, extra
        self.limits, self.port_extra = limits, port_extra
        self.appliance_extra, self.metrics = appliance_extra, metrics
        self.log = self.directory / "sluiced.log"

    def url(self, port: int) -> str:
        return f"vhost://{BOX_ADDRESS}:7700{self.directory}/port{port}.sock"

    def __enter__(self) -> "VhostBox":
        lines = [
            "[appliance]",
            f'address = "{BOX_ADDRESS}/24"',
            f'secret = "{self.secret}"',
            "memory_mib = 256",
            self.appliance_extra,
            "[limits]",
            "member_timeout_s = 10",
            self.limits,
            self.metrics,
            self.extra,
        ]
        for port in range(self.ports):
            lines += [
                "[[port]]",
                f'name = "worker{port}"',
                'type = "vhost-user"',
                f'path = "{self.directory}/port{port}.sock"',
                self.port_extra,
            ]
        config = self.directory / "appliance.toml"
        config.touch(mode=0o600)  # it holds the secret
        config.write_text("\n".join(lines) + "\n")
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(self.binary), "--config", str(config)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + 300
        while "ready:" not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                stop(self.process)
                raise AssertionError(
                    "sluiced did not become ready:\n" + self.log.read_text(errors="replace")
                )
            time.sleep(0.05)
        return self

    def __exit__(self, *_exc) -> None:
        stop(self.process)
