------------------------------ MODULE RaftDisk ------------------------------
(***************************************************************************)
(* Consensus as disks see it (walrq/raft/, walrq/replica/): what a node has *)
(* in its log, how much of that a power loss would leave, what is reclaimed *)
(* behind a snapshot, and who may count on whom afterwards.                 *)
(*                                                                          *)
(* There are no messages: an election, an append and its answer, a snapshot *)
(* and its answer are one step each. Raft.tla has the messages.             *)
(*                                                                          *)
(* Modelled: sync before reply, also the leader's own; power loss that      *)
(* leaves any part of what was not synced; snapshots, after which dead      *)
(* bodies are gone; installing one, without what died since; a log that     *)
(* lost its end, and a body that rotted; the repair of such a node; a disk  *)
(* that is lost with all it promised; members, one change at a time, with   *)
(* learners.                                                                *)
(*                                                                          *)
(* Not modelled: time, reads, a disk that stands still; a node that is down *)
(* (it may simply do nothing); parts of a batch; snapshot points of the log *)
(* (a node may image any index that it may).                                *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Servers,       \* all nodes that there ever are
    Initial,       \* voters of the beginning
    First,         \* the first leader; nodes are alike, so it may be fixed
    MaxTerm, MaxLog,
    MaxFaults,     \* power losses, and disks that lose something durable
    Faults,        \* which: "crash", "log", "body", "disk"
    Ops,           \* what clients and operators do: "push", "ack", "learner", "promote", "join", "remove", "image"
    Imagers,       \* nodes that take snapshots by themselves
    Hurt,          \* nodes that this happens to; nodes are alike, so one may stand for all
    Lazy,          \* nodes whose syncs take time; what the others write is durable at once
    Bugs

VARIABLES
    term,      \* durable together with the vote: whoever has a term votes in it for nobody else
    log,       \* all entries, those in the snapshot included
    dur,       \* entries through this one are durable
    commit,    \* entries through this one are known to be committed, and applied
    snap,      \* entries through this one are in the durable snapshot
    body,      \* pushes whose payload the node has
    left,      \* pushes that a received snapshot left out: dead, although the snapshot has them alive
    lead,      \* leads its term
    told,      \* what the leader of its term heard from it: entries through this one are durable there
    rec,       \* of a damaged node: it is to be repaired, what its log reached, the leader's answer, its group before
    doubt,     \* after a start: to look for lost bodies once entries through this one are applied; -1: done
    unfit,     \* lost a body of a live message, and so does not lead
    gone,      \* nodes whose disk is lost: they never come back under their name
    faults, losses,
    leaders,   \* GHOST: who led which term
    acked,     \* GHOST: what was committed, and answered
    act, bug

nodes == <<term, log, dur, commit, snap, body, left, lead, told, rec, doubt, unfit, gone>>
vars == <<nodes, faults, losses, leaders, acked, act, bug>>
View == <<nodes, faults, losses, leaders, acked, bug>>

-----------------------------------------------------------------------------
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Min(a, b) == IF a < b THEN a ELSE b
Larger(a, b) == IF a < b THEN b ELSE a
Majority(S, V) == 2 * Cardinality(S \cap V) > Cardinality(V)

Entry(t, k, of, v, l) == [t |-> t, k |-> k, of |-> of, v |-> v, l |-> l]
Plain(t, k) == Entry(t, k, 0, {}, {})
LastTerm(lg) == IF lg = <<>> THEN 0 ELSE lg[Len(lg)].t
End(lg) == <<LastTerm(lg), Len(lg)>>
UpTo(a, b) == a[1] < b[1] \/ (a[1] = b[1] /\ a[2] <= b[2])
(* Further than any log. *)
Unknown == <<MaxTerm + 1, 0>>
Unasked == MaxLog + 1
Whole == [on |-> FALSE, floor |-> <<0, 0>>, target |-> -1, v |-> {}]

(* How far two logs agree. *)
Agree(a, b) == Cardinality({i \in 1..Min(Len(a), Len(b)) : \A j \in 1..i : a[j].t = b[j].t})
Prefix(lg, n) == SubSeq(lg, 1, n)

(* Who belongs to the group: the last configuration of the log, committed or not. *)
ConfigAt(lg, from, to) ==
    LET found == {i \in from..to : lg[i].k = "config"} IN
    IF found = {} THEN [v |-> Initial, l |-> {}, at |-> 0]
    ELSE LET i == Max(found) IN [v |-> lg[i].v, l |-> lg[i].l, at |-> i]
Config(n) == ConfigAt(log[n], IF bug = "snapshot_without_members" THEN snap[n] + 1 ELSE 1, Len(log[n]))
Members(n) == Config(n).v \cup Config(n).l

(* Messages that are alive when entries through `to` are applied. *)
Live(lg, to) ==
    {i \in 1..to : lg[i].k = "push" /\ \A j \in (i + 1)..to : ~(lg[j].k = "ack" /\ lg[j].of = i)}
Pushes(lg) == {i \in 1..Len(lg) : lg[i].k = "push"}

(* An entry of its own term is committed: what was committed before is known, and applied. *)
Serves(l) == lead[l] /\ commit[l] > 0 /\ log[l][commit[l]].t = term[l]

(* A leader's office ends in its node; somebody else's is lost with the term. *)
Unled(S) == [n \in Servers |-> lead[n] /\ n \notin S]

(* The durable end after a write. *)
Written(n, to, before) == IF n \in Lazy THEN before ELSE to

Done(op, a, b) == act' = [op |-> op, n |-> a, m |-> b]

-----------------------------------------------------------------------------
(* Elections. *)
MayStand(n) ==
    /\ n \notin gone /\ ~rec[n].on /\ n \in Config(n).v
    (* Who is alone serves what it has. *)
    /\ ~unfit[n] \/ Config(n).v = {n}

(* A damaged node votes for a log that reaches as far as its own ever did. *)
Grants(q, n) ==
    LET own == IF rec[q].on /\ bug # "recovering_votes"
               THEN IF UpTo(End(log[q]), rec[q].floor) THEN rec[q].floor ELSE End(log[q])
               ELSE End(IF bug = "commit_stands_for_end" THEN Prefix(log[q], commit[q]) ELSE log[q])
    IN \/ bug = "vote_ignores_log"
       \/ UpTo(own, End(log[n])) /\ (bug = "length_before_term" => own[2] <= Len(log[n]))
       \/ bug = "length_before_term" /\ own[2] < Len(log[n])

Elect(n, Q) ==
    /\ MayStand(n) /\ n \in Q /\ Q \subseteq Config(n).v \ gone /\ Majority(Q, Config(n).v)
    /\ leaders = {} => n = First
    /\ Len(log[n]) < MaxLog
    /\ \E t \in {1 + (IF bug = "vote_twice" THEN term[n] ELSE Max({term[q] : q \in Q}))} :
          /\ t <= MaxTerm
          /\ \A q \in Q \ {n} : term[q] <= t /\ Grants(q, n)
          /\ term' = [q \in Servers |-> IF q \in Q THEN t ELSE term[q]]
          /\ log' = [log EXCEPT ![n] = Append(@, Plain(t, "noop"))]
          /\ leaders' = leaders \cup {<<t, n>>}
    /\ lead' = [Unled(Q) EXCEPT ![n] = TRUE]
    /\ told' = [q \in Servers |-> IF q = n THEN Written(n, Len(log[n]) + 1, 0) ELSE IF q \in Q THEN 0 ELSE told[q]]
    /\ dur' = [dur EXCEPT ![n] = Written(n, Len(log[n]) + 1, @)]
    /\ Done("Elect", n, n)
    /\ UNCHANGED <<left, commit, snap, body, rec, doubt, unfit, gone, faults, losses, acked, bug>>

(* What a leader appends is durable nowhere yet. *)
Append1(l, entry, payload) ==
    /\ lead[l] /\ Len(log[l]) < MaxLog
    /\ log' = [log EXCEPT ![l] = Append(@, entry)]
    /\ body' = IF payload THEN [body EXCEPT ![l] = @ \cup {Len(log[l]) + 1}] ELSE body
    /\ dur' = [dur EXCEPT ![l] = Written(l, Len(log[l]) + 1, @)]
    /\ told' = [told EXCEPT ![l] = Written(l, Len(log[l]) + 1, @)]
    /\ UNCHANGED <<left, term, commit, snap, lead, rec, doubt, unfit, gone, faults, losses, leaders, acked, bug>>

Push(l) == "push" \in Ops /\ Append1(l, Plain(term[l], "push"), TRUE) /\ Done("Push", l, l)

(* Whoever acknowledges has been given the message. *)
Ack(l, i) ==
    /\ "ack" \in Ops /\ Serves(l)
    /\ i \in Live(log[l], Len(log[l])) /\ i <= commit[l] /\ i \in body[l]
    /\ Append1(l, Entry(term[l], "ack", i, {}, {}), FALSE)
    /\ Done("Ack", l, i)

(* One change of the group at a time, by a leader that committed. *)
MayChange(l) ==
    /\ lead[l]
    /\ Serves(l) \/ bug = "change_without_noop"
    /\ Config(l).at <= commit[l] \/ bug = "two_changes"
ChangeTo(l, v, c) == Append1(l, Entry(term[l], "config", 0, v, c), FALSE)

AddLearner(l, n) ==
    /\ "learner" \in Ops /\ MayChange(l)
    /\ n \notin Members(l) \cup gone /\ log[n] = <<>>
    /\ ChangeTo(l, Config(l).v, Config(l).l \cup {n})
    /\ Done("AddLearner", l, n)

Promote(l, n) ==
    /\ "promote" \in Ops /\ MayChange(l)
    /\ n \in Config(l).l /\ term[n] = term[l] /\ told[n] >= commit[l]
    /\ ChangeTo(l, Config(l).v \cup {n}, Config(l).l \ {n})
    /\ Done("Promote", l, n)

(* The same in one step, for groups that change more often than there is room for. *)
Join(l, n) ==
    /\ "join" \in Ops /\ MayChange(l)
    /\ n \notin Members(l) \cup gone /\ log[n] = <<>>
    /\ ChangeTo(l, Config(l).v \cup {n}, Config(l).l)
    /\ Done("Join", l, n)

Remove(l, n) ==
    /\ "remove" \in Ops /\ MayChange(l)
    /\ n \in Config(l).v /\ Config(l).v # {n}
    /\ ChangeTo(l, Config(l).v \ {n}, Config(l).l)
    /\ Done("Remove", l, n)

-----------------------------------------------------------------------------
(* The log spreads. *)

(* Hears of a leader of this term: what was told to another one counts no more. *)
Follows(l, f) ==
    /\ lead[l] /\ f # l /\ f \notin gone
    /\ f \in Members(l)
    /\ term[f] <= term[l]
    /\ ~(lead[f] /\ term[f] = term[l])
Told(l, f) == IF term[f] = term[l] THEN told[f] ELSE 0

(* An append of the next entry, or of none; the answer is what it covered, as far as that is durable. *)
Replicate(l, f) ==
    /\ Follows(l, f)
    /\ \E m \in IF bug = "cut_at_every_append" THEN 0..Agree(log[l], log[f]) ELSE {Agree(log[l], log[f])} :
       \E more \in {FALSE, m < Len(log[l])} :
       LET to == IF more THEN m + 1 ELSE m
           kept == Prefix(log[f], m)
           cut == IF bug = "cut_at_every_append" THEN m
                  ELSE Len(log[f])
           durable == IF more THEN Written(f, to, Min(dur[f], m))
                      ELSE IF bug = "cut_at_every_append" THEN Min(dur[f], m) ELSE dur[f]
           covered == IF bug = "reply_before_sync" THEN to
                      ELSE IF bug = "reply_last_index" THEN dur[f] ELSE Min(durable, to)
       IN /\ m >= snap[l] \/ snap[l] = 0
          /\ log' = [log EXCEPT ![f] = IF more THEN Append(kept, log[l][to]) ELSE Prefix(@, cut)]
          /\ dur' = [dur EXCEPT ![f] = durable]
          /\ commit' = [commit EXCEPT ![f] =
                Larger(@, Min(commit[l], IF bug = "commits_what_was_not_covered" THEN Len(log'[f]) ELSE to))]
          /\ body' = IF more THEN [body EXCEPT ![f] = {i \in @ : i <= m} \cup ({to} \cap Pushes(log[l]))] ELSE body
          /\ told' = [told EXCEPT ![f] = Larger(Told(l, f), covered)]
    /\ term' = [term EXCEPT ![f] = term[l]]
    /\ lead' = Unled({f})
    /\ Done("Replicate", l, f)
    /\ UNCHANGED <<left, snap, rec, doubt, unfit, gone, faults, losses, leaders, acked, bug>>
    /\ nodes' # nodes

(* A persist is over: what waited for it is told to the leader of the term. *)
Sync(n) ==
    /\ n \notin gone /\ dur[n] < Len(log[n])
    /\ dur' = [dur EXCEPT ![n] = Len(log[n])]
    /\ told' = [told EXCEPT ![n] =
          IF lead[n] THEN Len(log[n])
          ELSE Max({@} \cup {Agree(log[l], log[n]) : l \in {l \in Servers : lead[l] /\ term[l] = term[n]}})]
    /\ Done("Sync", n, n)
    /\ UNCHANGED <<left, term, log, commit, snap, body, lead, rec, doubt, unfit, gone, faults, losses, leaders, acked, bug>>

(* An entry of its own term is on the disks of a majority; one more entry is committed and answered. *)
AdvanceCommit(l) ==
    /\ lead[l]
    /\ \E i \in (commit[l] + 1)..Len(log[l]) :
          /\ log[l][i].t = term[l] \/ bug = "commits_older_term"
          /\ LET heard == {q \in Servers : term[q] = term[l] /\ told[q] >= i}
                          \cup (IF bug = "leader_before_own_sync" THEN {l} ELSE {})
                 voters == IF bug = "learners_count" THEN Members(l) ELSE Config(l).v
             IN Majority(heard, voters)
    /\ \E c \in {commit[l] + 1} :
          /\ commit' = [commit EXCEPT ![l] = c]
          /\ acked' = IF c > Len(acked) THEN Append(acked, log[l][c]) ELSE acked
          (* Once its own removal is committed it leads no more. *)
          /\ lead' = IF l \notin Config(l).v /\ Config(l).at <= c THEN Unled({l}) ELSE lead
    /\ Done("AdvanceCommit", l, l)
    /\ UNCHANGED <<left, term, log, dur, snap, body, told, rec, doubt, unfit, gone, faults, losses, leaders, bug>>

-----------------------------------------------------------------------------
(* Snapshots. *)

(* Through what is applied and durable. What is dead by now is given back, also what died behind the snapshot. *)
Image(n) ==
    /\ "image" \in Ops /\ n \in Imagers \ gone
    /\ \E s \in {IF bug = "image_of_what_is_not_committed" THEN dur[n] ELSE Min(commit[n], dur[n])} :
          /\ s > snap[n]
          /\ snap' = [snap EXCEPT ![n] = s]
          /\ body' = [body EXCEPT ![n] =
                {i \in @ : i > s} \cup (@ \cap Live(log[n], IF bug = "dead_before_commit" THEN Len(log[n]) ELSE commit[n]))]
    /\ Done("Image", n, n)
    /\ UNCHANGED <<left, term, log, dur, commit, lead, told, rec, doubt, unfit, gone, faults, losses, leaders, acked, bug>>

(* A follower lacks what the leader's log has no more. It gets what is alive of that, and the snapshot. *)
Install(l, f) ==
    /\ Follows(l, f) /\ snap[l] > 0
    /\ \E m \in {Agree(log[l], log[f])} :
       LET s == snap[l]
           holds == m >= s
           base == IF m < s THEN m ELSE s
           came == {i \in body[l] \cap Live(log[l], commit[l]) : i > base /\ i <= s}
       IN /\ ~holds /\ commit[f] < s
          /\ log' = [log EXCEPT ![f] = Prefix(log[l], s)]
          /\ dur' = [dur EXCEPT ![f] = Len(log'[f])]
          /\ commit' = [commit EXCEPT ![f] = s]
          /\ snap' = [snap EXCEPT ![f] = s]
          /\ body' = [body EXCEPT ![f] = {i \in @ : i <= base} \cup (IF bug = "install_without_bodies" THEN {} ELSE came)]
          /\ left' = [left EXCEPT ![f] = {i \in @ : i <= base} \cup {i \in Pushes(log'[f]) : i > base /\ i <= s /\ i \notin came}]
          /\ told' = [told EXCEPT ![f] = Larger(Told(l, f), s)]
    /\ term' = [term EXCEPT ![f] = term[l]]
    /\ lead' = Unled({f})
    /\ Done("Install", l, f)
    /\ UNCHANGED <<rec, doubt, unfit, gone, faults, losses, leaders, acked, bug>>

