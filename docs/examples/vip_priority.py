"""VIP priority: paying customers do not wait behind the others, and the others are not starved.

Shows
    priority: the highest waiting message is handed out next
    a share for everybody: each worker round takes VIP orders first, but at most VIP_SHARE of a batch

Run it with a node at WALRQ_SERVER:  python vip_priority.py
"""

from __future__ import annotations

import walrq

BATCH = 10
VIP_SHARE = 8


def strict(queue: walrq.Client) -> list[str]:
    """One queue with priorities: VIP first, always."""
    queue.push_batch("orders", [f"normal {number}" for number in range(3)])
    queue.push_batch("orders", [f"vip {number}" for number in range(2)], priority=9)
    served = []
    while messages := queue.poll("orders", max_messages=1):
        served += [message.payload.decode() for message in messages]
        queue.ack(messages)
    return served


def fair(queue: walrq.Client) -> list[list[str]]:
    """Two queues: most of each batch for the VIPs, the rest for whoever waits longest."""
    queue.push_batch("orders.vip", [f"vip {number}" for number in range(20)])
    queue.push_batch("orders.normal", [f"normal {number}" for number in range(6)])
    rounds: list[list[str]] = []
    while True:
        messages = queue.poll("orders.vip", max_messages=VIP_SHARE)
        messages += queue.poll("orders.normal", max_messages=BATCH - len(messages))
        if not messages:
            return rounds
        rounds.append([message.payload.decode() for message in messages])
        queue.ack(messages)


def main() -> None:
    """Both ways, one after the other."""
    with walrq.connect() as queue:
        print("strict:", ", ".join(strict(queue)))
        for number, served in enumerate(fair(queue), start=1):
            vips = sum(name.startswith("vip") for name in served)
            print(f"round {number}: {vips} vip, {len(served) - vips} normal")


if __name__ == "__main__":
    main()
