"""wire.py A B MILLISECONDS [FIRST_PORT LAST_PORT]: forwards frames between two interfaces after a while,
and drops those to the TCP ports from FIRST to LAST, since not every kernel has netem and filters."""
import collections
import select
import socket
import sys
import time

# Of linux/if_ether.h, socket.h, if_packet.h and virtio_net.h.
ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR, VNET_HEADER = 3, 263, 15, 10
ETHERNET_HEADER, IPV4, TCP = 14, b"\x08\x00", 6
LONGEST = 1 << 17


def opened(interface):
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    # With what hosts leave to their network card: checksums, and the segments of a long frame.
    frames.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    frames.bind((interface, 0))
    frames.setblocking(False)
    return frames


def tcp_port(frame):
    """The port that a frame is for, or 0 if it is not of TCP."""
    ip = VNET_HEADER + ETHERNET_HEADER
    if frame[ip - 2:ip] != IPV4 or frame[ip + 9] != TCP:
        return 0
    tcp = ip + 4 * (frame[ip] & 15)
    return int.from_bytes(frame[tcp + 2:tcp + 4], "big")


def main():
    one, other = opened(sys.argv[1]), opened(sys.argv[2])
    delay = float(sys.argv[3]) / 1e3
    closed = range(int(sys.argv[4]), int(sys.argv[5]) + 1) if len(sys.argv) > 4 else ()
    waiting = collections.deque()  # (when to send it, where, frame)
    while True:
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, frame = waiting.popleft()
            try:
                to.send(frame)
            except OSError:  # a full queue or a link that is down: lost, as on a wire
                pass
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for source in select.select([one, other], [], [], patience)[0]:
            for _ in range(64):
                try:
                    frame, address = source.recvfrom(LONGEST)
                except OSError:
                    break
                if address[2] != socket.PACKET_OUTGOING and tcp_port(frame) not in closed:
                    waiting.append((time.monotonic() + delay, other if source is one else one, frame))


main()
