------------------------------ MODULE Session ------------------------------
(***************************************************************************)
(* Exactly-once requests: the table of sessions (walrq/queues/sessions.py)  *)
(* under clients that retry, answers that get lost, sessions that end by    *)
(* idling, and a state that is restored from a snapshot.                    *)
(*                                                                          *)
(* A client has one session at a time and numbers its requests. It may send *)
(* a request again as long as it has no answer; copies arrive in any order, *)
(* any number of times, also after the answer and after the session ended.  *)
(* Each request is a push; `effects` counts what it did.                    *)
(*                                                                          *)
(* Modelled: registration, the window of remembered answers and `lowest`,   *)
(* idle end on the lease clock, close, keep-alive, a snapshot restored.     *)
(*                                                                          *)
(* Not modelled: what a request does (Queue.tla); polls, whose answers are  *)
(* told again only while the leases run; bounds on the number of sessions;  *)
(* which copy was sent first, since the table cannot know.                  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    MaxSessions,   \* registrations of a behaviour
    MaxRequests,   \* requests of a session
    Window,        \* answers that a session remembers
    Idle,          \* time without a request after which a session ends
    MaxLag,        \* time between two entries
    Snapshots,     \* TRUE: the state may be written to a snapshot and read back
    Bugs

VARIABLES
    table,     \* sessions of the table, by number: what is remembered
    opened,    \* sessions registered so far: they are numbered from 1
    effects,   \* effects[s][n]: how often request n of session s took effect
    lag,       \* lease clock since the last stamp
    answers,   \* answers[s][n]: what the client knows of its request: "none", "ok", "unknown", "refused"
    sent,      \* sent[s]: highest request that the client ever sent
    closed,    \* sessions that their client closed
    act, bug

vars == <<table, opened, effects, lag, answers, sent, closed, act, bug>>
View == <<table, opened, effects, lag, answers, sent, closed, bug>>

Sessions == 1..MaxSessions
Requests == 1..MaxRequests

(* What a session remembers of a request: nothing, or its first answer. *)
New == [left |-> Idle, lowest |-> 1, results |-> [n \in Requests |-> "none"]]
Remembered(t, s) == {n \in Requests : t[s].results[n] # "none"}

(* The stamp: what has idled too long ends. *)
Stamped ==
    LET Aged(s) == [table[s] EXCEPT !.left = @ - lag]
    IN [s \in {s \in DOMAIN table : table[s].left > lag} |-> Aged(s)]

Entry == lag' = 0 /\ UNCHANGED bug

(* Lowest unanswered: a client tells the table what it has answers for, with its newest knowledge or an older one. *)
Lowest(s) ==
    LET open == {n \in 1..sent[s] : answers[s][n] = "none"}
    IN IF open = {} THEN sent[s] + 1 ELSE CHOOSE n \in open : \A k \in open : n <= k
Smaller(a, b) == IF a < b THEN a ELSE b
Larger(a, b) == IF a > b THEN a ELSE b

-----------------------------------------------------------------------------
OpenSession ==
    /\ opened < MaxSessions
    /\ opened' = opened + 1
    /\ act' = [op |-> "OpenSession", answer |-> "ok"]
    /\ LET t == Stamped IN table' = (opened + 1 :> New) @@ t
    /\ Entry
    /\ UNCHANGED <<effects, answers, sent, closed>>

(* A copy of request n is applied, and its answer is lost or received. The first copy of n is sent in order. *)
Push(s, n, lowest, received) ==
    /\ s <= opened /\ n <= sent[s] + 1 /\ lowest <= Smaller(Lowest(s), n)
    /\ \E t \in {Stamped} :
       LET ended == s \notin DOMAIN t
           known == ~ended /\ bug # "nothing_remembered" /\ t[s].results[n] # "none"
           raised == IF ended THEN 1 ELSE Larger(t[s].lowest, lowest)
           below == ~ended /\ n < raised
           kept == [k \in Requests |-> IF k < raised /\ bug # "lowest_kept" THEN "none" ELSE t[s].results[k]]
           full == ~ended /\ Cardinality({k \in Requests : kept[k] # "none"}) >= Window
           done == IF ended THEN bug = "unknown_session_opened"
                   ELSE (~below \/ bug = "answered_again") /\ ~(known /\ n >= raised) /\ ~full
           evicted == IF bug = "window_evicts" /\ full /\ ~known /\ ~below
                      THEN [k \in Requests |-> IF k = (CHOOSE x \in Requests : kept[x] # "none") THEN "none" ELSE kept[k]]
                      ELSE kept
           forced == bug = "window_evicts" /\ full /\ ~known /\ ~below
           works == done \/ forced
           answer == IF works THEN "ok"
                     ELSE IF ended THEN IF bug = "ended_is_failed" THEN "refused" ELSE "unknown"
                     ELSE IF below THEN "unknown"
                     ELSE IF known THEN "ok" ELSE "refused"
           next == IF ended THEN IF bug = "unknown_session_opened"
                                 THEN (s :> [New EXCEPT !.results[n] = "ok"]) @@ t ELSE t
                   ELSE [t EXCEPT ![s] = [left |-> Idle, lowest |-> raised,
                                          results |-> [evicted EXCEPT ![n] = IF works /\ bug # "answered_again" THEN "ok" ELSE @]]]
       IN /\ table' = next
          /\ effects' = IF works THEN [effects EXCEPT ![s][n] = @ + 1] ELSE effects
          /\ act' = [op |-> "Push", s |-> s, n |-> n, lowest |-> lowest, got |-> received, answer |-> answer]
          /\ answers' = IF received /\ answers[s][n] = "none" THEN [answers EXCEPT ![s][n] = answer] ELSE answers
    /\ sent' = [sent EXCEPT ![s] = Larger(@, n)]
    /\ Entry
    /\ UNCHANGED <<opened, closed>>

(* Ends it, unless its window is full of answers that the client did not say it has. *)
CloseSession(s) ==
    /\ s <= opened /\ s \notin closed
    /\ \E t \in {Stamped} :
       LET ended == s \notin DOMAIN t
           lowest == Larger(t[s].lowest, Lowest(s))
           kept == [k \in Requests |-> IF k < lowest /\ bug # "lowest_kept" THEN "none" ELSE t[s].results[k]]
           full == ~ended /\ Cardinality({k \in Requests : kept[k] # "none"}) >= Window
           answer == IF ended THEN "unknown" ELSE IF full THEN "refused" ELSE "ok"
       IN /\ table' = IF full THEN [t EXCEPT ![s] = [left |-> Idle, lowest |-> lowest, results |-> kept]]
                      ELSE [k \in DOMAIN t \ {s} |-> t[k]]
          /\ act' = [op |-> "CloseSession", s |-> s, lowest |-> Lowest(s), answer |-> answer]
          /\ closed' = IF answer = "ok" THEN closed \cup {s} ELSE closed
    /\ Entry
    /\ UNCHANGED <<opened, effects, answers, sent>>

KeepSessions(s) ==
    /\ s <= opened
    /\ LET t == Stamped IN table' = IF s \in DOMAIN t THEN [t EXCEPT ![s].left = Idle] ELSE t
    /\ act' = [op |-> "KeepSessions", s |-> s, answer |-> "ok"]
    /\ Entry
    /\ UNCHANGED <<opened, effects, answers, sent, closed>>

Reap ==
    /\ lag > 0
    /\ table' = Stamped
    /\ act' = [op |-> "Reap", answer |-> "ok"]
    /\ Entry
    /\ UNCHANGED <<opened, effects, answers, sent, closed>>

Tick ==
    /\ lag < MaxLag
    /\ lag' = lag + 1
    /\ act' = [op |-> "Tick", answer |-> "ok"]
    /\ UNCHANGED <<table, opened, effects, answers, sent, closed, bug>>

(* The whole state machine is written to a snapshot and read back, here or on another node. *)
Snapshot ==
    /\ Snapshots
    /\ table' = IF bug = "table_not_in_snapshot" THEN [s \in {} |-> New] ELSE table
    /\ act' = [op |-> "Snapshot", answer |-> "ok"]
    /\ UNCHANGED <<opened, effects, lag, answers, sent, closed, bug>>

-----------------------------------------------------------------------------
Init ==
    /\ bug \in Bugs
    /\ table = [s \in {} |-> New]
    /\ opened = 0
    /\ effects = [s \in Sessions |-> [n \in Requests |-> 0]]
    /\ lag = 0
    /\ answers = [s \in Sessions |-> [n \in Requests |-> "none"]]
    /\ sent = [s \in Sessions |-> 0]
    /\ closed = {}
    /\ act = [op |-> "Init", answer |-> "ok"]

Next ==
    \/ OpenSession
    \/ \E s \in Sessions, n \in Requests, lowest \in Requests, received \in BOOLEAN : Push(s, n, lowest, received)
    \/ \E s \in Sessions : CloseSession(s)
    \/ \E s \in Sessions : KeepSessions(s)
    \/ Reap
    \/ Tick
    \/ Snapshot

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ DOMAIN table \subseteq 1..opened
    /\ \A s \in DOMAIN table : table[s].left \in 1..Idle /\ table[s].lowest \in 1..(MaxRequests + 1)

AtMostOnce == \A s \in Sessions, n \in Requests : effects[s][n] <= 1

(* What a client was told is so. "unknown" may be both; that is why it is not called failed. *)
AnswersAreTrue ==
    \A s \in Sessions, n \in Requests :
        /\ answers[s][n] = "ok" => effects[s][n] = 1

(* A refusal is definite: at that moment nothing had happened, and the table does not think so either. *)
ExpiredIsUnknown ==
    act'.op = "Push" /\ act'.answer = "refused" => effects'[act'.s][act'.n] = 0

(* The window never forgets an answer that its client may still ask for. *)
WindowKeeps ==
    \A s \in DOMAIN table :
        \A n \in Requests :
            table[s].results[n] # "none" /\ s \in DOMAIN table' /\ n >= table'[s].lowest
            => table'[s].results[n] # "none"

ForgetsAnswered == \A s \in DOMAIN table : \A n \in Remembered(table, s) : n >= table[s].lowest

(* An ended session stays ended: its number is never given again. *)
EndedStaysEnded == \A s \in 1..opened : s \notin DOMAIN table => s \notin DOMAIN table'

(* A session ends only by idling, or because its client closed it. *)
EndsOnlyByIdling ==
    \A s \in DOMAIN table \ DOMAIN table' :
        \/ table[s].left <= lag
        \/ act'.op = "CloseSession" /\ act'.s = s

-----------------------------------------------------------------------------
(* LIVENESS: who goes on asking hears what became of each request, if not every answer gets lost; *)
Time == WF_vars(Tick) /\ WF_vars(Reap)
Heard(s, n) == n <= sent[s] /\ \E lowest \in Requests : Push(s, n, lowest, TRUE)
FairSpec == Spec /\ Time /\ \A s \in Sessions, n \in Requests : WF_vars(Heard(s, n))
UnheardSpec == Spec /\ Time
Answered == \A s \in Sessions, n \in Requests : n <= sent[s] ~> answers[s][n] # "none"
(* and a table that nobody asks anything any more gets empty. *)
IdleEnds == <>[](act.op \in {"Tick", "Reap"}) => <>(DOMAIN table = {})

-----------------------------------------------------------------------------
(* WITNESSES. *)
(* Read as failed, an unknown answer lies: the first copy may have been applied before the session ended. *)
UnknownIsFailed == \A s \in Sessions, n \in Requests : answers[s][n] = "unknown" => effects[s][n] = 0
SeenWindowFull == \A s \in DOMAIN table : Cardinality(Remembered(table, s)) < Window
SeenRetryAnswered == ~(act.op = "Push" /\ act.answer = "ok" /\ sent[act.s] > act.n)
SeenEnded == \A s \in 1..opened : s \in DOMAIN table \/ s \in closed
=============================================================================
