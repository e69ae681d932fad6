-------------------------------- MODULE Read --------------------------------
(***************************************************************************)
(* Reads that see everything acknowledged before they were asked            *)
(* (walrq/raft/reads.py): the leader notes its commit index and answers     *)
(* once a majority confirmed, by a round of heartbeats begun afterwards,    *)
(* that it still leads; before an entry of its own term is committed, reads *)
(* wait. Another server asks the leader and answers from its own state.     *)
(*                                                                          *)
(* Modelled: several leaders at a time, each in its term; heartbeats and    *)
(* answers that are lost, come twice, late and out of order; a question     *)
(* that is asked again after a restart of who asked.                        *)
(*                                                                          *)
(* Not modelled: logs and votes (Raft.tla): a majority elects, and who is   *)
(* elected has all that was acknowledged, though it may not know that; that *)
(* an answer waits until so much is applied; reads that time out.           *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Server,
    Leading,      \* of them those that may be elected
    MaxTerm, MaxWrites,
    MaxRounds,    \* of heartbeats of each office
    MaxLives,     \* of each server
    Bugs

VARIABLES
    node,     \* term, whether it leads, the commit it knows, whether an entry of its term is committed, rounds, life
    answered, \* answered[i][j]: highest round of leader i that j answered
    heard,    \* heard[i][j]: the same as far as the leader received it
    msgs,     \* answers to servers that do not lead
    read,     \* the read: its asker and life, the leader it is at, commit noted and round to be answered
    acked,    \* GHOST: writes acknowledged by anybody
    act, bug

vars == <<node, answered, heard, msgs, read, acked, act, bug>>
None == "-"
Larger(a, b) == IF a > b THEN a ELSE b
IsQuorum(S) == 2 * Cardinality(S) > Cardinality(Server)
Nobody == [j \in Server |-> 0]
(* What belonged to an office is begun anew with the next one. *)
View ==
    LET Held(f) == [i \in Server |-> IF node[i].leads THEN f[i] ELSE Nobody]
        nodes == [i \in Server |-> IF node[i].leads THEN node[i] ELSE [node[i] EXCEPT !.commit = 0, !.round = 0]]
    IN <<nodes, Held(answered), Held(heard), msgs, read, acked, bug>>
(* `least` is a GHOST: what was acknowledged when it was asked. *)
NoRead == [state |-> "none", by |-> None, at |-> None, life |-> 0, least |-> 0, index |-> 0, round |-> 0]

Adopted(n, term) ==
    IF term > n.term THEN [n EXCEPT !.term = term, !.leads = FALSE, !.opened = FALSE] ELSE n

(* What a leader that is none any more was asked ends without an answer. *)
Kept(r, nodes) ==
    IF r.state \in {"waits", "noted"} /\ ~nodes[r.at].leads THEN NoRead ELSE r

-----------------------------------------------------------------------------
(* A smallest majority votes in a new term, the others learn of it; who is elected may know of no commit. *)
Elect(i, voters) ==
    LET term == node[i].term + 1
        nodes == [j \in Server |-> IF j \in voters THEN Adopted(node[j], term) ELSE node[j]]
    IN /\ i \in Leading /\ term <= MaxTerm /\ i \in voters
       /\ 2 * Cardinality(voters) \in Cardinality(Server) + 1..Cardinality(Server) + 2
       /\ \A j \in voters : node[j].term < term
       /\ node' = [nodes EXCEPT ![i].leads = TRUE, ![i].opened = FALSE, ![i].round = 0, ![i].commit = 0]
       /\ answered' = [answered EXCEPT ![i] = Nobody]
       /\ heard' = [heard EXCEPT ![i] = Nobody]
       /\ read' = Kept(read, node')
       /\ act' = [op |-> "Elect", i |-> i]
       /\ UNCHANGED <<msgs, acked, bug>>

(* Who accepts what a leader sends is in its term. *)
Majority(i) == IsQuorum({j \in Server : node[j].term = node[i].term})