-----------------------------------------------------------------------------
(* What disks lose. *)

Restarted(n, to) ==
    /\ log' = [log EXCEPT ![n] = Prefix(@, to)]
    /\ dur' = [dur EXCEPT ![n] = Min(@, to)]
    /\ commit' = [commit EXCEPT ![n] = Min(snap[n], to)]
    /\ lead' = Unled({n})
    /\ doubt' = IF "image" \notin Ops THEN doubt
                ELSE [doubt EXCEPT ![n] = IF ConfigAt(log[n], 1, to).v = {n} THEN to ELSE Unasked]

(* Power loss: of what was not synced any part may be there. *)
Crash(n, to) ==
    /\ "crash" \in Faults /\ faults < MaxFaults /\ n \in Hurt \ gone
    /\ to \in dur[n]..Len(log[n])
    /\ Restarted(n, to)
    /\ body' = [body EXCEPT ![n] = {i \in @ : i <= to}]
    /\ term' = IF bug = "vote_not_durable" THEN [term EXCEPT ![n] = LastTerm(Prefix(log[n], to))] ELSE term
    /\ unfit' = [unfit EXCEPT ![n] = FALSE]
    /\ faults' = faults + 1
    /\ Done("Crash", n, to)
    /\ UNCHANGED <<left, snap, told, rec, gone, losses, leaders, acked, bug>>

