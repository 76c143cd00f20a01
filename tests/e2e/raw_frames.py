#!/usr/bin/env python3
"""Sends or receives raw Ethernet frames on eth0 of a lab host, to show the effect of a switch on
them.

    raw_frames.py send DESTINATION [--source MAC] [--tags 100,200] [--bytes N] [--count N]
    raw_frames.py receive SECONDS           # prints READY, then one JSON line a frame

A receiver ends at a frame of MARKER_BYTES, which a test sends last, or after SECONDS.

The frames carry the ethertype for local experiments (IEEE 802), which no kernel answers. The kernel
takes the outermost VLAN tag off a received frame; it is put back into the printed `tags`.
"""

import argparse
import json
import select
import socket
import struct
import sys
import time

ETHERTYPE = 0x88B5
VLAN = 0x8100
MARKER_BYTES = 77
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_AUXDATA = 8
STATUS_VLAN_VALID = 1 << 4


def mac_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def own_mac() -> str:
    with open("/sys/class/net/eth0/address", encoding="ascii") as file:
        return file.read().strip()


def open_socket() -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    raw.bind(("eth0", ETH_P_ALL))
    return raw


def send(options) -> None:
    frame = mac_bytes(options.destination) + mac_bytes(options.source or own_mac())
    for tag in options.tags.split(",") if options.tags else []:
        frame += struct.pack(">HH", VLAN, int(tag))
    payload = bytes(i % 251 for i in range(options.bytes))
    frame += struct.pack(">H", ETHERTYPE) + payload
    raw = open_socket()
    for _ in range(options.count):
        raw.send(frame)


def describe(frame: bytes, outer: int | None) -> dict | None:
    tags = [] if outer is None else [outer]
    at = 12
    while struct.unpack_from(">H", frame, at)[0] == VLAN:
        tags.append(struct.unpack_from(">H", frame, at + 2)[0])
        at += 4
    if struct.unpack_from(">H", frame, at)[0] != ETHERTYPE:
        return None
    payload = frame[at + 2 :]
    return {
        "destination": frame[:6].hex(":"),
        "source": frame[6:12].hex(":"),
        "tags": tags,
        "bytes": len(payload),
        "intact": all(byte == i % 251 for i, byte in enumerate(payload)),
    }


def receive(options) -> None:
    raw = open_socket()
    raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    print("READY", flush=True)
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 0:
        if not select.select([raw], [], [], left)[0]:
            break
        frame, ancillary, _, address = raw.recvmsg(65536, 256)
        if address[2] == socket.PACKET_OUTGOING or len(frame) < 22:
            continue
        outer = None
        for level, kind, data in ancillary:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                status, _, _, _, _, tci = struct.unpack_from("IIIHHH", data)
                if status & STATUS_VLAN_VALID:
                    outer = tci
        report = describe(frame, outer)
        if report:
            print(json.dumps(report), flush=True)
            if report["bytes"] == MARKER_BYTES:
                break


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    sender = verbs.add_parser("send")
    sender.add_argument("destination")
    sender.add_argument("--source")
    sender.add_argument("--tags", default="")
    sender.add_argument("--bytes", type=int, default=100)
    sender.add_argument("--count", type=int, default=1)
    receiver = verbs.add_parser("receive")
    receiver.add_argument("seconds", type=float)
    options = parser.parse_args()
    {"send": send, "receive": receive}[options.verb](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