(* The first entry of an office is committed, and with it all before. *)
Open(i) ==
    /\ node[i].leads /\ ~node[i].opened /\ Majority(i)
    /\ node' = [node EXCEPT ![i].opened = TRUE, ![i].commit = acked]
    /\ act' = [op |-> "Open", i |-> i]
    /\ UNCHANGED <<answered, heard, msgs, read, acked, bug>>

Write(i) ==
    /\ node[i].leads /\ node[i].opened /\ Majority(i) /\ acked < MaxWrites
    /\ acked' = acked + 1
    /\ node' = [node EXCEPT ![i].commit = acked + 1]
    /\ act' = [op |-> "Write", i |-> i]
    /\ UNCHANGED <<answered, heard, msgs, read, bug>>

(* --- heartbeats --------------------------------------------------------------------------------------------- *)
SendHeartbeat(i) ==
    /\ node[i].leads /\ node[i].round < MaxRounds
    /\ node' = [node EXCEPT ![i].round = @ + 1]
    /\ answered' = [answered EXCEPT ![i][i] = node[i].round + 1]
    /\ heard' = [heard EXCEPT ![i][i] = node[i].round + 1]
    /\ act' = [op |-> "SendHeartbeat", i |-> i]
    /\ UNCHANGED <<msgs, read, acked, bug>>

(* j hears any round of leader i; the answer is on its way for as long as it likes. *)
RecvHeartbeat(j, i, round) ==
    /\ i # j /\ node[i].leads /\ node[j].term <= node[i].term
    /\ round <= node[i].round /\ round > answered[i][j]
    /\ node' = [node EXCEPT ![j] = Adopted(@, node[i].term)]
    /\ answered' = [answered EXCEPT ![i][j] = round]
    /\ read' = Kept(read, node')
    /\ act' = [op |-> "RecvHeartbeat", j |-> j, i |-> i, round |-> round]
    /\ UNCHANGED <<heard, msgs, acked, bug>>

RecvHeartbeatReply(i, j) ==
    /\ node[i].leads /\ heard[i][j] < answered[i][j]
    /\ heard' = [heard EXCEPT ![i][j] = answered[i][j]]
    /\ act' = [op |-> "RecvHeartbeatReply", i |-> i, j |-> j]
    /\ UNCHANGED <<node, answered, msgs, read, acked, bug>>

(* An answer from a higher term, to a heartbeat or anything else. *)
Learn(i, j) ==
    /\ node[i].term < node[j].term
    /\ node' = [node EXCEPT ![i] = Adopted(@, node[j].term)]
    /\ read' = Kept(read, node')
    /\ act' = [op |-> "Learn", i |-> i, j |-> j]
    /\ UNCHANGED <<answered, heard, msgs, acked, bug>>

(* --- the read ----------------------------------------------------------------------------------------------- *)
Ask(i) ==
    /\ read.state = "none" /\ node[i].leads
    /\ read' = [NoRead EXCEPT !.state = "waits", !.by = i, !.at = i, !.life = node[i].life, !.least = acked]
    /\ act' = [op |-> "Ask", i |-> i]
    /\ UNCHANGED <<node, answered, heard, msgs, acked, bug>>

(* Another server asks whom it believes to lead. *)
AskLeader(j, i) ==
    /\ read.state = "none" /\ i # j /\ ~node[j].leads
    /\ read' = [NoRead EXCEPT !.state = "sent", !.by = j, !.at = i, !.life = node[j].life, !.least = acked]
    /\ act' = [op |-> "AskLeader", j |-> j, i |-> i]
    /\ UNCHANGED <<node, answered, heard, msgs, acked, bug>>

RecvReadRequest(i) ==
    /\ read.state = "sent" /\ read.at = i /\ node[i].leads
    /\ read' = [read EXCEPT !.state = "waits"]
    /\ act' = [op |-> "RecvReadRequest", i |-> i]
    /\ UNCHANGED <<node, answered, heard, msgs, acked, bug>>

Note(i) ==
    /\ read.state = "waits" /\ read.at = i
    /\ node[i].opened \/ bug = "unopened"
    /\ read' = [read EXCEPT !.state = "noted", !.index = node[i].commit,
                            !.round = IF bug = "earlier_round" THEN node[i].round ELSE node[i].round + 1]
    /\ act' = [op |-> "Note", i |-> i]
    /\ UNCHANGED <<node, answered, heard, msgs, acked, bug>>