(* More than a minority of disks nobody survives. *)
Loses(n, how) ==
    /\ faults < MaxFaults /\ how \in Faults /\ n \in Hurt \ gone
    /\ 2 * (losses + 1) < Cardinality(ConfigAt(acked, 1, Len(acked)).v)
    /\ faults' = faults + 1 /\ losses' = losses + 1

(* The end of the log is damaged. How far it reached may be known. *)
LoseLog(n, to, known) ==
    /\ Loses(n, "log")
    /\ to \in snap[n]..(dur[n] - 1)
    /\ Restarted(n, to)
    /\ body' = [body EXCEPT ![n] = {i \in @ : i <= to}]
    /\ unfit' = [unfit EXCEPT ![n] = FALSE]
    /\ rec' = IF bug = "damage_is_a_tail" THEN rec
              ELSE [rec EXCEPT ![n] = [on |-> TRUE, floor |-> IF known THEN End(log[n]) ELSE Unknown, target |-> -1,
                                       v |-> IF bug = "group_lost_with_the_log" THEN {}
                                             ELSE IF bug = "newest_group_only" THEN Config(n).v
                                             ELSE UNION {log[n][i].v : i \in (to + 1)..Len(log[n])}]]
    /\ Done("LoseLog", n, to)
    /\ UNCHANGED <<left, term, snap, told, gone, leaders, acked, bug>>

