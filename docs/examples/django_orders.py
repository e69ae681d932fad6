"""Django: enqueue when the transaction commits, and work the queue off in a management command.

Shows
    transaction.on_commit: a rolled back order leaves no job behind
    a dedup id from the row's primary key: a repeated request is one job
    a worker as a management command, that closes database connections it no longer needs
    idempotent work: the row says whether it was done

One file instead of a project, with settings at its top. Run it with a node at WALRQ_SERVER:  python django_orders.py
"""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.core.management import BaseCommand, call_command  # noqa: E402
from django.db import close_old_connections, connection, models, transaction  # noqa: E402

import walrq  # noqa: E402

QUEUE = "confirmations"
# One client for the process: it opens its connection again by itself, also after a prefork server has forked.
queue = walrq.connect()


class Order(models.Model):
    """An order that wants a confirmation."""

    customer = models.CharField(max_length=100)
    confirmed = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"


def place(customer: str, *, fails: bool = False) -> None:
    """What a view does: the job is enqueued when, and only when, the order is really there."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer)
        transaction.on_commit(lambda: enqueue(order.pk))
        if fails:
            raise RuntimeError("the card was declined")


def enqueue(order_id: int) -> None:
    """A process that dies between commit and push loses this job: see `repair`."""
    queue.push(QUEUE, json={"order": order_id}, dedup_id=f"order-{order_id}")


def repair() -> int:
    """Enqueue what is not confirmed yet, for the case above. Safe to repeat: the dedup ids are the same."""
    missing = Order.objects.filter(confirmed=False).values_list("pk", flat=True)
    for order_id in missing:
        enqueue(order_id)
    return len(missing)


class Command(BaseCommand):
    """`manage.py confirm_orders`: works until the queue has been empty for --wait seconds."""

    def add_arguments(self, parser: Any) -> None:
        """Django calls this."""
        parser.add_argument("--wait", type=float, default=20)

    def handle(self, *args: Any, wait: float, **options: Any) -> None:
        """Django calls this."""
        while messages := queue.poll(QUEUE, wait=wait):
            for message in messages:
                close_old_connections()
                order_id = message.json()["order"]
                # The update says whether this delivery is the first one that got here.
                if Order.objects.filter(pk=order_id, confirmed=False).update(confirmed=True):
                    self.stdout.write(f"confirmed order {order_id}")
                queue.ack(message)


def main() -> None:
    """Two orders, one of which fails, and the worker."""
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    place("ann")
    try:
        place("bob", fails=True)
    except RuntimeError as error:
        print(f"rolled back: {error}")
    print(f"enqueued: {queue.show_queue(QUEUE).ready}")
    print(f"repair enqueues again: {repair()}, waiting: {queue.show_queue(QUEUE).ready}")
    call_command(Command(), wait=0.2)
    print(f"unconfirmed: {Order.objects.filter(confirmed=False).count()}, left: {queue.show_queue(QUEUE).ready}")
    connection.close()
    queue.close()


if __name__ == "__main__":
    main()
