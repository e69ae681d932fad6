------------------------------ MODULE Compact ------------------------------
(***************************************************************************)
(* How the log's room is given back (walrq/storage/): segments are sealed,  *)
(* a snapshot makes what is dead below it superfluous, a segment in which   *)
(* nothing is alive goes to the pool, and one that is mostly dead is        *)
(* written again beside itself, without the dead records, and takes the     *)
(* old one's name (the flip-flop); while others read.                       *)
(*                                                                          *)
(* An entry is a push, or an acknowledgement of one. Entries lie in         *)
(* segments of SegSize. A name is durable once the directory is synced,     *)
(* what is written once the file is; a crash leaves any part of the rest.   *)
(*                                                                          *)
(* Modelled: append, sync, rotation, snapshots, reclaim, the pool, the      *)
(* rewrite in its steps, a reader by index that has a file open for as long *)
(* as it likes, a reader of whole segments by name (a backup, a stream to   *)
(* another node) that holds them, power loss at every point.                *)
(*                                                                          *)
(* Not modelled: rot (Wal.tla), the bytes of records, full disks, the page  *)
(* files of snapshots, which are rewritten into new ones and never changed. *)
(* The rewrite of a segment without its dead records is a design:           *)
(* walrq/storage/ gives whole segments back, and rewrites damaged ones.     *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    MaxEntries, SegSize,
    Files,        \* how many there may be
    MaxCrashes,
    Readers,      \* "index": reads a record; "segment": holds and reads a segment
    Rewrites,     \* FALSE: as long as nothing is rewritten
    Bugs

VARIABLES
    log,       \* log[i]: 0 a push, j an acknowledgement of entry j
    dur,       \* entries through this one are durable
    snap,      \* the newest durable snapshot
    files,     \* what verifies in a file, and how much of that is durable
    dir, disk, \* segment number -> file, 0: none; as it is seen, and as it is durable
    staged,    \* the segment that is being rewritten, and the file beside it
    limbo,     \* files that lost their names, which the directory does not know for sure
    pool,      \* files that wait for use
    reader,    \* what it looks for, the file that it opened (0: not yet), what it got
    held,      \* the segment that is held, and the file that was found
    crashes,
    act, bug

vars == <<log, dur, snap, files, dir, disk, staged, limbo, pool, reader, held, crashes, act, bug>>
View == <<log, dur, snap, files, dir, disk, staged, limbo, pool, reader, held, crashes, bug>>

Segments == 1..((MaxEntries + SegSize - 1) \div SegSize)
FileIds == 1..Files
SegmentOf(i) == 1 + (i - 1) \div SegSize
Span(k) == (1 + (k - 1) * SegSize)..(k * SegSize)
LastOf(k) == k * SegSize
Last == Len(log)
Active == SegmentOf(IF Last = 0 THEN 1 ELSE Last)

Empty == [holds |-> {}, safe |-> {}]
NoStage == [seg |-> 0, file |-> 0, synced |-> FALSE]
Idle == [i |-> 0, file |-> 0, got |-> "nothing"]
NoHold == [seg |-> 0, file |-> 0]

Alive(lg, i) == lg[i] = 0 /\ \A j \in (i + 1)..Len(lg) : lg[j] # i
LiveIn(k) == {i \in Span(k) : i <= Last /\ Alive(log, i)}
(* What is dead once what is durable is applied. *)
DurablyLiveIn(k) == {i \in Span(k) : i <= dur /\ Alive(SubSeq(log, 1, dur), i)}
Readable(i) == LET f == dir[SegmentOf(i)] IN f # 0 /\ i \in files[f].holds

Used == {dir[k] : k \in Segments} \cup {disk[k] : k \in Segments} \cup {staged.file} \cup limbo \cup pool
(* A file of the pool first. It is overwritten. *)
Available == IF pool # {} THEN {CHOOSE f \in pool : TRUE}
             ELSE IF FileIds \subseteq Used THEN {} ELSE {CHOOSE f \in FileIds : f \notin Used}

-----------------------------------------------------------------------------
(* Writing. *)
Append1(entry) ==
    /\ Last < MaxEntries
    /\ \E k \in {SegmentOf(Last + 1)} :
          /\ dir[k] # 0 /\ dir[k] = disk[k]
          /\ files' = [files EXCEPT ![dir[k]].holds = @ \cup {Last + 1}]
    /\ log' = Append(log, entry)
    /\ UNCHANGED <<dur, snap, dir, disk, staged, limbo, pool, reader, held, crashes, bug>>

Push == Append1(0) /\ act' = [op |-> "Push", i |-> Last + 1]
(* Only what is durable is delivered. *)
Ack(i) == i <= dur /\ Alive(log, i) /\ Append1(i) /\ act' = [op |-> "Ack", i |-> i]

Sync ==
    /\ dur < Last
    /\ dur' = Last
    /\ \E k \in {SegmentOf(Last)} : files' = [files EXCEPT ![dir[k]].safe = files[dir[k]].holds]
    /\ act' = [op |-> "Sync", i |-> Last]
    /\ UNCHANGED <<log, snap, dir, disk, staged, limbo, pool, reader, held, crashes, bug>>

(* The old segment is sealed and synced; a file gets the name of the next one. *)
Rotate ==
    /\ dur = Last /\ Last < MaxEntries
    /\ \E k \in {SegmentOf(Last + 1)} :
          /\ dir[k] = 0
          /\ \E f \in Available :
                /\ dir' = [dir EXCEPT ![k] = f]
                /\ files' = [files EXCEPT ![f] = Empty]
                /\ pool' = pool \ {f}
          /\ act' = [op |-> "Rotate", i |-> k]
    /\ UNCHANGED <<log, dur, snap, disk, staged, limbo, reader, held, crashes, bug>>

(* From here on the names are what they are, and files without one may be used. *)
SyncDirectory ==
    /\ dir # disk \/ limbo # {}
    /\ disk' = dir
    /\ pool' = pool \cup limbo /\ limbo' = {}
    /\ act' = [op |-> "SyncDirectory", i |-> 0]
    /\ UNCHANGED <<log, dur, snap, files, dir, staged, reader, held, crashes, bug>>

Image ==
    /\ snap < dur
    /\ snap' = IF bug = "snapshot_ahead_of_log" THEN Last ELSE dur
    /\ act' = [op |-> "Image", i |-> dur]
    /\ UNCHANGED <<log, dur, files, dir, disk, staged, limbo, pool, reader, held, crashes, bug>>

-----------------------------------------------------------------------------
(* Giving back. *)
Below(k) == LastOf(k) <= snap \/ (bug = "above_the_snapshot" /\ LastOf(k) <= dur)
Settled(k) == dir[k] # 0 /\ dir[k] = disk[k] /\ k # Active /\ Below(k)
Kept(k) == IF bug = "dead_before_durable" THEN LiveIn(k) ELSE DurablyLiveIn(k)
GivenBack(f) == IF bug = "old_file_used_early" THEN limbo' = limbo /\ pool' = pool \cup {f}
                ELSE limbo' = limbo \cup {f} /\ pool' = pool

(* Nothing in it is alive: its file goes to the pool. *)
Reclaim(k) ==
    /\ Settled(k)
    /\ Kept(k) = {} \/ (bug = "live_segment_reclaimed" /\ Cardinality(Kept(k)) < SegSize)
    /\ held.seg # k \/ bug = "held_is_reclaimed"
    /\ staged.seg # k
    /\ dir' = [dir EXCEPT ![k] = 0]
    /\ GivenBack(dir[k])
    /\ act' = [op |-> "Reclaim", i |-> k]
    /\ UNCHANGED <<log, dur, snap, files, disk, staged, reader, held, crashes, bug>>

(* Mostly dead: what is alive is written beside it. *)
Stage(k) ==
    /\ Rewrites /\ staged = NoStage /\ Settled(k)
    /\ Kept(k) # {} /\ Kept(k) # files[dir[k]].holds
    /\ held.seg # k
    /\ \E f \in Available :
          /\ staged' = [seg |-> k, file |-> f, synced |-> FALSE]
          /\ files' = [files EXCEPT ![f] = [holds |-> Kept(k), safe |-> {}]]
          /\ pool' = pool \ {f}
    /\ act' = [op |-> "Stage", i |-> k]
    /\ UNCHANGED <<log, dur, snap, dir, disk, limbo, reader, held, crashes, bug>>

SyncStaged ==
    /\ staged.seg # 0 /\ ~staged.synced
    /\ staged' = [staged EXCEPT !.synced = TRUE]
    /\ files' = [files EXCEPT ![staged.file].safe = files[staged.file].holds]
    /\ act' = [op |-> "SyncStaged", i |-> staged.seg]
    /\ UNCHANGED <<log, dur, snap, dir, disk, limbo, pool, reader, held, crashes, bug>>

(* The new file takes the name, unless somebody has come to hold the old one. *)
Swap ==
    /\ staged.seg # 0 /\ (staged.synced \/ bug = "swap_before_sync")
    /\ held.seg # staged.seg \/ bug = "held_is_swapped"
    /\ dir' = [dir EXCEPT ![staged.seg] = staged.file]
    /\ GivenBack(dir[staged.seg])
    /\ staged' = NoStage
    /\ act' = [op |-> "Swap", i |-> staged.seg]
    /\ UNCHANGED <<log, dur, snap, files, disk, reader, held, crashes, bug>>

-----------------------------------------------------------------------------
(* Reading. Which file a segment is in is looked up; it stays open although its name may be another one's by then. *)
Open(i) ==
    /\ "index" \in Readers /\ reader.file = 0 /\ reader.got # "it"
    /\ IF reader.i = 0 THEN i <= Last /\ Alive(log, i) ELSE i = reader.i
    /\ reader' = IF dir[SegmentOf(i)] = 0 THEN [i |-> i, file |-> 0, got |-> "gone"]
                 ELSE [i |-> i, file |-> dir[SegmentOf(i)], got |-> "nothing"]
    /\ reader' # reader
    /\ act' = [op |-> "Open", i |-> i]
    /\ UNCHANGED <<log, dur, snap, files, dir, disk, staged, limbo, pool, held, crashes, bug>>

(* What does not verify as that record is looked up again, if the name leads to another file by now. *)
Read ==
    /\ reader.file # 0
    /\ reader' = IF reader.i \in files[reader.file].holds THEN [reader EXCEPT !.file = 0, !.got = "it"]
                 ELSE IF bug = "reader_trusts_the_file" THEN [reader EXCEPT !.file = 0, !.got = "another"]
                 ELSE IF dir[SegmentOf(reader.i)] # reader.file /\ bug # "reader_gives_up" THEN [reader EXCEPT !.file = 0]
                 ELSE [reader EXCEPT !.file = 0, !.got = "gone"]
    /\ act' = [op |-> "Read", i |-> reader.i]
    /\ UNCHANGED <<log, dur, snap, files, dir, disk, staged, limbo, pool, held, crashes, bug>>

Close ==
    /\ reader.got # "nothing"
    /\ reader' = Idle
    /\ act' = [op |-> "Close", i |-> reader.i]
    /\ UNCHANGED <<log, dur, snap, files, dir, disk, staged, limbo, pool, held, crashes, bug>>

Hold(k) ==
    /\ "segment" \in Readers /\ held = NoHold /\ dir[k] # 0 /\ LastOf(k) <= dur
    /\ held' = [seg |-> k, file |-> dir[k]]
    /\ act' = [op |-> "Hold", i |-> k]
    /\ UNCHANGED <<log, dur, snap, files, dir, disk, staged, limbo, pool, reader, crashes, bug>>

Release ==
    /\ held # NoHold
    /\ held' = NoHold
    /\ act' = [op |-> "Release", i |-> held.seg]
    /\ UNCHANGED <<log, dur, snap, files, dir, disk, staged, limbo, pool, reader, crashes, bug>>

-----------------------------------------------------------------------------
(* Power loss and the next start: what is beside a segment is removed, the log goes on behind its last record. *)
Crash(to) ==
    /\ crashes < MaxCrashes
    /\ to \in dur..Last
    /\ \E names \in [Segments -> FileIds \cup {0}] :
          /\ \A k \in Segments : names[k] \in {dir[k], disk[k]}
          /\ dir' = names /\ disk' = names
          (* The file of a rotation that nothing was appended to may be named, and is used. *)
          /\ files' = [f \in FileIds |->
                IF \E k \in Segments : names[k] = f
                THEN LET there == files[f].safe \cup (IF f = dir[Active] THEN {i \in files[f].holds : i <= to} ELSE {})
                     IN [holds |-> there, safe |-> there]
                ELSE Empty]
    /\ log' = SubSeq(log, 1, to)
    /\ dur' = to
    /\ staged' = NoStage /\ limbo' = {} /\ pool' = {}
    /\ reader' = Idle /\ held' = NoHold
    /\ crashes' = crashes + 1
    /\ act' = [op |-> "Crash", i |-> to]
    /\ UNCHANGED <<snap, bug>>

Init ==
    /\ bug \in Bugs
    /\ log = <<>> /\ dur = 0 /\ snap = 0
    /\ files = [f \in FileIds |-> Empty]
    /\ dir = [k \in Segments |-> IF k = 1 THEN 1 ELSE 0] /\ disk = dir
    /\ staged = NoStage /\ limbo = {} /\ pool = {}
    /\ reader = Idle /\ held = NoHold /\ crashes = 0
    /\ act = [op |-> "Init", i |-> 0]

Next ==
    \/ Push
    \/ \E i \in 1..MaxEntries : Ack(i)
    \/ Sync
    \/ Rotate
    \/ SyncDirectory
    \/ Image
    \/ \E k \in Segments : Reclaim(k)
    \/ \E k \in Segments : Stage(k)
    \/ SyncStaged
    \/ Swap
    \/ \E i \in 1..MaxEntries : Open(i)
    \/ Read
    \/ Close
    \/ \E k \in Segments : Hold(k)
    \/ Release
    \/ \E to \in 0..MaxEntries : Crash(to)

Spec == Init /\ [][Next]_vars
Fairness == WF_View(Read) /\ SF_View(SyncDirectory) /\ \A i \in 1..MaxEntries : WF_View(Open(i))
FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
TypeOK ==
    /\ dur <= Last /\ Last <= MaxEntries
    /\ \A f \in FileIds : files[f].safe \subseteq files[f].holds

SnapLeDurable == snap <= dur

(* What is alive can be read, at any moment and after any crash. *)
EveryLiveReadable == \A i \in 1..Last : Alive(log, i) => Readable(i)

(* What is behind the snapshot can be read, dead or alive: a start reads all of it. *)
TailReadable == \A i \in (snap + 1)..Last : Readable(i)

(* A file has one name at most, and none when it waits for use. *)
OneName == \A k, m \in Segments : dir[k] # 0 /\ dir[k] = dir[m] => k = m

(* A reader gets the record that it asked for, or hears that it is gone, which is so; a held segment stays what it was. *)
NoMixedRead ==
    /\ reader.got # "another"
    /\ reader.got = "gone" => ~(reader.i <= Last /\ Alive(log, reader.i))
    /\ held # NoHold => dir[held.seg] = held.file /\ files[held.file].holds # {}

(* No more files than segments need, while one of them is written twice. *)
RoomBound == Cardinality(Used \ {0}) <= Cardinality(Segments) + 2

(* Whoever reads gets an answer. *)
ReadsEnd == reader.file # 0 ~> reader.got # "nothing" \/ reader = Idle

-----------------------------------------------------------------------------
(* WITNESSES: predicates that some state must violate. *)
SeenSwapped == ~(act.op = "Swap")
SeenOldFileRead == ~(act.op = "Read" /\ reader.got = "it" /\ ~Readable(reader.i))
SeenLookedUpAgain == ~(act.op = "Read" /\ reader.file = 0 /\ reader.got = "nothing")
SeenPoolUsed == ~(act.op = "Stage" /\ \E f \in FileIds : f = staged.file /\ f = 1)
(* What died behind a snapshot is gone although the snapshot still has it alive: a start must replay to the end. *)
ReadableAtSnapshot == \A i \in 1..snap : Alive(SubSeq(log, 1, snap), i) => Readable(i)
=============================================================================