(* A body below the snapshot rots. *)
LoseBody(n, i) ==
    /\ Loses(n, "body")
    /\ i \in body[n] /\ i <= snap[n]
    /\ Restarted(n, dur[n])
    /\ body' = [body EXCEPT ![n] = {j \in @ : j # i /\ j <= dur[n]}]
    /\ unfit' = [unfit EXCEPT ![n] = FALSE]
    /\ Done("LoseBody", n, i)
    /\ UNCHANGED <<left, term, snap, told, rec, gone, leaders, acked, bug>>

(* The disk is lost with votes, log and all: the node is gone. Under another name it may join. *)
LoseDisk(n) ==
    /\ Loses(n, "disk")
    /\ log' = [log EXCEPT ![n] = <<>>] /\ body' = [body EXCEPT ![n] = {}] /\ left' = [left EXCEPT ![n] = {}]
    /\ dur' = [dur EXCEPT ![n] = 0] /\ commit' = [commit EXCEPT ![n] = 0] /\ snap' = [snap EXCEPT ![n] = 0]
    /\ term' = [term EXCEPT ![n] = 0]
    /\ lead' = Unled({n})
    /\ gone' = IF bug = "name_comes_back" THEN gone ELSE gone \cup {n}
    /\ Done("LoseDisk", n, n)
    /\ UNCHANGED <<told, rec, doubt, unfit, leaders, acked, bug>>

