----------------------------- MODULE ElectLive -----------------------------
(***************************************************************************)
(* Elections when not everybody hears everybody (walrq/raft/): does a group *)
(* with a connected majority come to have a leader, and keep it?            *)
(*                                                                          *)
(* Three rules serve that, and each has a switch: *pre-vote* (ask before    *)
(* standing, which changes no terms), *stickiness* (who hears a leader      *)
(* votes for nobody else, and does not look at the term of who asks),       *)
(* *check-quorum* (a leader that hears no majority steps down).             *)
(*                                                                          *)
(* Time is abstract: whoever is reached by the heartbeats of its leader     *)
(* does not time out; all others do, some time. An election is one step.    *)
(*                                                                          *)
(* Modelled: links that are cut for good, one way or both; links that come  *)
(* and go for ever; an old leader that is left behind a cut.                *)
(*                                                                          *)
(* Not modelled: logs, which are alike here (Raft.tla); how long anything   *)
(* takes; two candidates at once (jitter), crashes, changes of the group.   *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Nodes,
    Shape,       \* "given": the pairs of Cut are; "pairs": any; "ways": any, also one way only
    Cut,
    Flapping,    \* pairs whose link comes and goes
    PreVote, Sticky, CheckQuorum,
    Bugs

VARIABLES
    links,     \* <<n, m>>: what n says is heard by m
    term,      \* order matters, not numbers: they are kept small
    lead,      \* leads its term
    follows,   \* the leader that it hears, or "none"
    act, bug

vars == <<links, term, lead, follows, act, bug>>

-----------------------------------------------------------------------------
Both(n, m) == <<n, m>> \in links /\ <<m, n>> \in links
Peers(n) == {m \in Nodes \ {n} : Both(n, m)}
Majority(S) == 2 * Cardinality(S) > Cardinality(Nodes)

Asks == PreVote /\ bug # "no_question"
Sticks == Sticky /\ bug # "not_sticky"

(* What n hears of its leader. *)
Hears(n) == LET l == follows[n] IN
            l # "none" /\ lead[l] /\ term[l] = term[n] /\ <<l, n>> \in links

(* Terms in their order, two apart, so that a new one fits in between. *)
Ranked(t) == [n \in Nodes |-> 2 * Cardinality({t[m] : m \in {m \in Nodes : t[m] < t[n]}})]

Done(op, n, m) == act' = [op |-> op, n |-> n, m |-> m]

-----------------------------------------------------------------------------
Heartbeat(l, n) ==
    /\ lead[l] /\ l # n /\ <<l, n>> \in links
    /\ IF term[n] <= term[l]
       THEN /\ follows[n] # l \/ term[n] # term[l]
            /\ term' = Ranked([term EXCEPT ![n] = term[l]])
            /\ follows' = [follows EXCEPT ![n] = l]
            /\ lead' = [lead EXCEPT ![n] = FALSE]
       (* Answered with the higher term, if the answer arrives. *)
       ELSE /\ <<n, l>> \in links
            /\ term' = Ranked([term EXCEPT ![l] = term[n]])
            /\ follows' = [follows EXCEPT ![l] = "none"]
            /\ lead' = [lead EXCEPT ![l] = FALSE]
    /\ Done("Heartbeat", l, n)
    /\ UNCHANGED <<links, bug>>

(* No leader was heard of for a time-out. *)
TimeOut(n) ==
    /\ ~lead[n] /\ follows[n] # "none" /\ ~Hears(n)
    /\ follows' = [follows EXCEPT ![n] = "none"]
    /\ Done("TimeOut", n, n)
    /\ UNCHANGED <<links, term, lead, bug>>

(* Who would look at what n asks for. *)
Open(n) == {m \in Peers(n) : ~(Sticks /\ (lead[m] \/ Hears(m)))}

(* Whoever says yes to a question has no leader, and is not in a later term. *)
Willing(n) == {m \in Open(n) : term[m] <= term[n]} \cup {n}

(* A question that is answered with a later term teaches it. *)
Learn(n, m) ==
    /\ Asks /\ ~lead[n] /\ follows[n] = "none"
    /\ m \in Peers(n) /\ term[m] > term[n]
    /\ term' = Ranked([term EXCEPT ![n] = term[m]])
    /\ Done("Learn", n, m)
    /\ UNCHANGED <<links, lead, follows, bug>>

(* Stands in a new term: after a question that was answered well, or at once. What it says is heard one way, too. *)
Stand(n) ==
    /\ ~lead[n] /\ follows[n] = "none"
    /\ Asks => Majority(Willing(n))
    /\ \E asked \in {{m \in Nodes \ {n} : <<n, m>> \in links /\ ~(Sticks /\ (lead[m] \/ Hears(m)))}} :
       LET t == term[n] + 1
           reached == {m \in asked : term[m] < t}
           votes == {n} \cup {m \in reached : <<m, n>> \in links}
           won == Majority(votes)
           higher == {term[m] : m \in {m \in Peers(n) : term[m] > t /\ ~won}}
           mine == IF higher = {} THEN t ELSE CHOOSE x \in higher : \A y \in higher : y <= x
       IN /\ term' = Ranked([m \in Nodes |-> IF m = n THEN mine ELSE IF m \in reached THEN t ELSE term[m]])
          /\ lead' = [m \in Nodes |-> IF m = n THEN won ELSE lead[m] /\ m \notin reached]
          (* Its first heartbeat comes before anybody's time-out. *)
          /\ follows' = [m \in Nodes |-> IF won /\ m \in votes \ {n} THEN n ELSE IF m \in reached THEN "none" ELSE follows[m]]
    /\ Done("Stand", n, n)
    /\ UNCHANGED <<links, bug>>

(* A leader that hears no majority. *)
StepDown(n) ==
    /\ CheckQuorum /\ lead[n] /\ ~Majority({n} \cup Peers(n))
    /\ lead' = [lead EXCEPT ![n] = FALSE]
    /\ Done("StepDown", n, n)
    /\ UNCHANGED <<links, term, follows, bug>>

Flap(pair) ==
    /\ \E ways \in {{<<n, m>> : n, m \in pair} \ {<<n, n>> : n \in pair}} :
          links' = IF ways \subseteq links THEN links \ ways ELSE links \cup ways
    /\ act' = [op |-> "Flap", n |-> "", m |-> ""]
    /\ UNCHANGED <<term, lead, follows, bug>>

-----------------------------------------------------------------------------
All == {way \in Nodes \X Nodes : way[1] # way[2]}
Pairs == {pair \in SUBSET Nodes : Cardinality(pair) = 2}
Ways(pairs) == {way \in All : {way[1], way[2]} \in pairs}

(* A majority in which everybody hears everybody. *)
Core(up) == \E S \in SUBSET Nodes : Majority(S) /\ \A n, m \in S : n = m \/ <<n, m>> \in up

Init ==
    /\ bug \in Bugs
    /\ links \in {up \in CASE Shape = "given" -> {All \ Ways(Cut)}
                           [] Shape = "pairs" -> {All \ Ways(cut) : cut \in SUBSET Pairs}
                           [] Shape = "ways" -> SUBSET All :
                      Core(up \ Ways(Flapping)) \/ Shape = "given"}
    /\ term = [n \in Nodes |-> 0]
    (* Nobody leads yet, or somebody did when the network was whole. *)
    /\ \E old \in Nodes \cup {"none"} :
          /\ lead = [n \in Nodes |-> n = old]
          /\ follows = [n \in Nodes |-> IF n = old THEN "none" ELSE old]
    /\ act = [op |-> "Init", n |-> "", m |-> ""]

Next ==
    \/ \E l \in Nodes, n \in Nodes : Heartbeat(l, n)
    \/ \E n \in Nodes : TimeOut(n)
    \/ \E n \in Nodes, m \in Nodes : Learn(n, m)
    \/ \E n \in Nodes : Stand(n)
    \/ \E n \in Nodes : StepDown(n)
    \/ \E pair \in Flapping : Flap(pair)

Spec == Init /\ [][Next]_vars

View == <<links, term, lead, follows, bug>>

(* Time-outs are drawn anew each time: whoever could win again and again stands at such a moment. *)
Fairness ==
    /\ \A l \in Nodes, n \in Nodes : WF_View(Heartbeat(l, n))
    /\ \A n \in Nodes : WF_View(TimeOut(n)) /\ SF_View(Stand(n)) /\ WF_View(StepDown(n))
    /\ \A n \in Nodes, m \in Nodes : WF_View(Learn(n, m))

FairSpec == Init /\ [][Next]_vars /\ Fairness
(* Without time-outs that differ from each other, who can win may never stand at the right moment. *)
UnfairSpec ==
    /\ Init /\ [][Next]_vars
    /\ \A l \in Nodes, n \in Nodes : WF_View(Heartbeat(l, n))
    /\ \A n \in Nodes : WF_View(TimeOut(n)) /\ WF_View(StepDown(n))

-----------------------------------------------------------------------------
Supporters(l) == {l} \cup {n \in Peers(l) : follows[n] = l /\ term[n] = term[l]}
Rules(l) == lead[l] /\ Majority(Supporters(l))

TypeOK ==
    /\ links \subseteq All
    /\ \A n \in Nodes : follows[n] \in Nodes \cup {"none"} /\ (lead[n] => follows[n] = "none")

ElectionSafety == \A n, m \in Nodes : lead[n] /\ lead[m] /\ term[n] = term[m] => n = m

(* Whom a majority supports stays in office, whatever those do that do not hear it. *)
DisruptionBound == \A l \in Nodes : Rules(l) /\ act'.op # "Flap" => lead'[l]

(* A leader that cannot reach a majority does not stay. *)
StaleLeaderSteps == \A l \in Nodes : []<>(~lead[l] \/ Majority({l} \cup Peers(l)))

(* In the end one node leads, with a majority, for ever. *)
StaysLed == \E l \in Nodes : <>[]Rules(l)

-----------------------------------------------------------------------------
(* WITNESSES: predicates that some state must violate. *)
SeenTwoLeaders == Cardinality({n \in Nodes : lead[n]}) < 2
SeenUnheard == \A l \in Nodes : Rules(l) => \A n \in Nodes : follows[n] # "none" \/ n = l
=============================================================================
