"""Look into a data directory without changing it: what `walrq wal inspect` and `walrq wal verify` print.

Nothing is written, locked, repaired or put aside, so a directory may be looked at while a daemon runs on it;
the tail may then look torn, because it is being written. All results are plain values ready for JSON. Only
`probe_sync` writes, to a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import attrs

from walrq.errors import CorruptRecord, DataDirInvalid
from walrq.storage import identity
from walrq.storage.disk import Disk, RealDisk, read_file
from walrq.storage.findings import Finding, Verdict
from walrq.storage.hard_state import HardStateFile
from walrq.storage.manifest import Install, Manifest, decode_manifest
from walrq.storage.opening import is_void, survey
from walrq.storage.record import Found
from walrq.storage.recovery import judge_end, scan_file
from walrq.storage.segment import Header, number_in, read_header, staged_number_in, superseded
from walrq.storage.snapshot import SnapshotReader, manifest_number


@attrs.frozen
class Verification:
    """The outcome of reading everything.

    `ok` is False as soon as anything durable is damaged or missing; a torn or suspect tail alone is not
    damage.
    """

    ok: bool
    segments: int
    records: int
    record_bytes: int
    first_index: int
    last_index: int
    snapshot_index: int
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        fields = attrs.asdict(self, recurse=False)
        return {**fields, "findings": [finding.as_json() for finding in self.findings]}


def segments(data_dir: str, *, disk: Disk | None = None) -> Iterator[dict[str, Any]]:
    """One value per segment file: header, slots and what a scan of it says. DataDirInvalid."""
    disk = disk or RealDisk()
    for name, header in _segment_headers(disk, data_dir):
        if header is None:
            yield {"segment": name, "readable": False}
            continue
        scanned = scan_file(disk, f"{data_dir}/wal/{name}", f"wal/{name}", header)
        promise = header.promise
        yield {
            "segment": name,
            "readable": True,
            "incarnation": header.identity.incarnation,
            "first_index": header.identity.first_index,
            "last_index": scanned.last_index,
            "records": sum(1 for offset in scanned.chain.offsets if offset),
            "end": scanned.chain.end,
            "file_bytes": header.identity.file_bytes,
            "older_end": promise.older_end,
            "newer_end": promise.newer_end,
            "sealed": promise.sealed,
            "sparse": header.identity.sparse,
            "findings": [finding.as_json() for finding in scanned.findings],
        }


def records(
    data_dir: str, *, segment: str = "", from_index: int = 0, disk: Disk | None = None
) -> Iterator[dict[str, Any]]:
    """One value per intact record and per finding, in file order.

    Args:
        segment: name of one segment file; empty: all.
        from_index: leave out the records before.

    Raises: DataDirInvalid, also for a segment that is not there.
    """
    disk = disk or RealDisk()
    found_any = False
    for name, header in _segment_headers(disk, data_dir):
        if segment and name != segment:
            continue
        found_any = True
        if header is None:
            yield {"segment": name, "verdict": Verdict.METADATA.value, "text": "header and slots are damaged"}
            continue
        seen: list[Found] = []
        scanned = scan_file(disk, f"{data_dir}/wal/{name}", f"wal/{name}", header, visit=seen.append)
        lines = [(found.offset, _record_line(name, found)) for found in seen if found.index >= from_index]
        lines += [(finding.start, {"segment": name, **finding.as_json()}) for finding in scanned.findings]
        for _, line in sorted(lines, key=lambda item: item[0]):
            yield line
    if segment and not found_any:
        raise DataDirInvalid(f"{data_dir}/wal has no segment {segment!r}")


def _record_line(name: str, found: Found) -> dict[str, Any]:
    return {
        "segment": name,
        "offset": found.offset,
        "end": found.end,
        "verdict": "fence" if found.is_fence else "intact",
        "index": found.index,
        "term": found.term,
        "kind": found.kind,
        "body_bytes": found.body_bytes,
        "crc": f"{found.crc:08x}",
    }


def verify(data_dir: str, *, disk: Disk | None = None) -> Verification:
    """Read every byte of a data directory that is covered by a checksum. DataDirInvalid; OSError."""
    disk = disk or RealDisk()
    _check_directory(disk, data_dir)
    snapshot, findings = _verify_snapshots(disk, data_dir)
    has_snapshot = snapshot is not None or bool(findings)
    findings = _verify_hard_state(disk, data_dir, has_snapshot=has_snapshot) + findings
    snapshot_index = snapshot.index if snapshot is not None else 0
    count = record_count = record_bytes = first_index = last_index = 0
    expected = snapshot_index + 1
    newest: tuple[int, bool] | None = None
    set_aside = False
    install = snapshot.install if snapshot is not None else None
    for name, header in _log_headers(disk, data_dir, install):
        count += 1
        if header is None:
            findings.append(Finding(Verdict.METADATA, f"wal/{name}", "header and slots are damaged"))
            set_aside = True
            continue
        scanned = scan_file(disk, f"{data_dir}/wal/{name}", f"wal/{name}", header)
        findings += [found for found in scanned.findings if not _is_behind_base(found, header, install)]
        first_index = first_index or scanned.first_index
        if scanned.first_index > expected:
            text = "no segment holds these records"
            gap = Finding(Verdict.MISSING, "wal", text, first_index=expected, last_index=scanned.first_index - 1)
            findings.append(gap)
        record_count += sum(1 for offset in scanned.chain.offsets if offset)
        record_bytes += scanned.chain.end
        last_index = max(last_index, scanned.last_index)
        expected = max(expected, scanned.last_index + 1)
        newest = (scanned.last_index, header.promise.sealed)
    if not set_aside:
        findings += judge_end(newest, snapshot_index)
    tails = (Verdict.TORN, Verdict.SUSPECT)
    return Verification(
        ok=all(finding.verdict in tails for finding in findings),
        segments=count,
        records=record_count,
        record_bytes=record_bytes,
        first_index=first_index,
        last_index=last_index,
        snapshot_index=snapshot_index,
        findings=tuple(findings),
    )


def probe_sync(directory: str, times: int, *, disk: Disk | None = None) -> Generator[None, None, None]:
    """Write and sync one page a step: what a commit costs there. The caller measures the steps.

    The first step makes the file: preallocated, and without a name, so that nothing can be left behind. OSError as
    the disk says.
    """
    disk = disk or RealDisk()
    path = f"{directory}/.walrq-probe-{disk.new_uuid().hex()}"
    handle = disk.open(path, create=True)
    try:
        disk.unlink(path)
        page = bytes(4096)
        disk.preallocate(handle, times * len(page))
        disk.fdatasync(handle)
        yield
        for number in range(times):
            disk.pwrite(handle, page, number * len(page))
            disk.fdatasync(handle)
            yield
    finally:
        disk.close(handle)


def _segment_headers(disk: Disk, data_dir: str) -> Iterator[tuple[str, Header | None]]:
    _check_directory(disk, data_dir)
    for name in disk.list_directory(f"{data_dir}/wal"):
        first_index = number_in(name, free=False)
        if first_index is not None:
            header = read_header(disk, f"{data_dir}/wal/{name}")
            known = header is not None and header.identity.first_index == first_index
            yield name, header if known else None


def _log_headers(disk: Disk, data_dir: str, install: Install | None) -> Iterator[tuple[str, Header | None]]:
    """The segments of the log, also when a crash left it between two states."""
    found: list[tuple[int, str, Header | None]] = []
    for name, header in _segment_headers(disk, data_dir):
        if header is None or install is None or not is_void(header.identity, install):
            found.append((number_in(name, free=False) or 0, name, header))
    for name in disk.list_directory(f"{data_dir}/wal") if install is not None else ():
        first_index = staged_number_in(name)
        header = read_header(disk, f"{data_dir}/wal/{name}") if first_index is not None else None
        if first_index is None or header is None or install is None:
            continue
        if (first_index, header.identity.incarnation) in install.segments:
            found.append((first_index, name, header))
    found.sort(key=lambda item: item[:2])
    void = superseded([(name, header) for _, name, header in found if header is not None])
    yield from ((name, header) for _, name, header in found if name not in void)


def _is_behind_base(found: Finding, header: Header, install: Install | None) -> bool:
    """Whether it is of what an install takes away from a segment, and was interrupted at."""
    if install is None or header.identity.incarnation > install.incarnation:
        return False
    return header.identity.first_index <= install.base < found.first_index


def _check_directory(disk: Disk, data_dir: str) -> None:
    if not disk.exists(f"{data_dir}/{identity.NAME}"):
        raise DataDirInvalid(f"{data_dir} is no walrq data directory: it has no {identity.NAME} file")
    identity.read_identity(disk, data_dir)


def _verify_hard_state(disk: Disk, data_dir: str, *, has_snapshot: bool) -> list[Finding]:
    file = HardStateFile(disk, data_dir)
    found = survey(disk, data_dir)
    lived = found.records or has_snapshot
    try:
        file.load(lived=lived)
    except CorruptRecord as error:
        return [Finding(Verdict.METADATA, "hard-state", error.text)]
    if file.marks is None and lived:
        return [Finding(Verdict.METADATA, "hard-state", "the file is gone: term, vote and identity are unknown")]
    if file.state is not None and not found.segments and not has_snapshot:
        text = f"the directory has been used before (term {file.state.term}), but log and snapshots are gone"
        return [Finding(Verdict.MISSING, "wal", text)]
    return []


def _verify_snapshots(disk: Disk, data_dir: str) -> tuple[Manifest | None, list[Finding]]:
    """The newest intact manifest, and what is wrong with the others."""
    newest: Manifest | None = None
    findings: list[Finding] = []
    directory = f"{data_dir}/snapshots"
    for name in disk.list_directory(directory):
        if manifest_number(name) is None:
            continue
        manifest = decode_manifest(read_file(disk, f"{directory}/{name}"))
        if manifest is None:
            findings.append(Finding(Verdict.METADATA, f"snapshots/{name}", "the manifest is damaged"))
            continue
        try:
            for _ in SnapshotReader(disk, directory, manifest).pages():
                pass
        except (CorruptRecord, FileNotFoundError) as error:
            findings.append(Finding(Verdict.METADATA, f"snapshots/{name}", str(error)))
            continue
        newest = manifest
    return newest, findings


def lock_holder(path: str) -> int | None:
    """The process that has locked a file, as this system tells it; None when nobody has, or when it does not tell."""
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            return holder_of(os.stat(path), locks.read())
    except OSError:
        return None


def holder_of(status: os.stat_result, locks: str) -> int | None:
    """The process that has flocked a file, from the text of /proc/locks."""
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks.splitlines():
        fields = line.split()
        # 1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == place:
            # 0, or negative: a process of another container.
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None