(* Bodies are looked for once all is applied that was committed when a leader was asked: what died before may have *)
(* been given back although this node does not know yet that it died. *)
AskCommit(l, n) ==
    /\ doubt[n] = Unasked /\ n \notin gone
    /\ Serves(l) /\ term[n] = term[l] /\ n \in Members(l)
    /\ Majority({q \in Servers : term[q] = term[l]}, Config(l).v)
    /\ doubt' = [doubt EXCEPT ![n] = commit[l]]
    /\ Done("AskCommit", l, n)
    /\ UNCHANGED <<left, term, log, dur, commit, snap, body, lead, told, rec, unfit, gone, faults, losses, leaders, acked, bug>>

LookForBodies(n) ==
    /\ doubt[n] >= 0 /\ n \notin gone /\ ~rec[n].on
    /\ commit[n] >= doubt[n]
    /\ doubt' = [doubt EXCEPT ![n] = -1]
    /\ unfit' = [unfit EXCEPT ![n] = bug # "bodies_not_looked_for" /\ 
          ~(Live(log[n], commit[n]) \subseteq body[n] \cup left[n])]
    /\ lead' = IF unfit'[n] /\ Config(n).v # {n} THEN Unled({n}) ELSE lead
    /\ Done("LookForBodies", n, n)
    /\ UNCHANGED <<left, term, log, dur, commit, snap, body, told, rec, gone, faults, losses, leaders, acked, bug>>

