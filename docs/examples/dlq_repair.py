"""DLQ repair: find out why messages died, send back those that can work now, mend or drop the rest.

Shows
    nack with an error: its type and text stay with the message
    list_dead with a filter, and the history of attempts
    redrive by error type: first a dry run, then the real one
    mending a payload: push anew with a dedup id, then remove the dead one, so that a crash in between repeats nothing

Run it with a node at WALRQ_SERVER:  python dlq_repair.py
"""

from __future__ import annotations

import collections
import json

import walrq

QUEUE = "invoices"


class GatewayDown(Exception):
    """The payment gateway did not answer."""


def charge(invoice: dict[str, object], *, gateway_is_up: bool) -> None:
    """The handler: an invoice without a currency is a mistake, the gateway may be down."""
    if "currency" not in invoice:
        raise ValueError("the invoice names no currency")
    if not gateway_is_up:
        raise GatewayDown("no answer within 5 s")


def work(queue: walrq.Client, *, gateway_is_up: bool) -> int:
    """Work off what is there; how many were charged."""
    charged = 0
    while messages := queue.poll(QUEUE):
        for message in messages:
            try:
                charge(message.json(), gateway_is_up=gateway_is_up)
            except (ValueError, GatewayDown) as error:
                queue.nack(message, error=error, delay=0)
            else:
                queue.ack(message)
                charged += 1
    return charged


def main() -> None:
    """A bad night, and the morning after."""
    with walrq.connect() as queue:
        queue.create_queue(QUEUE, max_deliveries=2)
        queue.push_batch(QUEUE, [json.dumps({"invoice": n, "currency": "EUR"}) for n in range(4)])
        queue.push(QUEUE, json={"invoice": 4})
        print(f"charged at night: {work(queue, gateway_is_up=False)}")

        dead = queue.list_dead(QUEUE, limit=100)
        why = collections.Counter(each.history[-1].error_type for each in dead)
        for error_type, count in sorted(why.items()):
            print(f"dead: {count} x {error_type}")
        # The first line is the message; the traceback follows.
        texts = [(attempt.error_text or "").partition("\n")[0] for attempt in dead[0].history]
        print(f"attempts of the first: {texts}")

        print(f"would move: {queue.redrive(QUEUE, error_type='GatewayDown', dry_run=True).count}")
        print(f"moved: {queue.redrive(QUEUE, error_type='GatewayDown').count}")
        print(f"charged in the morning: {work(queue, gateway_is_up=True)}")

        for each in queue.list_dead(QUEUE, error_type="ValueError"):
            assert each.payload is not None
            mended = json.loads(each.payload) | {"currency": "EUR"}
            queue.push(QUEUE, json=mended, dedup_id=f"mended-{each.message_id}")
            queue.purge_dead(QUEUE, ids=[each.message_id])
        print(f"charged after mending: {work(queue, gateway_is_up=True)}")
        print(f"left dead: {len(queue.list_dead(QUEUE))}")


if __name__ == "__main__":
    main()
