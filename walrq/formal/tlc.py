"""One run of the TLA+ tools as a child process on Trio.

A run has a folder of its own with copies of the modules, its configuration, TLC's state files and Java's temporary
files; when the run is over, for whatever reason, the child is dead and the folder gone.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from walrq.formal.output import Progress, Reading, Transcript, Verdict, verdict_of
from walrq.formal.tools import Tools

# Of one line: a state of the larger modules takes a few kilobytes.
_READ_BYTES: Final = 1 << 16
_STDERR_CHARS: Final = 2000


@attrs.frozen
class Job:
    """What to run.

    Attributes:
        module: name of the module to check.
        sources: text of every module that may be needed, by name.
        config: text of the configuration file.
        options: further words of TLC's command line; `{folder}` in them is the run's folder.
        timeout_s: seconds after which the run is given up.
        memory_mib: Java's heap.
        workers: threads of the search.
        brief: whether it is over in seconds, most of them Java's own.
        keep: files to take out of the folder at the end, as patterns.
    """

    module: str
    sources: Mapping[str, str]
    config: str
    options: tuple[str, ...] = ()
    timeout_s: float = 600.0
    memory_mib: int = 2048
    workers: int = 1
    brief: bool = False
    keep: tuple[str, ...] = ()


@attrs.frozen
class Report:
    """How a run ended, what it said, the files that were to be kept (name -> text), how long it took."""

    verdict: Verdict
    transcript: Transcript
    files: Mapping[str, str]
    seconds: float
    status: int | None

    @property
    def trouble(self) -> str:
        """What went wrong when it was not the specification, on one line."""
        return " ".join(" ".join(self.transcript.errors).split())


def command_of(tools: Tools, folder: Path, job: Job, program: str = "tlc2.TLC") -> list[str]:
    """The child's command line."""
    # A search is work for idle processors; whoever asked for it has others things to do meanwhile.
    nice = shutil.which("nice")
    polite = [nice, "-n", "19"] if nice is not None else []
    # With few states the compiler's second stage and a parallel collector cost more than they bring: the stage is half
    # of all the work of a search of 20,000 states.
    java = [
        str(tools.java),
        f"-Xmx{job.memory_mib}m",
        *(["-XX:TieredStopAtLevel=1"] if job.brief else []),
        "-XX:+UseSerialGC" if job.workers == 1 else "-XX:+UseParallelGC",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "-cp",
        str(tools.jar),
        program,
    ]
    if program != "tlc2.TLC":
        return [*polite, *java, f"{job.module}.tla"]
    words = [word.replace("{folder}", str(folder)) for word in job.options]
    search = ["-tool", "-workers", str(job.workers), "-metadir", str(folder / "states"), *words]
    return [*polite, *java, *search, "-config", f"{job.module}.cfg", f"{job.module}.tla"]


async def run(tools: Tools, job: Job, told: Callable[[Progress], None] | None = None) -> Report:
    """Run TLC; a violated property is a verdict, not an error. `told` hears of the progress."""
    return await _run(tools, job, "tlc2.TLC", told)


async def parse(tools: Tools, job: Job) -> Report:
    """Let SANY read the module; the verdict is OK or PARSE."""
    report = await _run(tools, job, "tla2sany.SANY", None)
    # SANY ends with 0 whatever it read.
    wrong = any("***" in line or "Error" in line for line in report.transcript.errors)
    if report.verdict is Verdict.OK and wrong:
        return attrs.evolve(report, verdict=Verdict.PARSE)
    return report


async def _run(tools: Tools, job: Job, program: str, told: Callable[[Progress], None] | None) -> Report:
    started = trio.current_time()
    folder = Path(tempfile.mkdtemp(prefix="walrq-spec-"))
    try:
        _furnish(folder, job)
        reading = Reading()
        status, complaint = None, ""
        with trio.move_on_after(job.timeout_s) as scope:
            status, complaint = await _converse(command_of(tools, folder, job, program), folder, reading, told)
        verdict = Verdict.TIMEOUT if scope.cancelled_caught or status is None else verdict_of(status)
        transcript = reading.transcript
        if verdict in (Verdict.CRASHED, Verdict.CONFIGURATION) and complaint:
            transcript.errors.append(complaint)
        return Report(verdict, transcript, _kept(folder, job), trio.current_time() - started, status)
    finally:
        shutil.rmtree(folder)


def _furnish(folder: Path, job: Job) -> None:
    (folder / "tmp").mkdir()
    for name, text in job.sources.items():
        (folder / f"{name}.tla").write_text(text, "utf-8")
    (folder / f"{job.module}.cfg").write_text(job.config, "utf-8")


def _kept(folder: Path, job: Job) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for pattern in job.keep for path in sorted(folder.glob(pattern))}


async def _converse(
    command: Sequence[str], folder: Path, reading: Reading, told: Callable[[Progress], None] | None
) -> tuple[int, str]:
    """Run the child to its end; (exit status, the end of what it wrote to standard error)."""
    process = await trio.lowlevel.open_process(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    complaint = bytearray()

    async def listen() -> None:
        assert process.stderr is not None
        async for chunk in process.stderr:
            complaint.extend(chunk)
            del complaint[:-_STDERR_CHARS]

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await _read(process, reading, told)
        status = await process.wait()
    finally:
        # Cancelled, or failed: the child does not outlive the call.
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
                await process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()
    return status, complaint.decode("utf-8", "replace").strip()


async def _read(process: trio.Process, reading: Reading, told: Callable[[Progress], None] | None) -> None:
    assert process.stdout is not None
    rest = b""
    said, began = reading.transcript, trio.current_time()
    while chunk := await process.stdout.receive_some(_READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            progress = reading.line(line.decode("utf-8", "replace").rstrip("\r"))
            if len(said.printed_s) < len(said.printed):
                said.printed_s.append(trio.current_time() - began)
            if progress is not None and told is not None:
                told(progress)
    if rest:
        reading.line(rest.decode("utf-8", "replace"))