-----------------------------------------------------------------------------
(* Repair. *)

(* The leader forgets what it heard before, and says how far all is committed; a majority confirms that it leads. *)
AskLeader(l, n) ==
    /\ rec[n].on /\ rec[n].target = -1 /\ n \in Members(l)
    /\ Serves(l) \/ (lead[l] /\ bug = "repaired_by_a_new_leader")
    /\ term[n] = term[l]
    /\ Majority({q \in Servers : term[q] = term[l]}, Config(l).v)
    /\ told' = IF bug = "old_words_count" THEN told ELSE [told EXCEPT ![n] = 0]
    /\ rec' = [rec EXCEPT ![n].target = commit[l]]
    /\ Done("AskLeader", l, n)
    /\ UNCHANGED <<left, term, log, dur, commit, snap, body, lead, doubt, unfit, gone, faults, losses, leaders, acked, bug>>

Repaired(n) ==
    /\ rec[n].on /\ rec[n].target >= 0
    /\ Min(commit[n], dur[n]) >= rec[n].target
    /\ rec' = [rec EXCEPT ![n] = Whole]
    /\ Done("Repaired", n, n)
    /\ UNCHANGED <<left, term, log, dur, commit, snap, body, lead, told, doubt, unfit, gone, faults, losses, leaders, acked, bug>>

(* Nobody leads: once all other voters have said how far their logs reach, the furthest of them is the bound. The *)
(* lost entries may have changed the group: whoever was a voter by any of them is asked as well. *)
AskEnds(n) ==
    /\ rec[n].on /\ n \in Config(n).v
    /\ \A l \in Servers : lead[l] => term[l] # term[n]
    /\ \E others \in {(Config(n).v \cup rec[n].v) \ {n}} :
          /\ others # {} /\ others \cap gone = {}
          /\ LET ends == {End(log[q]) : q \in IF bug = "one_answer_is_enough" THEN {CHOOSE q \in others : TRUE} ELSE others}
                 furthest == CHOOSE e \in ends : \A o \in ends : UpTo(o, e)
             IN rec' = [rec EXCEPT ![n] = IF UpTo(furthest, End(log[n])) THEN Whole ELSE [@ EXCEPT !.floor = furthest]]
    /\ rec' # rec
    /\ Done("AskEnds", n, n)
    /\ UNCHANGED <<left, term, log, dur, commit, snap, body, lead, told, doubt, unfit, gone, faults, losses, leaders, acked, bug>>

