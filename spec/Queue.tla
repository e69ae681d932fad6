------------------------------- MODULE Queue -------------------------------
(***************************************************************************)
(* One queue of the state machine (walrq/queues/), message by message: what *)
(* each command of a log entry does to it, and what time does.              *)
(*                                                                          *)
(* Modelled: push (priority, group, delay), lease, ack, release, fail,      *)
(* reject, touch, cancel, reschedule, expiry with a bounded sweep, turns    *)
(* among groups, dead-letter queue and parking, redrive, purge, deletion    *)
(* and creation again, both clocks of an entry's stamp, a change of leader. *)
(*                                                                          *)
(* An action is one log entry with one command. Its stamp is applied first: *)
(* at most Budget timers are swept, then the command runs. A refused        *)
(* command is an entry like any other; it sweeps and changes nothing else.  *)
(*                                                                          *)
(* Time is relative: `left` is how much is left of a lease, a back-off or a *)
(* delay at the last stamp, `lag` how far the leader's lease clock has run  *)
(* since. So time never ends, and states are finite without a last moment.  *)
(*                                                                          *)
(* Not modelled: batches and runs (how the code stores many messages at     *)
(* once: tests/queues compares it with an oracle message by message);       *)
(* bodies and their bytes; ttl, retention and length limits; deduplication; *)
(* leases on the dead-letter queue, which is a queue like this one; the hot *)
(* window; sessions (Session.tla); how an entry gets decided (Raft).        *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    MaxMessages,   \* pushes of a behaviour
    MaxLeases,     \* leases of one message (releases are free, so something must bound them)
    Limit,         \* max_deliveries: counted attempts at which a message is dead
    Ops,           \* commands that are used, by name
    Priorities, Groups, Delays, Visibilities, Backoffs,
    Polls,         \* messages that a poll may ask for
    Dlq,           \* setting dlq: "auto" (q.dlq) or "none" (dead messages are parked)
    Budget,        \* expire_per_entry
    MaxLag,        \* time between two entries
    Skews,         \* how far a new leader's wall clock may be ahead of the last stamp
    Fast,          \* TRUE: the leader's monotonic clock may run at double speed
    Bugs           \* {"none"}, or the mutants to try

VARIABLES
    q,      \* the replicated state, see TypeOK
    lag,    \* the leader's lease clock, minus the last stamp
    wlag,   \* the same for the wall clock
    held,   \* GHOST: held[m] = for how long, in real time, the worker may count on its lease
    tries,  \* GHOST: tries[m] = failed and expired leases since the message was pushed or driven back
    act,    \* the command of the last entry with its arguments, and whether it was done
    bug     \* the mutant that is tried; never changes

vars == <<q, lag, wlag, held, tries, act, bug>>
View == <<q, lag, wlag, held, tries, bug>>   \* `act` is looked at by action properties only

NoGroup == "-"
Settles == {"Ack", "Release", "Fail", "Reject"}
Living == {"ready", "delayed", "backoff", "leased"}

-----------------------------------------------------------------------------
(* Sequences. *)
Range(s) == {s[i] : i \in DOMAIN s}
Without(s, x) == SelectSeq(s, LAMBDA y : y # x)
Position(s, x) == CHOOSE i \in DOMAIN s : s[i] = x
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Larger(a, b) == IF a > b THEN a ELSE b
Smaller(a, b) == IF a < b THEN a ELSE b

(* Messages of a state s. *)
Messages(s) == DOMAIN s.msg
Those(s, at) == {m \in Messages(s) : s.msg[m].at = at}

-----------------------------------------------------------------------------
(* Lanes take turns: the ungrouped messages of a priority are one, each group *)
(* is one. ring[p] holds the lanes whose head has priority p, next one first. *)
LaneOf(s, m) == [grp |-> s.msg[m].grp, pri |-> IF s.msg[m].grp = NoGroup THEN s.msg[m].pri ELSE -1]
Waiting(s, lane) ==
    IF lane.grp = NoGroup
    THEN SelectSeq(s.line, LAMBDA m : s.msg[m].at = "ready" /\ s.msg[m].grp = NoGroup /\ s.msg[m].pri = lane.pri)
    ELSE SelectSeq(s.line, LAMBDA m : s.msg[m].at = "ready" /\ s.msg[m].grp = lane.grp)
Siblings(s, lane, at) == {m \in Those(s, at) : LaneOf(s, m) = lane}

(* The priority under which a lane may have a turn; -1: it may have none. *)
Wanted(s, lane) ==
    LET waiting == Waiting(s, lane) IN
    IF waiting = <<>> THEN -1
    ELSE IF lane.grp # NoGroup
            /\ \/ Siblings(s, lane, "backoff") # {} /\ bug # "group_overtakes"
               \/ Siblings(s, lane, "leased") # {} /\ bug # "group_unlimited"
         THEN -1
    ELSE s.msg[Head(waiting)].pri

Sits(s, lane, p) == (lane.grp # NoGroup \/ lane.pri = p) /\ lane.grp \in Range(s.ring[p])
Unseated(s, lane) ==
    IF \E p \in Priorities : Sits(s, lane, p)
    THEN LET p == CHOOSE x \in Priorities : Sits(s, lane, x) IN [s EXCEPT !.ring[p] = Without(@, lane.grp)]
    ELSE s

(* Let the lane stand where it belongs: where it is, while nothing changed, else at the end. *)
Seat(s, lane) ==
    LET wanted == Wanted(s, lane) IN
    IF \E p \in Priorities : Sits(s, lane, p) /\ p = wanted THEN s
    ELSE LET free == Unseated(s, lane) IN
         IF wanted = -1 THEN free ELSE [free EXCEPT !.ring[wanted] = Append(@, lane.grp)]

-----------------------------------------------------------------------------
(* Moves of one message. *)
Put(s, m, at, left) ==
    LET moved == [s EXCEPT !.msg[m].at = at, !.msg[m].left = left, !.leases = Without(@, m)]
    IN Seat(moved, LaneOf(s, m))

(* What is gone keeps its number of deliveries only, so that late receipts can be tried. *)
Finish(s, m) ==
    LET lane == LaneOf(s, m)
        out == [s EXCEPT !.msg[m] = [at |-> "gone", pri |-> 0, grp |-> NoGroup, left |-> 0,
                                     delivery |-> @.delivery, attempts |-> 0],
                         !.leases = Without(@, m), !.line = Without(@, m),
                         !.parked = Without(@, m), !.dead = Without(@, m)]
    IN Seat(out, lane)

(* To the dead-letter queue, or parked where there is none any more. *)
Bury(s, m) ==
    LET lane == LaneOf(s, m)
        out == [s EXCEPT !.leases = Without(@, m),
                         !.line = IF bug = "dlq_copies" THEN @ ELSE Without(@, m)]
        there == Dlq = "auto" /\ (s.dlq \/ ~s.seen)
    IN IF there
       THEN Seat([out EXCEPT !.msg[m].at = "dead", !.msg[m].left = 0, !.msg[m].attempts = 0,
                             !.dead = Append(@, m), !.dlq = TRUE, !.seen = TRUE], lane)
       ELSE IF bug = "parked_lost" THEN Finish(s, m)
       ELSE Seat([out EXCEPT !.msg[m].at = "parked", !.msg[m].left = 0, !.parked = Append(@, m)], lane)

(* A dead one behind the waiting work, attempts at 0. *)
Revive(s, m) ==
    LET out == [s EXCEPT !.msg[m].at = "ready",
                         !.msg[m].attempts = IF bug = "redrive_remembers" THEN Limit - 1 ELSE 0,
                         !.parked = Without(@, m),
                         !.dead = IF bug = "redrive_copies" THEN @ ELSE Without(@, m),
                         !.line = Append(@, m)]
    IN Seat(out, LaneOf(out, m))

(* An attempt that counts; `back` is where the message goes when it is not dead yet. *)
Counted(s, m, back) ==
    LET attempts == s.msg[m].attempts + 1
        limit == IF bug = "limit_off_by_one" THEN Limit + 1 ELSE Limit
    IN IF attempts >= limit THEN Bury([s EXCEPT !.msg[m].attempts = attempts], m)
       ELSE [back EXCEPT !.msg[m].attempts = attempts]

ToTail(s, m) == [s EXCEPT !.line = Append(Without(@, m), m)]

-----------------------------------------------------------------------------
(* Time. *)
Stamped(s) ==
    LET leased == IF bug = "lease_by_wall" THEN wlag ELSE lag
        Later(r) == IF r.at \in {"leased", "backoff"} THEN [r EXCEPT !.left = @ - leased]
                    ELSE IF r.at = "delayed" THEN [r EXCEPT !.left = @ - wlag] ELSE r
    \* Appending nothing makes TLC evaluate the function: EXCEPT on an unevaluated one loses changes (TLC 2.15).
    IN [s EXCEPT !.msg = [m \in Messages(s) |-> Later(s.msg[m])] \o <<>>]

(* Due timers in the documented order: by time; leases before back-offs; then by number. *)
Key(s, m) ==
    s.msg[m].left * 1000
    + (IF s.msg[m].at = "leased" THEN Position(s.leases, m) ELSE 100 + Position(s.line, m))
First(s, due) == CHOOSE m \in due : \A n \in due : Key(s, m) <= Key(s, n)

Expired(s, m) ==
    IF s.msg[m].at = "backoff" THEN Put(s, m, "ready", 0)
    ELSE LET back == Put(s, m, "ready", 0)
             home == IF bug = "expiry_to_tail" THEN ToTail(back, m) ELSE back
         IN IF bug = "expiry_free" THEN home ELSE Counted(s, m, home)

RECURSIVE SweepLeases(_, _), SweepDelays(_, _), Flow(_, _)
SweepLeases(s, budget) ==
    LET due == {m \in Those(s, "leased") \cup Those(s, "backoff") : s.msg[m].left <= 0} IN
    IF budget = 0 \/ due = {} THEN SweepDelays(s, budget)
    ELSE SweepLeases(Expired(s, First(s, due)), budget - 1)
SweepDelays(s, budget) ==
    LET due == {m \in Those(s, "delayed") : s.msg[m].left <= 0 \/ bug = "delay_early"} IN
    IF budget = 0 \/ due = {} THEN Flow(s, budget)
    ELSE SweepDelays(Put(s, First(s, due), "ready", 0), budget - 1)
(* Parked messages move on once their dead-letter queue is there again. *)
Flow(s, budget) ==
    IF budget = 0 \/ s.parked = <<>> \/ Dlq # "auto" \/ ~s.dlq \/ bug = "parked_stay" THEN s
    ELSE LET m == Head(s.parked)
         IN Flow([s EXCEPT !.msg[m].at = "dead", !.msg[m].attempts = 0, !.parked = Tail(@),
                           !.dead = Append(@, m), !.seen = TRUE], budget - 1)

(* The state in which an entry's command runs. *)
Now == SweepLeases(Stamped(q), Budget)

-----------------------------------------------------------------------------
(* Entries. *)
(* What is quantified over a set of one is evaluated once; TLC would evaluate a LET wherever it is used. *)
Entry(now, after, holds) ==
  \E s \in {after} :
    /\ q' = s
    /\ lag' = 0 /\ wlag' = 0
    /\ held' = holds
    /\ tries' = [m \in Messages(s) |->
                    IF m \notin Messages(q) \/ s.msg[m].at = "gone" THEN 0
                    ELSE IF act'.op = "Redrive" /\ s.msg[m].at = "ready" /\ now.msg[m].at \in {"dead", "parked"} THEN 0
                    ELSE tries[m] + (IF q.msg[m].at = "leased" /\ now.msg[m].at # "leased" THEN 1 ELSE 0)
                                  + (IF act'.op = "Fail" /\ act'.ok /\ act'.m = m THEN 1 ELSE 0)]
    /\ UNCHANGED bug

Ended(ms) == [m \in DOMAIN held |-> IF m \in ms THEN 0 ELSE held[m]]

Push(pri, grp, delay) ==
    /\ "Push" \in Ops /\ Len(q.msg) < MaxMessages
    /\ act' = [op |-> "Push", pri |-> pri, grp |-> grp, delay |-> delay, ok |-> TRUE]
    /\ \E now \in {Now} :
       LET m == Len(q.msg) + 1
           new == [at |-> IF delay = 0 THEN "ready" ELSE "delayed", pri |-> pri, grp |-> grp,
                   left |-> delay, delivery |-> 0, attempts |-> 0]
           s == [now EXCEPT !.there = TRUE, !.msg = Append(@, new), !.line = Append(@, m)]
       IN Entry(now, Seat(s, LaneOf(s, m)), Append(held, 0))

(* The message whose turn it is. *)
Turn(s) ==
    LET filled == {p \in Priorities : s.ring[p] # <<>>}
        p == IF bug = "lowest_first" THEN CHOOSE x \in filled : \A y \in filled : x <= y ELSE Max(filled)
        lane == [grp |-> Head(s.ring[p]), pri |-> IF Head(s.ring[p]) = NoGroup THEN p ELSE -1]
        waiting == Waiting(s, lane)
    IN IF bug = "last_first" THEN waiting[Len(waiting)] ELSE Head(waiting)

RECURSIVE Granted(_, _, _)
Granted(s, number, visibility) ==
    IF number = 0 \/ \A p \in Priorities : s.ring[p] = <<>> THEN s
    ELSE LET m == Turn(s)
             lane == LaneOf(s, m)
             given == [s EXCEPT !.msg[m].at = "leased", !.msg[m].left = visibility,
                                !.msg[m].delivery = IF bug = "receipt_again" /\ @ > 0 THEN @ ELSE @ + 1,
                                !.leases = Append(@, m)]
         IN Granted(Seat(Unseated(given, lane), lane), number - 1, visibility)

(* BUG poll_takes_leased: a poll that finds nothing ready takes what somebody has. *)
Stolen(s, visibility) ==
    LET m == CHOOSE x \in Those(s, "leased") : TRUE
    IN [s EXCEPT !.msg[m].left = visibility, !.msg[m].delivery = @ + 1]

Lease(number, visibility) ==
    /\ "Lease" \in Ops
    /\ act' = [op |-> "Lease", n |-> number, v |-> visibility, ok |-> TRUE]
    /\ \E now \in {Now} :
       LET s == IF bug = "poll_takes_leased" /\ Those(now, "ready") = {} /\ Those(now, "leased") # {}
                THEN Stolen(now, visibility)
                ELSE Granted(now, number, visibility)
           Fresh(m) == /\ s.msg[m].at = "leased"
                       /\ s.msg[m].delivery > q.msg[m].delivery \/ now.msg[m].at # "leased"
       IN /\ \A m \in Messages(s) : s.msg[m].delivery <= MaxLeases
          /\ Entry(now, s, [m \in DOMAIN held |-> IF Fresh(m) THEN visibility ELSE held[m]])

(* A receipt is good while its lease runs, swept or not. *)
Good(s, m, receipt) ==
    /\ s.there /\ s.msg[m].at = "leased"
    /\ receipt = s.msg[m].delivery \/ bug = "any_receipt"
    /\ s.msg[m].left > 0 \/ bug = "late_settle"

(* Receipts that somebody may hold: the newest of a message, and the one before. The sets that Next *)
(* draws from are constant, so that TLC knows each action by its name. *)
Ids == 1..MaxMessages
Fences == 1..MaxLeases
Receipt(m, receipt) ==
    m \in Messages(q) /\ receipt \in {q.msg[m].delivery, q.msg[m].delivery - 1}

(* `Done` is what the settle does to a state. (Each settle starts with a condition of its own: TLC calls an action *)
(* by the last operator that is not a mere definition of another.) *)
Settled(kind, m, receipt, extra, Done(_)) ==
  \E now \in {Now} :
    LET ok == Good(now, m, receipt)
    IN /\ Receipt(m, receipt)
       /\ act' = extra @@ [op |-> kind, m |-> m, r |-> receipt, ok |-> ok]
       /\ Entry(now, IF ok THEN Done(now) ELSE now, IF ok THEN Ended({m}) ELSE held)

Nothing == [m \in {} |-> 0]
Ack(m, receipt) ==
    /\ "Ack" \in Ops
    /\ LET Done(s) == IF bug = "ack_keeps" THEN Put(s, m, "ready", 0) ELSE Finish(s, m)
       IN Settled("Ack", m, receipt, Nothing, Done)
Release(m, receipt) ==
    /\ "Release" \in Ops
    /\ LET Done(s) == IF bug = "release_counts" THEN Counted(s, m, Put(s, m, "ready", 0)) ELSE Put(s, m, "ready", 0)
       IN Settled("Release", m, receipt, Nothing, Done)
(* With a delay: back to its place after it. Without: behind what is ready, so that a poison *)
(* message cannot hold the line; within a group nothing overtakes. *)
Fail(m, receipt, delay) ==
    /\ "Fail" \in Ops
    /\ LET Back(s) == IF delay > 0 THEN Put(s, m, "backoff", delay)
                      ELSE IF s.msg[m].grp = NoGroup THEN Put(ToTail(s, m), m, "ready", 0)
                      ELSE Put(s, m, "ready", 0)
           Done(s) == IF bug = "fail_free" THEN Back(s) ELSE Counted(s, m, Back(s))
       IN Settled("Fail", m, receipt, [delay |-> delay], Done)
Reject(m, receipt) ==
    /\ "Reject" \in Ops
    /\ LET Done(s) == Bury(s, m)
       IN Settled("Reject", m, receipt, Nothing, Done)

Touch(m, receipt, visibility) ==
  \E now \in {Now} :
    LET revived == bug = "touch_revives" /\ now.msg[m].at = "leased" /\ receipt = now.msg[m].delivery
        good == Good(now, m, receipt) \/ revived
        left == IF bug = "touch_shortens" THEN visibility ELSE Larger(now.msg[m].left, visibility)
    IN /\ "Touch" \in Ops /\ Receipt(m, receipt)
       /\ act' = [op |-> "Touch", m |-> m, r |-> receipt, v |-> visibility, ok |-> good]
       /\ Entry(now, IF good THEN [now EXCEPT !.msg[m].left = left] ELSE now,
                IF good THEN [held EXCEPT ![m] = Larger(@, visibility)] ELSE held)

Cancel(m) ==
  \E now \in {Now} :
    LET ok == now.there /\ now.msg[m].at \in {"ready", "delayed", "backoff", "parked"}
    IN /\ "Cancel" \in Ops /\ m \in Messages(q)
       /\ act' = [op |-> "Cancel", m |-> m, ok |-> ok]
       /\ Entry(now, IF ok THEN Finish(now, m) ELSE now, held)

Reschedule(m, delay) ==
  \E now \in {Now} :
    LET ok == now.there /\ now.msg[m].at \in {"ready", "delayed", "backoff"}
        s == IF ~ok THEN now
             ELSE IF delay > 0 THEN Put(now, m, "delayed", delay)
             \* Taken out of the line and put back: a group of only this one goes to the end of its turns.
             ELSE Put(Put(now, m, "delayed", 0), m, "ready", 0)
    IN /\ "Reschedule" \in Ops /\ m \in Messages(q)
       /\ act' = [op |-> "Reschedule", m |-> m, delay |-> delay, ok |-> ok]
       /\ Entry(now, s, held)

RECURSIVE Revived(_, _)
Revived(s, number) ==
    IF number = 0 \/ s.dead \o s.parked = <<>> THEN s
    ELSE LET m == Head(s.dead \o s.parked)
             \* BUG redrive_copies: what was driven back must not be driven back again in the same command.
             next == Revive(s, m)
         IN IF bug = "redrive_copies" THEN next ELSE Revived(next, number - 1)
Redrive(number) ==
  \E now \in {Now} :
    /\ "Redrive" \in Ops
    /\ act' = [op |-> "Redrive", n |-> number, ok |-> now.there]
    /\ Entry(now, IF now.there THEN Revived(now, number) ELSE now, held)

RECURSIVE Emptied(_, _)
Emptied(s, ms) == IF ms = {} THEN s ELSE LET m == CHOOSE x \in ms : TRUE IN Emptied(Finish(s, m), ms \ {m})
Own(s) == {m \in Messages(s) : s.msg[m].at \in Living \cup {"parked"}}

PurgeQueue ==
  \E now \in {Now} :
    LET ms == IF bug = "purge_spares_leased" THEN Own(now) \ Those(now, "leased") ELSE Own(now)
    IN /\ "PurgeQueue" \in Ops
       /\ act' = [op |-> "PurgeQueue", ok |-> now.there]
       /\ Entry(now, Emptied(now, ms), Ended(Own(now)))

DeleteQueue ==
  \E now \in {Now} :
    /\ "DeleteQueue" \in Ops
    /\ act' = [op |-> "DeleteQueue", ok |-> now.there]
    /\ Entry(now, [Emptied(now, Own(now)) EXCEPT !.there = FALSE, !.seen = FALSE], Ended(Own(now)))

(* The dead-letter queue is deleted, or made by hand. *)
DeleteDlq ==
  \E now \in {Now} :
    /\ "DeleteDlq" \in Ops
    /\ act' = [op |-> "DeleteDlq", ok |-> now.dlq]
    /\ Entry(now, [Emptied(now, Range(now.dead)) EXCEPT !.dlq = FALSE], held)
SetDlq ==
  \E now \in {Now} :
    /\ "SetDlq" \in Ops
    /\ act' = [op |-> "SetDlq", ok |-> TRUE]
    /\ Entry(now, [now EXCEPT !.dlq = TRUE], held)

(* The reaper's empty entry. *)
Reap ==
  \E now \in {Now} :
    /\ "Reap" \in Ops /\ lag + wlag > 0
    /\ act' = [op |-> "Reap", ok |-> TRUE]
    /\ Entry(now, now, held)

-----------------------------------------------------------------------------
(* The world. *)
Tick ==
    /\ "Tick" \in Ops /\ lag < MaxLag /\ wlag < MaxLag
    /\ act' = [op |-> "Tick", ok |-> TRUE]
    /\ lag' \in IF Fast THEN {lag + 1, lag + 2} ELSE {lag + 1}
    /\ wlag' = wlag + 1
    /\ held' = [m \in DOMAIN held |-> Larger(held[m] - 1, 0)]
    /\ UNCHANGED <<q, tries, bug>>

(* A new leader's lease clock goes on from the last stamp of its log; its wall clock is whatever *)
(* the quorum agreed on, but never behind that stamp. *)
Failover(ahead) ==
    /\ "Failover" \in Ops
    /\ act' = [op |-> "Failover", ahead |-> ahead, ok |-> TRUE]
    /\ lag' = CASE bug = "lease_clock_from_wall" -> ahead
                [] bug = "clock_goes_back" -> -1
                [] OTHER -> 0
    /\ wlag' = ahead
    /\ UNCHANGED <<q, held, tries, bug>>

-----------------------------------------------------------------------------
Init ==
    /\ bug \in Bugs
    /\ q = [there |-> FALSE, msg |-> <<>>, line |-> <<>>, leases |-> <<>>, parked |-> <<>>, dead |-> <<>>,
            ring |-> [p \in Priorities |-> <<>>], dlq |-> FALSE, seen |-> FALSE]
    /\ lag = 0 /\ wlag = 0
    /\ held = <<>> /\ tries = <<>>
    /\ act = [op |-> "Init", ok |-> TRUE]

Next ==
    \/ \E pri \in Priorities, grp \in Groups, delay \in Delays : Push(pri, grp, delay)
    \/ \E number \in Polls, visibility \in Visibilities : Lease(number, visibility)
    \/ \E m \in Ids, receipt \in Fences : Ack(m, receipt)
    \/ \E m \in Ids, receipt \in Fences : Release(m, receipt)
    \/ \E m \in Ids, receipt \in Fences, delay \in Backoffs : Fail(m, receipt, delay)
    \/ \E m \in Ids, receipt \in Fences : Reject(m, receipt)
    \/ \E m \in Ids, receipt \in Fences, visibility \in Visibilities : Touch(m, receipt, visibility)
    \/ \E m \in Ids : Cancel(m)
    \/ \E m \in Ids, delay \in Delays : Reschedule(m, delay)
    \/ \E number \in Polls : Redrive(number)
    \/ PurgeQueue
    \/ DeleteQueue
    \/ DeleteDlq
    \/ SetDlq
    \/ Reap
    \/ Tick
    \/ \E ahead \in Skews : Failover(ahead)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Invariants, by the names of the ledger. *)
Places == Living \cup {"parked", "dead", "gone"}
TypeOK ==
    /\ DOMAIN q = {"there", "msg", "line", "leases", "parked", "dead", "ring", "dlq", "seen"}
    /\ \A m \in Messages(q) : q.msg[m].at \in Places /\ q.msg[m].delivery \in 0..MaxLeases
    /\ DOMAIN held = Messages(q) /\ DOMAIN tries = Messages(q)

(* Every message is in exactly one place, and every place knows what it holds. *)
Conservation ==
    LET Count(m) == Cardinality({i \in DOMAIN q.line : q.line[i] = m})
                    + Cardinality({i \in DOMAIN q.parked : q.parked[i] = m})
                    + Cardinality({i \in DOMAIN q.dead : q.dead[i] = m})
    IN /\ \A m \in Messages(q) : Count(m) = IF q.msg[m].at = "gone" THEN 0 ELSE 1
       /\ Range(q.line) = {m \in Messages(q) : q.msg[m].at \in Living}
       /\ Range(q.parked) = Those(q, "parked") /\ Range(q.dead) = Those(q, "dead")
       /\ Range(q.leases) = Those(q, "leased") /\ Len(q.leases) = Cardinality(Those(q, "leased"))

(* Attempts are counted exactly, and nobody works on a message that has used them up. *)
Bound == \A m \in Messages(q) : q.msg[m].at \in Living => q.msg[m].attempts = tries[m] /\ tries[m] < Limit

(* A message is dead because it used its attempts up, or because a worker rejected it. *)
DlqExact ==
    \A m \in Messages(q) :
        q.msg[m].at \in Living /\ q'.msg[m].at \in {"dead", "parked"}
        => tries'[m] >= Limit \/ (act'.op = "Reject" /\ act'.ok /\ act'.m = m)

GroupLimit ==
    \A g \in Groups \ {NoGroup} : Cardinality({m \in Those(q, "leased") : q.msg[m].grp = g}) <= 1

(* A lane that could be served has a seat, so that nothing ready is forgotten. *)
NobodyForgotten ==
    \A m \in Those(q, "ready") :
        Wanted(q, LaneOf(q, m)) # -1 => \E p \in Priorities : Sits(q, LaneOf(q, m), p)

ClockMonotonic == lag >= 0 /\ wlag >= 0

(* Properties of steps. *)
Old(m) == m \in Messages(q)
Given(m) ==
    /\ Old(m) /\ q'.msg[m].at = "leased"
    /\ \/ q'.msg[m].delivery # q.msg[m].delivery
       \/ act'.op = "Lease" /\ q.msg[m].at # "leased"
OwnerEnds(m) ==
    \/ act'.op \in {"PurgeQueue", "DeleteQueue"}
    \/ act'.op \in Settles /\ act'.ok /\ act'.m = m

(* While a lease runs on the log's clock nobody else gets the message. *)
Exclusive ==
    \A m \in Messages(q) : Given(m) => q.msg[m].at # "leased" \/ q.msg[m].left <= lag

(* A lease ends in no less real time than its worker was promised. *)
NotEarly ==
    \A m \in Messages(q) :
        q.msg[m].at = "leased" /\ held[m] > 0 /\ ~OwnerEnds(m)
        => q'.msg[m].at = "leased" /\ q'.msg[m].delivery = q.msg[m].delivery

ReceiptsRise ==
    \A m \in Messages(q) :
        /\ q'.msg[m].delivery >= q.msg[m].delivery
        /\ Given(m) => q'.msg[m].delivery > q.msg[m].delivery

AckFenced ==
    act'.op \in Settles \cup {"Touch"} /\ act'.ok
    => q.msg[act'.m].at = "leased" /\ act'.r = q.msg[act'.m].delivery

AckBeforeDeadline ==
    act'.op \in Settles \cup {"Touch"} /\ act'.ok => q.msg[act'.m].left > lag

SettledIsFinal ==
    /\ act'.op = "Ack" /\ act'.ok => q'.msg[act'.m].at = "gone"
    /\ \A m \in Messages(q) : q.msg[m].at = "gone" => q'.msg[m].at = "gone"

(* A message goes only because somebody said so. *)
OnlyByCommand ==
    \A m \in Messages(q) :
        q.msg[m].at # "gone" /\ q'.msg[m].at = "gone"
        => \/ act'.op \in {"Ack", "Cancel"} /\ act'.ok /\ act'.m = m
           \/ act'.op \in {"PurgeQueue", "DeleteQueue"} /\ act'.ok
           \/ act'.op = "DeleteDlq" /\ q.msg[m].at # "ready"

PurgeEmpties == act'.op \in {"PurgeQueue", "DeleteQueue"} => q'.line = <<>> /\ q'.parked = <<>>

(* Where a dead-letter queue is there again, parked messages move on with the next entry. *)
ParkedFlow == q.parked # <<>> /\ q.dlq /\ Dlq = "auto" /\ act'.op \notin {"Tick", "Failover"} => Len(q'.parked) < Len(q.parked)

(* First deliveries: by priority, then in the order of pushes. *)
Plain(m) == q.msg[m].grp = NoGroup
FirstDeliveryOrder ==
    \A m, n \in Messages(q) :
        /\ act'.op = "Lease" /\ Given(m) /\ Plain(m) /\ Plain(n) /\ q.msg[n].at = "ready" /\ ~Given(n)
        => /\ q.msg[n].pri <= q.msg[m].pri
           /\ q.msg[m].delivery = 0 /\ q.msg[n].delivery = 0 /\ q.msg[n].pri = q.msg[m].pri => m < n

(* What comes back comes back to its place, except a fail without delay; who dies of the stamp may be driven back at once. *)
PlaceKept ==
    \A i, j \in DOMAIN q.line :
        LET m == q.line[i]
            n == q.line[j]
        IN i < j /\ {m, n} \subseteq Range(q'.line)
           => \/ Position(q'.line, m) < Position(q'.line, n)
              \/ act'.op = "Fail" /\ act'.m = m
              \/ act'.op = "Redrive"

(* Within a group nothing overtakes: who is given goes before all that wait, or have to wait. *)
GroupOrder ==
    \A m, n \in Messages(q) :
        /\ act'.op = "Lease" /\ Given(m) /\ ~Plain(m) /\ q.msg[n].grp = q.msg[m].grp
        /\ q'.msg[n].at \in {"ready", "backoff"}
        => Position(q'.line, m) < Position(q'.line, n) \/ q.msg[n].at = "delayed"

DelayNotEarly ==
    \A m \in Messages(q) :
        q.msg[m].at = "delayed" /\ q'.msg[m].at \in {"ready", "leased"}
        => q.msg[m].left <= wlag \/ act'.op = "Reschedule"

-----------------------------------------------------------------------------
(* LIVENESS. With polls, the reaper and time going on, every message gets settled or dies. *)
Fair == WF_vars(Tick) /\ WF_vars(Reap)
Polled == WF_vars(\E number \in Polls, visibility \in Visibilities : Lease(number, visibility))
FairSpec == Spec /\ Fair /\ Polled
UnpolledSpec == Spec /\ Fair
Unsettled(m) == m \in Messages(q) /\ q.msg[m].at \in Living
Drains == \A m \in Ids : Unsettled(m) ~> ~Unsettled(m)

-----------------------------------------------------------------------------
(* WITNESSES: states that must be reachable, else a guard or a bound hides what is to be checked. *)
SeenUnswept == ~\E m \in Those(q, "leased") : q.msg[m].left <= 0
SeenTwoLeases == Cardinality(Those(q, "leased")) < 2
SeenParked == q.parked = <<>>
SeenDeadTwice == Len(q.dead) < 2
SeenFlow == ~(q.parked = <<>> /\ act.op = "SetDlq")
SeenAgain == \A m \in Messages(q) : q.msg[m].delivery < 2
SeenGroupWaits == ~\E m \in Those(q, "ready") : Wanted(q, LaneOf(q, m)) = -1
SeenRecreated == ~(q.there /\ \E m \in Messages(q) : q.msg[m].at = "gone" /\ Those(q, "ready") # {})
=============================================================================
