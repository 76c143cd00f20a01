"""A lab's links: their offloads, their shapers, and what a bare sender gets through them.

The rate is the wire's: 24 bytes a frame (preamble, checksum, gap) count, as in sluiced's own
shaper. The kernel's shapers take packets before segmentation and can't count those, so they get the
part of the rate that frames of full length have; shorter frames are charged a little less.

A frame that is sent at once costs a shaper nothing; one that waits costs a timer, which in a
virtual machine leaves it. htb with hysteresis goes into debt by one burst and waits until it is
repaid: one timer a burst, whether the burst is one packet of 64 KB or 40 frames.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

QUEUE_BYTES = 2_000_000
ETHERNET_BYTES = 14
FRAME_OVERHEAD_BYTES = 24  # on the wire besides the frame: Egress::kWireOverheadBytes
SECONDS_A_BURST = 0.001
BURST_BYTES = (16_384, 65_536)  # the least, as sluiced's shaper has it; a segmented packet's most
HYSTERESIS = Path("/sys/module/sch_htb/parameters/htb_hysteresis")
LAB_NAMESPACE = re.compile(r"slc?\d+x\d+-")


def offload_commands(device: str, software: bool, merge: bool) -> list[str]:
    """`software`: big packets are cut and finished by software behind the queue, as the other end
    may read raw frames; without, the sender's stack does it. `merge`: received frames are merged.
    """
    on = {True: "on", False: "off"}
    return [
        f"ethtool -K {device} tx off rx off tso off tx-udp-segmentation off "
        f"gso {on[software]} gro {on[merge]}",
        f"ethtool -K {device} txvlan off rxvlan off",  # tags stand in their place
    ]


def tie_commands(number: int, box: str, host: str, mtu: int, middle: str | None) -> list[str]:
    """Ties a host to the box, each named by its namespace; with `middle` by two links, whose ends
    there, `near<number>` and `far<number>`, cables.py joins."""
    ends = [(host, "eth0"), (box, f"s{number}")]
    if middle is not None:
        ends = [ends[0], (middle, f"near{number}"), ends[1], (middle, f"far{number}")]
    commands = [f"ip link add {device} netns {space} mtu {mtu} type veth "
                f"peer name {peer} netns {peer_space} mtu {mtu}"
                for (space, device), (peer_space, peer) in zip(ends[::2], ends[1::2])]
    for space, device in ends[1::2] if middle is not None else ():
        inside = f"ip netns exec {space} "
        commands += [inside + each for each in offload_commands(device, False, False)]
        commands += [f"{inside}ip link set {device} up"]
    return commands


def shaper_commands(device: str, rate_mbps: float, mtu: int) -> list[str]:
    frame = mtu + ETHERNET_BYTES
    rate_bps = round(rate_mbps * 1e6 * frame / (frame + FRAME_OVERHEAD_BYTES))
    least, most = BURST_BYTES
    burst = round(min(max(rate_bps / 8 * SECONDS_A_BURST, least), most))
    tc = f"tc qdisc add dev {device}"
    return [
        f"{tc} root handle 1: htb default 1 r2q 1000",
        f"tc class add dev {device} parent 1: classid 1:1 htb rate {rate_bps}bit "
        f"burst {burst} cburst {burst}",
        f"{tc} parent 1:1 bfifo limit {QUEUE_BYTES}",
    ]


@contextlib.contextmanager
def one_timer_a_burst():
    """While the block runs, this machine's htb arms one timer a burst and not one a packet.

    The switch is the machine's: the last lab that ends turns it off.
    """
    if HYSTERESIS.exists():
        HYSTERESIS.write_text("1")
    try:
        yield
    finally:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
        if HYSTERESIS.exists() and not LAB_NAMESPACE.search(listed.stdout):
            HYSTERESIS.write_text("0")


def carried_mbps(
    lab, sender: int, receiver: int, seconds: float = 1.0, during=time.sleep
) -> tuple[float, float]:
    """What a bare sender's frames take of two links, in Mb/s of the wire: (up, down).

    UDP packets of full frames, 40 at once, as fast as the kernel takes them, from one host of the
    lab to another. Its queues are full when the time begins, so the links and not it set the rate.
    `during(seconds)` is what is done meanwhile.
    """
    process = lab.popen(sender, [sys.executable, __file__, lab.address(receiver), str(lab.mtu)])
    try:
        time.sleep(0.5)
        before = _wire_bytes(lab, sender, 0), _wire_bytes(lab, receiver, 1)
        began = time.monotonic()
        during(seconds)
        after = _wire_bytes(lab, sender, 0), _wire_bytes(lab, receiver, 1)
        took = time.monotonic() - began
    finally:
        process.terminate()
        process.wait(10)
    up, down = ((now - then) * 8 / took / 1e6 for now, then in zip(after, before))
    return up, down


def _wire_bytes(lab, host: int, direction: int) -> int:
    bytes_, frames = lab.link_bytes(host)[direction], lab.link_frames(host)[direction]
    return bytes_ + frames * FRAME_OVERHEAD_BYTES


def _send(address: str, mtu: int) -> None:
    """Sends until it is ended."""
    udp_segment = 103  # of linux/udp.h
    payload = mtu - 28
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.SOL_UDP, udp_segment, payload)
    packet = bytes(payload * min(40, 65_000 // payload))
    while True:
        with contextlib.suppress(ConnectionError):  # nobody listens there
            out.sendto(packet, (address, 9))


if __name__ == "__main__":
    _send(sys.argv[1], int(sys.argv[2]))