-----------------------------------------------------------------------------
Init ==
    /\ bug \in Bugs
    /\ term = [n \in Servers |-> 0]
    /\ log = [n \in Servers |-> <<>>]
    /\ dur = [n \in Servers |-> 0] /\ commit = [n \in Servers |-> 0] /\ snap = [n \in Servers |-> 0]
    /\ body = [n \in Servers |-> {}] /\ left = [n \in Servers |-> {}]
    /\ lead = [n \in Servers |-> FALSE]
    /\ told = [n \in Servers |-> 0]
    /\ rec = [n \in Servers |-> Whole]
    /\ doubt = [n \in Servers |-> -1] /\ unfit = [n \in Servers |-> FALSE]
    /\ gone = {} /\ faults = 0 /\ losses = 0
    /\ leaders = {} /\ acked = <<>>
    /\ act = [op |-> "Init", n |-> First, m |-> First]

Next ==
    \/ \E n \in Servers, Q \in SUBSET Servers : Elect(n, Q)
    \/ \E l \in Servers : Push(l)
    \/ \E l \in Servers, i \in 1..MaxLog : Ack(l, i)
    \/ \E l \in Servers, n \in Servers : AddLearner(l, n)
    \/ \E l \in Servers, n \in Servers : Promote(l, n)
    \/ \E l \in Servers, n \in Servers : Join(l, n)
    \/ \E l \in Servers, n \in Servers : Remove(l, n)
    \/ \E l \in Servers, f \in Servers : Replicate(l, f)
    \/ \E n \in Servers : Sync(n)
    \/ \E l \in Servers : AdvanceCommit(l)
    \/ \E n \in Servers : Image(n)
    \/ \E l \in Servers, f \in Servers : Install(l, f)
    \/ \E n \in Servers, to \in 0..MaxLog : Crash(n, to)
    \/ \E n \in Servers, to \in 0..MaxLog, known \in BOOLEAN : LoseLog(n, to, known)
    \/ \E n \in Servers, i \in 1..MaxLog : LoseBody(n, i)
    \/ \E n \in Servers : LoseDisk(n)
    \/ \E l \in Servers, n \in Servers : AskCommit(l, n)
    \/ \E n \in Servers : LookForBodies(n)
    \/ \E l \in Servers, n \in Servers : AskLeader(l, n)
    \/ \E n \in Servers : Repaired(n)
    \/ \E n \in Servers : AskEnds(n)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* PROPERTIES. *)
TypeOK ==
    \A n \in Servers :
        /\ dur[n] <= Len(log[n]) /\ Len(log[n]) <= MaxLog /\ term[n] <= MaxTerm
        /\ body[n] \subseteq 1..Len(log[n]) /\ told[n] <= MaxLog

ElectionSafety == \A x, y \in leaders : x[1] = y[1] => x[2] = y[2]

LogMatching ==
    \A a, b \in Servers :
        \A i \in 1..Min(Len(log[a]), Len(log[b])) :
            log[a][i].t = log[b][i].t => Prefix(log[a], i) = Prefix(log[b], i)

PrevTermValid == \A n \in Servers : \A i \in 2..Len(log[n]) : log[n][i - 1].t <= log[n][i].t

(* Whoever leads the highest term there is has all that was ever committed. *)
LeaderCompleteness ==
    \A l \in Servers :
        lead[l] /\ (\A x \in leaders : x[1] <= term[l])
        => Len(acked) <= Len(log[l]) /\ Prefix(log[l], Len(acked)) = acked

StateMachineSafety ==
    \A n \in Servers : \A i \in 1..Min(commit[n], Len(acked)) : log[n][i] = acked[i]

(* An index that was answered is durable on a majority of what the answering leader counted, or was until a disk lost it. *)
AckedOnQuorum ==
    LET holders == {n \in Servers : dur[n] >= Len(acked) /\ Prefix(log[n], Len(acked)) = acked}
        damaged == {n \in Servers : rec[n].on} \cup gone
    IN acked # <<>> =>
       \E c \in {0} \cup {i \in 1..Len(acked) : acked[i].k = "config"} :
           LET voters == IF c = 0 THEN Initial ELSE acked[c].v
           IN Majority(holders \cup damaged, voters)

CommitLeLog == \A n \in Servers : commit[n] <= Len(log[n])
SnapLeCommit == \A n \in Servers : snap[n] <= Len(acked) /\ (snap[n] > 0 => Prefix(log[n], snap[n]) = Prefix(acked, snap[n]))
SnapLeDurable == \A n \in Servers : snap[n] <= dur[n]

