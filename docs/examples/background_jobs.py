"""Background jobs with a crashing worker: nothing is lost, and no effect happens twice.

Shows
    a task: a plain function that is called in another process, later
    a worker that is killed with -9 in the middle of a job: its lease ends, another worker gets the job
    an effect that happens once although the job ran twice: the message's id is its key in the database
    a stop by SIGTERM that lets running jobs finish

Run it with a node at WALRQ_SERVER:  python background_jobs.py
It starts its workers itself, as `python background_jobs.py work`; `walrq worker background_jobs:worker` does the same.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import walrq

DATABASE = os.environ.get("JOBS_DATABASE", "jobs.sqlite")
IMAGES = ["small.png", "big.png", "tiny.png"]

# A killed worker's jobs come back after its lease. A second is short; it is what makes this demonstration quick.
worker = walrq.Worker(queue="thumbnails", concurrency=1, prefetch=0, lease=1.0)


@worker.task(retries=5)
def make_thumbnail(image: str) -> None:
    """The work, and then its effect, once."""
    context = walrq.current()
    print(f"started {image}, delivery {context.delivery}", flush=True)
    if image == "big.png" and context.delivery == 1:
        time.sleep(600)  # long enough to be killed in the middle
    with sqlite3.connect(DATABASE) as database:
        database.execute("insert into thumbnails values (?, ?) on conflict do nothing", (context.message_id, image))
    database.close()


def start_worker() -> subprocess.Popen[str]:
    """A worker in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, "work"], stdout=subprocess.PIPE, text=True)


def finished() -> list[str]:
    """Which thumbnails there are."""
    with sqlite3.connect(DATABASE) as database:
        rows = database.execute("select image from thumbnails order by image").fetchall()
    database.close()
    return [image for (image,) in rows]


def main() -> None:
    """Three jobs, one murder, two workers."""
    with sqlite3.connect(DATABASE) as database:
        database.execute("create table thumbnails (message_id text primary key, image text)")
    database.close()
    make_thumbnail.enqueue_many([make_thumbnail.call(image) for image in IMAGES])

    first = start_worker()
    assert first.stdout is not None
    for line in first.stdout:
        print("first worker:", line.strip())
        if line.startswith("started big.png"):
            break
    first.kill()
    first.communicate()
    print("killed the first worker; done so far:", finished())

    second = start_worker()
    assert second.stdout is not None
    left = len(IMAGES) - len(finished())
    for line in second.stdout:
        print("second worker:", line.strip())
        left -= 1
        if not left:
            break
    second.send_signal(signal.SIGTERM)
    second.communicate()
    print("the second worker ended with", second.returncode)
    print("done:", finished())
    with walrq.connect() as queue:
        info = queue.show_queue("thumbnails")
        print(f"left: {info.ready} ready, {info.leased} leased, {info.dead} dead")
    worker.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        sys.exit(worker.run())
    main()
