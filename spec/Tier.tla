-------------------------------- MODULE Tier --------------------------------
(***************************************************************************)
(* One lane of a queue whose ready messages do not all fit into memory      *)
(* (walrq/queues/horizon.py), and messages that are due later, which wait   *)
(* outside of it (walrq/far/): the hot window, the cold tail behind it, and *)
(* what moves between them.                                                 *)
(*                                                                          *)
(* What moves is decided in the log: the leader reads the next rows of the  *)
(* tail and proposes them, and the proposal is applied later, when others   *)
(* may have been applied before it, also one of an earlier leader with the  *)
(* same rows. So a proposal brings only what still stands at the border.    *)
(*                                                                          *)
(* Modelled: pushes that are due now or later, the window, proposals that   *)
(* come late, twice, or overtaken; leases, acknowledgements, releases;      *)
(* time.                                                                    *)
(*                                                                          *)
(* Not modelled: several lanes and priorities, batches of which a part is   *)
(* cold, pages and their bytes (Compact.tla has how room is given back),    *)
(* lookups by id, expiry; the lease clock (Queue.tla).                      *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    MaxMessages,
    Window,      \* messages that never were leased and may be hot
    Rows,        \* that are read back at a time
    Delays,
    MaxLeases,   \* of a behaviour
    Bugs

VARIABLES
    hot,       \* ready and in memory, in order
    cold,      \* behind them, in order
    far,       \* message -> time until it is due
    leased,    \* messages that somebody has
    gone,      \* acknowledged
    proposed,  \* rows that were read back, on their way through the log
    known,     \* messages there ever were
    ranks,     \* GHOST: in which order messages became ready: those of the lane have their places by it
    firsts,    \* GHOST: messages that were delivered at least once
    leases,
    act, bug

vars == <<hot, cold, far, leased, gone, proposed, known, ranks, firsts, leases, act, bug>>
View == <<hot, cold, far, leased, gone, proposed, known, ranks, firsts, leases, bug>>

Messages == 1..MaxMessages
Elements(s) == {s[i] : i \in 1..Len(s)}
Smaller(a, b) == IF a < b THEN a ELSE b
Fresh == Cardinality({m \in Elements(hot) : m \notin firsts})
Rank(m) == CHOOSE i \in 1..Len(ranks) : ranks[i] = m

(* Behind a cold message every later one is cold too. *)
Fits == (cold = <<>> \/ bug = "hot_before_cold") /\ Fresh < Window

Admit(m) ==
    /\ hot' = IF Fits THEN Append(hot, m) ELSE hot
    /\ cold' = IF Fits THEN cold ELSE Append(cold, m)
    /\ ranks' = Append(ranks, m)

Push(delay) ==
    /\ known < MaxMessages
    /\ known' = known + 1
    /\ IF delay = 0 THEN Admit(known + 1) /\ far' = far
       ELSE far' = (known + 1 :> delay) @@ far /\ UNCHANGED <<hot, cold, ranks>>
    /\ act' = [op |-> "Push", m |-> known + 1]
    /\ UNCHANGED <<leased, gone, proposed, firsts, leases, bug>>

(* The leader reads what stands at the border, long before the window runs dry. *)
ReadBack ==
    /\ cold # <<>>
    /\ LET rows == SubSeq(cold, 1, Smaller(Rows, Len(cold))) IN
          /\ rows \notin proposed
          /\ proposed' = proposed \cup {rows}
    /\ act' = [op |-> "ReadBack", m |-> cold[1]]
    /\ UNCHANGED <<hot, cold, far, leased, gone, known, ranks, firsts, leases, bug>>

(* Of the rows those that still stand at the border, in order, as far as there is room. The same rows may come again. *)
Hydrate(rows, again) ==
    LET at == IF bug = "hydrated_twice" THEN 0 ELSE Len(rows) - Cardinality({m \in Elements(rows) : m \in Elements(cold)})
        left == SubSeq(rows, at + 1, Len(rows))
        fits == cold # <<>> /\ left # <<>> /\ (left[1] = cold[1] \/ bug = "hydrated_twice")
        n == IF ~fits THEN 0 ELSE Smaller(Len(left), Window - Smaller(Window, Fresh))
        come == SubSeq(left, 1, n)
    IN /\ hot' = IF bug = "hydrated_in_front" THEN come \o hot ELSE hot \o come
       /\ cold' = SelectSeq(cold, LAMBDA m : m \notin Elements(IF bug = "rest_forgotten" /\ fits THEN left ELSE come))
       /\ proposed' = IF again THEN proposed ELSE proposed \ {rows}
       /\ act' = [op |-> "Hydrate", m |-> IF rows = <<>> THEN 0 ELSE rows[1]]
       /\ UNCHANGED <<far, leased, gone, known, ranks, firsts, leases, bug>>

(* All that is due by now leaves, the longest due first; of those due at once the older one. *)
Take ==
    /\ \E m \in DOMAIN far : far[m] <= 0 \/ bug = "taken_early"
    /\ LET due == {m \in DOMAIN far : far[m] <= (IF bug = "taken_early" THEN 2 ELSE 0)}
           next == CHOOSE m \in due : \A o \in due : far[m] < far[o] \/ (far[m] = far[o] /\ m <= o)
       IN /\ Admit(next)
          /\ far' = [m \in DOMAIN far \ (IF bug = "frontier_passes" THEN due ELSE {next}) |-> far[m]]
          /\ act' = [op |-> "Take", m |-> next]
    /\ UNCHANGED <<leased, gone, proposed, known, firsts, leases, bug>>

Tick ==
    /\ \E m \in DOMAIN far : far[m] > 0
    /\ far' = [m \in DOMAIN far |-> far[m] - 1]
    /\ act' = [op |-> "Tick", m |-> 0]
    /\ UNCHANGED <<hot, cold, leased, gone, proposed, known, ranks, firsts, leases, bug>>

Lease ==
    /\ hot # <<>> /\ leases < MaxLeases
    /\ hot' = Tail(hot) /\ leased' = leased \cup {hot[1]} /\ firsts' = firsts \cup {hot[1]}
    /\ leases' = leases + 1
    /\ act' = [op |-> "Lease", m |-> hot[1]]
    /\ UNCHANGED <<cold, far, gone, proposed, known, ranks, bug>>

Ack(m) ==
    /\ m \in leased
    /\ leased' = leased \ {m} /\ gone' = gone \cup {m}
    /\ act' = [op |-> "Ack", m |-> m]
    /\ UNCHANGED <<hot, cold, far, proposed, known, ranks, firsts, leases, bug>>

(* Back to its place, which is before the border. *)
Release(m) ==
    /\ m \in leased
    /\ leased' = leased \ {m}
    /\ LET before == SelectSeq(hot, LAMBDA o : Rank(o) < Rank(m))
           behind == SelectSeq(hot, LAMBDA o : Rank(o) > Rank(m))
       IN hot' = before \o <<m>> \o behind
    /\ act' = [op |-> "Release", m |-> m]
    /\ UNCHANGED <<cold, far, gone, proposed, known, ranks, firsts, leases, bug>>

-----------------------------------------------------------------------------
Init ==
    /\ bug \in Bugs
    /\ hot = <<>> /\ cold = <<>> /\ far = [m \in {} |-> 0]
    /\ leased = {} /\ gone = {} /\ proposed = {} /\ known = 0 /\ ranks = <<>> /\ firsts = {} /\ leases = 0
    /\ act = [op |-> "Init", m |-> 0]

Next ==
    \/ \E delay \in Delays : Push(delay)
    \/ ReadBack
    \/ \E rows \in proposed, again \in BOOLEAN : Hydrate(rows, again)
    \/ Take
    \/ Tick
    \/ Lease
    \/ \E m \in Messages : Ack(m)
    \/ \E m \in Messages : Release(m)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK == known <= MaxMessages /\ leases <= MaxLeases /\ Len(ranks) <= known

(* Each message is in one place, once. *)
Conservation ==
    \A m \in 1..known :
        1 = Cardinality({i \in 1..Len(hot) : hot[i] = m}) + Cardinality({i \in 1..Len(cold) : cold[i] = m})
            + (IF m \in DOMAIN far THEN 1 ELSE 0) + (IF m \in leased THEN 1 ELSE 0) + (IF m \in gone THEN 1 ELSE 0)

(* Memory holds no more of what nobody has had yet. *)
Bounded == Fresh <= Window

(* What is hot, and behind it what is cold, stand in the order in which they became ready. *)
PlaceKept ==
    LET lane == hot \o cold IN \A i \in 1..(Len(lane) - 1) : Rank(lane[i]) < Rank(lane[i + 1])

DelayNotEarly == act'.op = "Take" => act'.m \in DOMAIN far /\ far[act'.m] <= 0

(* A message is delivered the first time before those that became ready after it. *)
FirstDeliveryOrder ==
    act'.op = "Lease" /\ act'.m \notin firsts =>
        \A m \in Elements(ranks) \ firsts : Rank(act'.m) <= Rank(m)

(* LIVENESS: whoever polls gets everything, however small the window. *)
Moves == \E rows \in proposed : Hydrate(rows, FALSE)
FairSpec ==
    /\ Spec
    /\ WF_vars(ReadBack) /\ WF_vars(Moves) /\ WF_vars(Take) /\ WF_vars(Tick) /\ WF_vars(Lease)
    /\ \A m \in Messages : WF_vars(Ack(m))
UnreadSpec ==
    /\ Spec
    /\ WF_vars(Moves) /\ WF_vars(Take) /\ WF_vars(Tick) /\ WF_vars(Lease)
    /\ \A m \in Messages : WF_vars(Ack(m))
Drains == []<>(leases = MaxLeases \/ (hot \o cold = <<>> /\ DOMAIN far = {}))

-----------------------------------------------------------------------------
(* WITNESSES. *)
(* Rows that were read back are no longer those at the border when they are applied. *)
ProposalsAreNew == \A rows \in proposed : cold # <<>> /\ rows[1] = cold[1]
SeenCold == cold = <<>>
SeenOvertaken == ~(act.op = "Hydrate" /\ cold # <<>> /\ Fresh = Window)
SeenBeyondWindow == Len(hot) <= Window
=============================================================================