(* A leader's configuration in effect and the last committed one share a voter in any two majorities. *)
QuorumOverlap ==
    \A l \in Servers :
        lead[l] => LET old == ConfigAt(log[l], 1, commit[l]).v
                       new == Config(l).v
                   IN Cardinality((old \ new) \cup (new \ old)) <= 1

(* Where a snapshot is, the members are those of its index. *)
ConfigFromSnapshotOrLog == \A n \in Servers : Config(n).at = ConfigAt(log[n], 1, Len(log[n])).at

(* Whoever is whole has the body of everything alive; what a received snapshot left out is dead for who serves. *)
EveryLiveReadable ==
    \A n \in Servers :
        doubt[n] = -1 /\ ~unfit[n]
        => Live(log[n], commit[n]) \subseteq body[n] \cup (IF Serves(n) THEN {} ELSE left[n])

(* Every live body is somewhere. *)
NoSilentLoss == \A i \in Live(acked, Len(acked)) : \E n \in Servers : i \in body[n]

(* A node that lost nothing is not called damaged. *)
NoFalseAlarm == losses = 0 => \A n \in Servers : ~unfit[n] /\ ~rec[n].on

-----------------------------------------------------------------------------
(* STEPS. *)
TermMonotonic == \A n \in Servers : term'[n] >= term[n] \/ act'.op = "LoseDisk"
CommitMonotonic ==
    \A n \in Servers : commit'[n] >= commit[n] \/ act'.op \in {"Crash", "LoseLog", "LoseBody", "LoseDisk"}
LeaderAppendOnly ==
    \A l \in Servers : lead[l] /\ lead'[l] /\ term[l] = term'[l] => Prefix(log'[l], Len(log[l])) = log[l]
(* What is durable stays, unless a leader's log conflicts with it or a disk loses it. *)
CommitStable ==
    \A n \in Servers :
        act'.op \notin {"LoseLog", "LoseDisk"} /\ commit[n] <= dur[n]
        => Len(log'[n]) >= commit[n] /\ Prefix(log'[n], commit[n]) = Prefix(log[n], commit[n])

-----------------------------------------------------------------------------
(* REFINEMENT. What clients see of a group is a log to which entries are appended, *)
------------------------------ MODULE OneLog ------------------------------
VARIABLE entries
Appended == Len(entries') = Len(entries) + 1 /\ SubSeq(entries', 1, Len(entries)) = entries
OneLogSpec == entries = <<>> /\ [][Appended]_entries
=============================================================================
Log == INSTANCE OneLog WITH entries <- acked
RefinesLog == Log!OneLogSpec

(* and a queue on one node that never fails. *)
------------------------------ MODULE OneQueue ------------------------------
VARIABLES waiting, settled
Put == \E m \in waiting' \ (waiting \cup settled) : waiting' = waiting \cup {m} /\ settled' = settled
Settle == \E m \in waiting : waiting' = waiting \ {m} /\ settled' = settled \cup {m}
OneQueueSpec == waiting = {} /\ settled = {} /\ [][Put \/ Settle]_<<waiting, settled>>
=============================================================================
Queue == INSTANCE OneQueue WITH waiting <- Live(acked, Len(acked)),
                                settled <- Pushes(acked) \ Live(acked, Len(acked))
RefinesQueue == Queue!OneQueueSpec

-----------------------------------------------------------------------------
(* WITNESSES: predicates that some state must violate. *)
LogIsCommitted == \A n \in Servers : Len(log[n]) <= Len(acked)
SeenSecondLeader == Cardinality(leaders) < 2
SeenInstalled == act.op # "Install"
SeenCommitBeforeOwnSync == \A l \in Servers : lead[l] => commit[l] <= dur[l]
SeenRepaired == act.op # "Repaired"
SeenNobodyHasMore == ~(act.op = "AskEnds" /\ ~rec[act.n].on)
SeenUnfit == \A n \in Servers : ~unfit[n]
SeenRemovedLeader == ~(act.op = "AdvanceCommit" /\ ~lead[act.n])
SeenVoterAdded == \A n \in Servers : Config(n).v \subseteq Initial
=============================================================================
