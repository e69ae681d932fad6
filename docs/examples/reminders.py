"""Reminders: deliver later, take back, move to another time.

Shows
    deliver_at with an aware datetime, up to 30 days ahead
    cancel and reschedule with an exact answer: done, leased, gone or unknown
    a table of one's own from the thing reminded of to the message id, and a dedup id that makes setting it repeatable

Run it with a node at WALRQ_SERVER:  python reminders.py
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import walrq

QUEUE = "reminders"


class Reminders:
    """One reminder for each appointment; the ids would live in the application's database."""

    def __init__(self, queue: walrq.Client) -> None:
        self.queue = queue
        self.ids: dict[str, str] = {}

    def set(self, appointment: str, at: datetime) -> None:
        """Remind at `at`; setting the same one twice is one reminder."""
        self.ids[appointment] = self.queue.push(
            QUEUE, json={"appointment": appointment}, deliver_at=at, dedup_id=f"{appointment}@{at.isoformat()}"
        )

    def move(self, appointment: str, at: datetime) -> str:
        """Another time; "leased" or "gone" tells that it is too late."""
        return self.queue.reschedule(QUEUE, self.ids[appointment], at)

    def cancel(self, appointment: str) -> str:
        """No reminder after all."""
        return self.queue.cancel(QUEUE, self.ids[appointment])[0]


def main() -> None:
    """Three appointments: one is cancelled, one moved to now, one stays for tomorrow."""
    now = datetime.now(UTC)
    tomorrow = now + timedelta(days=1)
    with walrq.connect() as queue:
        reminders = Reminders(queue)
        for appointment in ("dentist", "dinner", "flight"):
            reminders.set(appointment, tomorrow)
            reminders.set(appointment, tomorrow)
        print(f"waiting: {queue.show_queue(QUEUE).delayed}")
        print(f"cancel dentist: {reminders.cancel('dentist')}")
        print(f"cancel it again: {reminders.cancel('dentist')}")
        print(f"dinner is now: {reminders.move('dinner', now)}")
        for message in queue.consume(QUEUE):
            print(f"remind of {message.json()['appointment']}")
            print(f"move it while it is being sent: {reminders.move('dinner', tomorrow)}")
            queue.ack(message)
            break
        (left,) = queue.peek(QUEUE, state="delayed")
        assert left.due_at is not None
        print(f"left: flight in {round((left.due_at - now) / timedelta(hours=1))} h")


if __name__ == "__main__":
    main()
