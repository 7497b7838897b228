"""delay.py A B MILLISECONDS: forwards frames between two interfaces after a while, since not every kernel
has netem."""
import collections
import select
import socket
import sys
import time

# Of linux/if_ether.h, socket.h and if_packet.h.
ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR = 3, 263, 15
LONGEST = 1 << 17


def opened(interface):
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    # With what hosts leave to their network card: checksums, and the segments of a long frame.
    frames.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    frames.bind((interface, 0))
    frames.setblocking(False)
    return frames


def main():
    one, other = opened(sys.argv[1]), opened(sys.argv[2])
    delay = float(sys.argv[3]) / 1e3
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
                if address[2] != socket.PACKET_OUTGOING:
                    waiting.append((time.monotonic() + delay, other if source is one else one, frame))


main()
