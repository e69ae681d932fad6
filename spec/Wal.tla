-------------------------------- MODULE Wal --------------------------------
(***************************************************************************)
(* One segment of the log and what a stop leaves of it (walrq/storage/):    *)
(* group commit, the two durable-end slots that are written with the        *)
(* records of the same sync, torn and rotted bytes, and the rule by which   *)
(* recovery tells them apart.                                               *)
(*                                                                          *)
(* Place i of the file holds record i: "ok", "bad" (it does not verify) or  *)
(* "none". What a persist wrote reaches the disk in any order or not at all *)
(* until its sync returned: records and slot are separate writes.           *)
(*                                                                          *)
(* Modelled: persists of some records or of the second slot alone, power    *)
(* loss, places and slots that rot afterwards, recovery: torn, suspect,     *)
(* damaged, and no slot at all.                                             *)
(*                                                                          *)
(* Not modelled: several segments and their directory, cuts and the fences  *)
(* behind them, snapshots and reclaim, how bytes are chained (stale records *)
(* never verify: tests/storage), repair from peers, a second power loss.    *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS MaxRecords, MaxRot, Bugs

VARIABLES
    file,      \* file[i]: what is on the disk at place i
    slots,     \* slots[k]: durable end and sequence of slot k; end -1: it does not verify
    end,       \* records that are durable: their sync returned
    pending,   \* the end that the persist on its way will have; -1: there is none
    state,     \* "up", "down", "recovered"
    served, damaged, suspect,   \* what recovery makes of the places
    rots,
    told,      \* GHOST: records through this one were acknowledged
    act, bug

vars == <<file, slots, end, pending, state, served, damaged, suspect, rots, told, act, bug>>
View == <<file, slots, end, pending, state, served, damaged, suspect, rots, told, bug>>

Places == 1..MaxRecords
Outcome == <<served, damaged, suspect>>

(* The slot whose turn it is has the lower sequence; `sequence` counts on even when a slot rots. *)
Turn == IF slots[1].seq < slots[2].seq THEN 1 ELSE 2
Next1 == 1 + (IF slots[1].seq > slots[2].seq THEN slots[1].seq ELSE slots[2].seq)
Written(to) == [slots EXCEPT ![Turn] = [end |-> to, seq |-> Next1]]

-----------------------------------------------------------------------------
(* Records and a slot are written; with no records it is the second slot of an idle log. *)
Persist(number) ==
    /\ state = "up" /\ pending = -1 /\ end + number <= MaxRecords
    /\ number > 0 \/ slots[1].end # slots[2].end
    /\ pending' = end + number
    /\ told' = IF bug = "told_before_sync" THEN end + number ELSE told
    /\ act' = [op |-> "Persist", n |-> number]
    /\ UNCHANGED <<file, slots, end, state, served, damaged, suspect, rots, bug>>

(* The sync returned: all of it is on the disk, and those who wait are told. *)
Sync ==
    /\ state = "up" /\ pending # -1
    /\ file' = [i \in Places |-> IF i <= pending THEN "ok" ELSE file[i]]
    /\ slots' = IF bug = "slot_forgotten" THEN slots ELSE Written(pending)
    /\ end' = pending /\ told' = pending /\ pending' = -1
    /\ act' = [op |-> "Sync"]
    /\ UNCHANGED <<state, served, damaged, suspect, rots, bug>>

(* Power loss: of a persist on its way any part may be there. *)
Crash ==
    /\ state = "up"
    /\ \E left \in [{i \in Places : i > end /\ i <= pending} -> {"none", "ok", "bad"}] :
       \E slot \in IF pending = -1 THEN {"none"} ELSE {"none", "ok", "bad"} :
          /\ file' = left @@ file
          /\ slots' = CASE slot = "none" -> slots
                        [] slot = "ok" -> Written(pending)
                        [] slot = "bad" -> [Written(pending) EXCEPT ![Turn].end = -1]
          /\ act' = [op |-> "Crash", left |-> left, slot |-> slot]
    /\ state' = "down"
    /\ UNCHANGED <<end, pending, served, damaged, suspect, rots, told, bug>>

RotRecord(i) ==
    /\ state = "down" /\ rots < MaxRot /\ file[i] = "ok"
    /\ file' = [file EXCEPT ![i] = "bad"]
    /\ rots' = rots + 1
    /\ act' = [op |-> "RotRecord", i |-> i]
    /\ UNCHANGED <<slots, end, pending, state, served, damaged, suspect, told, bug>>

RotSlot(k) ==
    /\ state = "down" /\ rots < MaxRot /\ slots[k].end # -1
    /\ slots' = [slots EXCEPT ![k].end = -1]
    /\ rots' = rots + 1
    /\ act' = [op |-> "RotSlot", k |-> k]
    /\ UNCHANGED <<file, end, pending, state, served, damaged, suspect, told, bug>>

-----------------------------------------------------------------------------
(* Recovery. *)
Readable == {k \in {1, 2} : slots[k].end # -1}
Newer == IF Cardinality(Readable) = 2
         THEN IF slots[1].seq > slots[2].seq THEN slots[1].end ELSE slots[2].end
         ELSE slots[CHOOSE k \in Readable : TRUE].end
(* A single readable slot stands for both: the other is the torn slot of a later persist, or rotted. *)
Older == IF bug = "newer_is_durable" THEN Newer
         ELSE CHOOSE e \in {slots[k].end : k \in Readable} : \A k \in Readable : e <= slots[k].end

Intact(from, to) == {i \in Places : i >= from /\ i <= to /\ file[i] = "ok"}
First(S) == CHOOSE i \in S : \A j \in S : i <= j
Span(a, b) == {i \in Places : i >= a /\ i <= b}

(* From place p on, with what was found before: <<served, damaged, suspect>>. *)
RECURSIVE Scan(_, _)
Scan(p, found) ==
    LET Lose(to, next) == Scan(next, <<found[1], found[2] \cup Span(p, to), found[3]>>) IN
    IF p <= MaxRecords /\ file[p] = "ok" THEN Scan(p + 1, <<found[1] \cup {p}, found[2], found[3]>>)
    ELSE IF bug = "cut_at_first_bad" THEN found
    ELSE IF Readable = {}
    THEN IF Intact(p + 1, MaxRecords) = {} THEN found
         ELSE LET q == First(Intact(p + 1, MaxRecords)) IN Lose(q - 1, q)
    ELSE IF p > Newer /\ bug # "torn_is_damage" THEN found
    ELSE IF p > Older /\ bug # "torn_is_damage" THEN <<found[1], found[2], found[3] \cup Span(p, Newer)>>
    ELSE IF Intact(p + 1, Newer) # {}
    THEN LET q == First(Intact(p + 1, Newer)) IN Lose(q - 1, q)
    ELSE IF bug = "torn_is_damage" THEN <<found[1], found[2] \cup Span(p, MaxRecords), found[3]>>
    ELSE <<found[1], found[2] \cup Span(p, Older), found[3] \cup Span(Older + 1, Newer)>>

Recover ==
    /\ state = "down"
    /\ \E found \in {Scan(1, <<{}, {}, {}>>)} :
          served' = found[1] /\ damaged' = found[2] /\ suspect' = found[3]
    /\ state' = "recovered"
    /\ act' = [op |-> "Recover"]
    /\ UNCHANGED <<file, slots, end, pending, rots, told, bug>>

-----------------------------------------------------------------------------
Init ==
    /\ bug \in Bugs
    /\ file = [i \in Places |-> "none"]
    /\ slots = <<[end |-> 0, seq |-> 0], [end |-> 0, seq |-> 1]>>
    /\ end = 0 /\ pending = -1 /\ state = "up"
    /\ served = {} /\ damaged = {} /\ suspect = {}
    /\ rots = 0 /\ told = 0
    /\ act = [op |-> "Init"]

Next ==
    \/ \E number \in 0..2 : Persist(number)
    \/ Sync
    \/ Crash
    \/ \E i \in Places : RotRecord(i)
    \/ \E k \in {1, 2} : RotSlot(k)
    \/ Recover

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
Recovered == state = "recovered"
Reported == damaged \cup suspect

TypeOK == end \in 0..MaxRecords /\ pending \in -1..MaxRecords /\ told <= MaxRecords

(* What was acknowledged is there, or said to be lost; as long as one slot can be read. With both gone *)
(* recovery says that it does not know. *)
NoSilentLoss == Recovered /\ Readable # {} => \A i \in 1..told : i \in served \cup Reported

(* What a mere crash leaves behind is never called damage, and costs nothing that was acknowledged. *)
NoRefuseWithoutRot == Recovered /\ rots = 0 => damaged = {} /\ suspect \cap 1..told = {}

(* Nothing is served and reported lost at once, and nothing served that does not verify. *)
NoPhantom == Recovered => served \cap Reported = {} /\ \A i \in served : file[i] = "ok"

(* WITNESSES. *)
(* On one node the last write cannot be told from a torn one: it may be cut although it was acknowledged. *)
SuspectIsUntold == Recovered => suspect \cap 1..told = {}
SeenDamaged == damaged = {}
SeenBehindDamage == ~(\E i \in damaged, j \in served : i < j)
SeenUnacknowledgedServed == served \subseteq 1..told
=============================================================================