Confirmed(i) ==
    \/ bug = "unconfirmed"
    \/ IsQuorum({j \in Server : heard[i][j] >= read.round})

Confirm(i) ==
    /\ read.state = "noted" /\ read.at = i /\ Confirmed(i)
    /\ IF read.by = i
       THEN read' = [read EXCEPT !.state = "done"] /\ UNCHANGED msgs
       ELSE /\ read' = [read EXCEPT !.state = "told"]
            /\ msgs' = msgs \cup {[to |-> read.by, life |-> read.life, index |-> read.index]}
    /\ act' = [op |-> "Confirm", i |-> i]
    /\ UNCHANGED <<node, answered, heard, acked, bug>>

RecvReadReply(j) ==
    \E m \in msgs :
        /\ m.to = j
        /\ read.by = j /\ read.state \in {"sent", "waits", "noted", "told"}
        /\ m.life = node[j].life \/ bug = "any_life"
        /\ read' = [read EXCEPT !.state = "done", !.index = m.index]
        /\ act' = [op |-> "RecvReadReply", j |-> j, m |-> m]
        /\ UNCHANGED <<node, answered, heard, msgs, acked, bug>>

(* A server starts again; what it asked, and was asked, is forgotten, and its tickets begin anew. *)
Restart(i) ==
    /\ node[i].life < MaxLives
    /\ node' = [node EXCEPT ![i] = [@ EXCEPT !.leads = FALSE, !.opened = FALSE, !.commit = 0, !.life = @ + 1]]
    /\ read' = IF read.by = i THEN NoRead ELSE Kept(read, node')
    /\ act' = [op |-> "Restart", i |-> i]
    /\ UNCHANGED <<answered, heard, msgs, acked, bug>>

-----------------------------------------------------------------------------
Init ==
    /\ bug \in Bugs
    /\ node = [i \in Server |-> [term |-> 0, leads |-> FALSE, commit |-> 0, opened |-> FALSE, round |-> 0, life |-> 1]]
    /\ answered = [i \in Server |-> Nobody]
    /\ heard = [i \in Server |-> Nobody]
    /\ msgs = {}
    /\ read = NoRead
    /\ acked = 0
    /\ act = [op |-> "Init"]

Next ==
    \/ \E i \in Server, voters \in SUBSET Server : Elect(i, voters)
    \/ \E i \in Server : Open(i)
    \/ \E i \in Server : Write(i)
    \/ \E i \in Server : SendHeartbeat(i)
    \/ \E j \in Server, i \in Server, round \in 1..MaxRounds : RecvHeartbeat(j, i, round)
    \/ \E i \in Server, j \in Server : RecvHeartbeatReply(i, j)
    \/ \E i \in Server, j \in Server : Learn(i, j)
    \/ \E i \in Server : Ask(i)
    \/ \E j \in Server, i \in Server : AskLeader(j, i)
    \/ \E i \in Server : RecvReadRequest(i)
    \/ \E i \in Server : Note(i)
    \/ \E i \in Server : Confirm(i)
    \/ \E j \in Server : RecvReadReply(j)
    \/ \E i \in Server : Restart(i)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    /\ \A i \in Server : node[i].opened => node[i].leads
    /\ read.state \in {"none", "sent", "waits", "noted", "told", "done"}

ElectionSafety == \A i, j \in Server : node[i].leads /\ node[j].leads /\ node[i].term = node[j].term => i = j

(* A read misses nothing that was acknowledged before it was asked. *)
AppliedBeforeAnswered == read.state = "done" => read.index >= read.least

-----------------------------------------------------------------------------
(* WITNESSES. *)
(* Were this so, a leader could answer at once. *)
LeadersAreFresh == \A i \in Server : node[i].leads => node[i].commit >= acked
SeenAnswered == read.state # "done"
SeenAnsweredElsewhere == ~(read.state = "done" /\ read.by # read.at)
SeenTwoLeaders == ~\E i, j \in Server : i # j /\ node[i].leads /\ node[j].leads
=============================================================================
