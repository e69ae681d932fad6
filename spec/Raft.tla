-------------------------------- MODULE Raft --------------------------------
(***************************************************************************)
(* Consensus, message by message (walrq/raft/core.py): a fixed group of     *)
(* voters over a network that loses, doubles and reorders, and over disks   *)
(* that take their time.                                                    *)
(*                                                                          *)
(* Modelled: the question before an election and its rounds, votes, the     *)
(* first entry of an office, appends of any part of the log, what they      *)
(* cover, heartbeats, commit by counting, answers to older terms, hand-over *)
(* by TimeoutNow, a leader that gives up, what waits for which write, and   *)
(* restarts that lose what was not durable. A log is the sequence of the    *)
(* terms of its entries: an index and a term name an entry.                 *)
(*                                                                          *)
(* Time is chance: a time-out may come at any moment, and whether a live    *)
(* leader was heard of lately (`sticks`) is part of the step that asks. So  *)
(* what holds here owes nothing to clocks.                                  *)
(*                                                                          *)
(* The network is the set of messages that still could matter: what stays   *)
(* in it may be received again, later than others, or never. Alive says     *)
(* what could; forgetting the others hides no step but idle ones (after a   *)
(* restart also the chance to learn a commit again from an old message).    *)
(*                                                                          *)
(* A log is never shortened from its beginning: what a snapshot covers      *)
(* stays in it as a ghost, and installing one (Install) puts the committed  *)
(* prefix in place.                                                         *)
(*                                                                          *)
(* Not modelled: changes of the group, learners, repair after damage        *)
(* (other modules); windows and the search for the point of agreement,      *)
(* since any append may be sent at any time; the bytes and streams of       *)
(* snapshots; reads (Read.tla); that proposals are refused while handing    *)
(* over, which is about progress only.                                      *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Server,
    Standing,          \* of them those that may stand by themselves; any can be told to
    Founded,           \* entries that all disks begin with, of term 1, in which nobody leads
    MaxTerm, MaxLog,   \* bounds
    MaxAsks,           \* questions before elections of each server; 0: servers stand without asking
    MaxCrashes,        \* restarts of a behaviour
    InstantDisk,       \* TRUE: every step ends with its own write; FALSE: writes are steps of their own
    Deposed,           \* of a behaviour that begins late: the leader of term 1, whose first entry nobody else got; {}: none
    AnyAppend,         \* TRUE: any part of the log may be sent; FALSE: all from some place on that is not acknowledged
    Ops,               \* of the optional actions those that happen
    Bugs

VARIABLES
    node,        \* what each server is, and what its disk has
    msgs,        \* messages on their way
    crashes,
    elected,     \* GHOST: by term, who took office
    committed,   \* GHOST: the longest log that anybody knew to be committed
    act, bug

vars == <<node, msgs, crashes, elected, committed, act, bug>>
View == <<node, msgs, crashes, elected, committed, bug>>

None == "-"
Nobody == [s \in Server |-> 0]
Terms == 1..MaxTerm
Smaller(a, b) == IF a < b THEN a ELSE b
Larger(a, b) == IF a > b THEN a ELSE b
IsQuorum(S) == 2 * Cardinality(S) > Cardinality(Server)
IsPrefix(s, t) == Len(s) <= Len(t) /\ SubSeq(t, 1, Len(s)) = s
TermAt(log, k) == IF k = 0 THEN 0 ELSE log[k]
LastTerm(log) == TermAt(log, Len(log))
Matches(log, k, t) == k <= Len(log) /\ TermAt(log, k) = t

(***************************************************************************)
(* A server. `state_in`, `log_in`: which write holds the newest change of   *)
(* term and vote, of the log: 0 it is durable, 1 being written, 2 not yet.  *)
(* `held` waits for the write under way, `next` for the one after it; `out` *)
(* is what a step says, and is empty between steps.                         *)
(***************************************************************************)
Fresh(term, vote, log) ==
    [role |-> "follower", term |-> term, vote |-> vote, leader |-> None, log |-> log, commit |-> 0,
     durable |-> Len(log), round |-> 0, yes |-> {}, no |-> {}, match |-> Nobody,
     dterm |-> term, dvote |-> vote, dlog |-> log, writing |-> <<>>,
     state_in |-> 0, log_in |-> 0, held |-> {}, next |-> {}, out |-> {}]

(* Say something once term and vote are durable, and with `log` also all entries. *)
Tell(n, m, log) ==
    LET in == Larger(n.state_in, IF log THEN n.log_in ELSE 0)
        early == \/ bug = "vote_told_early" /\ m.type = "VoteReply"
                 \/ bug = "acknowledged_early" /\ m.type = "AppendReply"
    IN IF in = 0 \/ early THEN [n EXCEPT !.out = @ \cup {m}]
       ELSE IF in = 1 THEN [n EXCEPT !.held = @ \cup {m}]
       ELSE [n EXCEPT !.next = @ \cup {m}]

TellAll(n, M) ==
    IF n.state_in = 0 THEN [n EXCEPT !.out = @ \cup M]
    ELSE IF n.state_in = 1 THEN [n EXCEPT !.held = @ \cup M]
    ELSE [n EXCEPT !.next = @ \cup M]

Others(i) == Server \ {i}

(* --- elections ---------------------------------------------------------------------------------------------- *)
Campaign(n, i, transfer) ==
    LET c == [n EXCEPT !.role = "candidate", !.leader = None, !.term = @ + 1, !.vote = i, !.state_in = 2,
                       !.yes = {}, !.no = {}]
    IN TellAll(c, {[type |-> "Vote", from |-> i, to |-> j, term |-> c.term, last |-> Len(c.log),
                    last_term |-> LastTerm(c.log), transfer |-> transfer] : j \in Others(i)})

(* The entry that opens the office lets those of earlier terms be committed. *)
TakeOffice(n, i) ==
    [n EXCEPT !.role = "leader", !.leader = i, !.yes = {}, !.no = {}, !.match = [Nobody EXCEPT ![i] = n.durable],
              !.log = Append(@, n.term), !.log_in = 2]

Count(n, i, voter, granted) ==
    LET known == voter \in n.yes \cup n.no
        says == granted \/ (bug = "refusal_counts" /\ n.role = "candidate")
        yes == IF ~known /\ says THEN n.yes \cup {voter} ELSE n.yes
        no == IF ~known /\ ~says THEN n.no \cup {voter} ELSE n.no
        again == bug = "counts_twice" /\ known /\ granted /\ 2 * (Cardinality(yes) + 1) > Cardinality(Server)
    IN IF IsQuorum(yes) \/ again
       THEN IF n.role = "pre-candidate" THEN Campaign(n, i, FALSE) ELSE TakeOffice(n, i)
       ELSE IF ~IsQuorum(Server \ no) THEN [n EXCEPT !.role = "follower", !.yes = {}, !.no = {}]
       ELSE [n EXCEPT !.yes = yes, !.no = no]

UpToDate(n, m) ==
    m.last_term > LastTerm(n.log) \/ (m.last_term = LastTerm(n.log) /\ m.last >= Len(n.log))

(* --- the log ------------------------------------------------------------------------------------------------ *)
(* What a majority holds durably, if it is of the leader's own term. *)
Advance(n, i) ==
    LET match == IF bug = "own_log_counts_early" THEN [n.match EXCEPT ![i] = Len(n.log)] ELSE n.match
        held == {k \in 1..Len(n.log) : IsQuorum({j \in Server : match[j] >= k})}
        k == CHOOSE k \in held : \A other \in held : other <= k
    IN IF held # {} /\ k > n.commit /\ n.log[k] = n.term
       THEN [n EXCEPT !.commit = k] ELSE n

Cut(n, k) ==
    [n EXCEPT !.log = SubSeq(@, 1, k - 1), !.durable = Smaller(@, k - 1),
              !.writing = IF @ = <<>> THEN @ ELSE <<[@[1] EXCEPT !.keep = Smaller(@, k - 1)]>>]

(* A message that only the leader of this term sends. *)
Follow(n, leader) ==
    [n EXCEPT !.role = "follower", !.leader = leader, !.yes = {}, !.no = {}]

TakeEntries(n, m) ==
    LET last == m.prev + Len(m.entries)
        new == {k \in m.prev + 1..last :
                    /\ k > n.commit /\ ~Matches(n.log, k, m.entries[k - m.prev])
                    /\ bug = "conflict_stays" => k > Len(n.log)}
        cut_all == bug = "every_append_cuts" /\ last > n.commit /\ last < Len(n.log)
        from == IF new = {} THEN last + 1 ELSE CHOOSE k \in new : \A other \in new : k <= other
        kept == IF from <= Len(n.log) /\ (new # {} \/ cut_all) THEN Cut(n, from) ELSE n
        rest == SubSeq(m.entries, Larger(from, Len(kept.log) + 1) - m.prev, Len(m.entries))
        took == IF new = {} THEN [kept EXCEPT !.log_in = IF cut_all THEN 2 ELSE @]
                ELSE [kept EXCEPT !.log = @ \o rest, !.log_in = 2]
        told == Smaller(m.commit, IF bug = "commits_beyond" THEN Len(took.log) ELSE last)
        done == [took EXCEPT !.commit = IF bug = "commit_follows" THEN told ELSE Larger(@, told)]
    IN Tell(done, [type |-> "AppendReply", from |-> m.to, to |-> m.from, term |-> n.term, accepted |-> TRUE,
                   index |-> IF bug = "own_end_is_told" THEN Len(done.log) ELSE last], TRUE)

OnAppend(n, m) ==
    LET f == Follow(n, m.from)
    IN IF m.prev > n.commit /\ ~Matches(n.log, m.prev, m.prev_term)
       THEN Tell(f, [type |-> "AppendReply", from |-> m.to, to |-> m.from, term |-> n.term, accepted |-> FALSE,
                     index |-> m.prev], FALSE)
       ELSE TakeEntries(f, m)

OnHeartbeat(n, m) ==
    Tell([Follow(n, m.from) EXCEPT !.commit = Larger(@, Smaller(m.commit, Len(n.log)))],
         [type |-> "HeartbeatReply", from |-> m.to, to |-> m.from, term |-> n.term], FALSE)

(* --- messages ----------------------------------------------------------------------------------------------- *)
Adopt(n, term) ==
    [n EXCEPT !.term = term, !.vote = None, !.state_in = 2, !.role = "follower", !.leader = None, !.yes = {},
              !.no = {}, !.match = Nobody]

(* Two leaders in one term: the message is refused. *)
Impossible(n, m) ==
    m.type \in {"Append", "Heartbeat"} /\ (n.role = "leader" \/ n.leader \notin {None, m.from})

(* Of the same term, or of those that are answered in any. *)
Handle(n, i, m, mood) ==
    CASE m.type = "PreVote" ->
            LET granted == /\ m.term + 1 > n.term
                           /\ ~mood \/ bug = "sticks_to_nobody"
                           /\ UpToDate(n, m)
            IN Tell(n, [type |-> "PreVoteReply", from |-> i, to |-> m.from, term |-> n.term, round |-> m.round,
                        granted |-> granted], FALSE)
      [] m.type = "PreVoteReply" ->
            IF n.role = "pre-candidate" /\ (n.round = m.round \/ bug = "any_round_counts")
            THEN Count(n, i, m.from, m.granted) ELSE n
      [] m.type = "Vote" ->
            LET granted == /\ n.vote \in {None, m.from} \/ bug = "votes_twice"
                           /\ n.leader = None
                           /\ UpToDate(n, m)
                v == IF granted /\ n.vote # m.from THEN [n EXCEPT !.vote = m.from, !.state_in = 2] ELSE n
            IN Tell(v, [type |-> "VoteReply", from |-> i, to |-> m.from, term |-> n.term, granted |-> granted], FALSE)
      [] m.type = "VoteReply" ->
            IF n.role = "candidate" THEN Count(n, i, m.from, m.granted) ELSE n
      [] m.type = "Append" -> IF mood THEN Follow(n, m.from) ELSE OnAppend(n, m)
      [] m.type = "AppendReply" ->
            IF n.role = "leader" /\ m.accepted /\ m.index <= Len(n.log)
            THEN Advance([n EXCEPT !.match[m.from] = Larger(@, m.index)], i) ELSE n
      [] m.type = "Heartbeat" -> OnHeartbeat(n, m)
      [] m.type = "HeartbeatReply" -> n
      [] m.type = "TimeoutNow" ->
            IF m.from = n.leader /\ ~mood THEN Campaign(n, i, TRUE) ELSE n

(* Let the sender of an older term learn of this one. *)
Stale(n, m) ==
    CASE m.type = "Append" ->
            Tell(n, [type |-> "AppendReply", from |-> m.to, to |-> m.from, term |-> n.term, accepted |-> FALSE,
                     index |-> m.prev], FALSE)
      [] m.type = "Heartbeat" ->
            Tell(n, [type |-> "HeartbeatReply", from |-> m.to, to |-> m.from, term |-> n.term], FALSE)
      [] m.type = "Vote" ->
            Tell(n, [type |-> "VoteReply", from |-> m.to, to |-> m.from, term |-> n.term, granted |-> FALSE], FALSE)
      [] m.type = "VoteReply" /\ bug = "old_votes_count" /\ n.role = "candidate" -> Count(n, m.to, m.from, m.granted)
      [] OTHER -> n

(* `mood`: to a question or a request for a vote, that a live leader was heard of; to TimeoutNow, that this server   *)
(* may not stand now; to an append, that a snapshot is being put in place and nothing is taken.                      *)
Receive(n, m, mood) ==
    IF m.term > n.term /\ m.type # "PreVote"
    THEN IF \/ m.type = "Vote" /\ mood /\ ~m.transfer /\ bug # "sticks_to_nobody"
            \/ m.type = "HeartbeatReply" /\ bug = "stale_leader_stays"
         THEN n
         ELSE Handle(Adopt(n, m.term), m.to, m, mood)
    ELSE IF m.term < n.term /\ m.type \notin {"PreVote", "PreVoteReply"} THEN Stale(n, m)
    ELSE IF Impossible(n, m) THEN n
    ELSE Handle(n, m.to, m, mood)

Moods(n, m) ==
    IF m.type \in {"PreVote", "Vote"}
    THEN IF n.leader = None THEN {FALSE} ELSE IF n.role = "leader" THEN {TRUE} ELSE BOOLEAN
    ELSE {FALSE}

(* --- durability --------------------------------------------------------------------------------------------- *)
Take(n) ==
    [n EXCEPT !.writing = <<[term |-> n.term, vote |-> n.vote, log |-> n.log, keep |-> Len(n.log)]>>,
              !.state_in = Smaller(@, 1), !.log_in = Smaller(@, 1), !.held = n.next, !.next = {}]

(* What was said in another term is better left unsaid. *)
Written(n, i) ==
    LET w == n.writing[1]
        d == [n EXCEPT !.dterm = w.term, !.dvote = w.vote, !.dlog = w.log, !.writing = <<>>, !.held = {},
                       !.out = @ \cup {m \in n.held : m.term = n.term},
                       !.state_in = IF @ = 1 THEN 0 ELSE @, !.log_in = IF @ = 1 THEN 0 ELSE @,
                       !.durable = Larger(@, w.keep)]
    IN IF d.role = "leader" THEN Advance([d EXCEPT !.match[i] = d.durable], i)
       ELSE IF d.role = "candidate" /\ w.term = n.term /\ w.vote = i THEN Count(d, i, i, TRUE)
       ELSE d

IsDirty(n) == n.state_in = 2 \/ n.log_in = 2
Once(n, i) == IF IsDirty(n) THEN Written(Take(n), i) ELSE n
(* A write may elect, and what the office begins with is another one. *)
Settled(n, i) == IF InstantDisk THEN Once(Once(n, i), i) ELSE n

(* What may be on the disk after power was lost: of the write under way the state, then the cut, then entry by entry. *)
Common(s, t) ==
    LET same == {k \in 0..Smaller(Len(s), Len(t)) : SubSeq(s, 1, k) = SubSeq(t, 1, k)}
    IN CHOOSE k \in same : \A other \in same : other <= k
Survivals(n) ==
    {<<n.dterm, n.dvote, n.dlog>>} \cup
    IF n.writing = <<>> THEN {}
    ELSE LET w == n.writing[1]
         IN {<<w.term, w.vote, n.dlog>>} \cup
            {<<w.term, w.vote, SubSeq(w.log, 1, k)>> : k \in Common(n.dlog, w.log)..Len(w.log)}

(* --- the network -------------------------------------------------------------------------------------------- *)
Alive(m, all) ==
    LET n == all[m.to]
        s == all[m.from]
    IN CASE m.type = "PreVote" -> s.role = "pre-candidate" /\ s.round = m.round
         [] m.type = "PreVoteReply" ->
               \/ m.term > n.term
               \/ n.role = "pre-candidate" /\ (n.round = m.round \/ bug = "any_round_counts")
                  /\ m.from \notin n.yes \cup n.no
         [] m.term > n.term -> TRUE
         [] m.type \in {"Append", "Heartbeat", "Vote"} /\ m.term < n.term -> s.term < n.term
         [] m.term < n.term -> m.type = "VoteReply" /\ bug = "old_votes_count"
         [] m.type = "Vote" ->
               \/ s.role = "candidate" /\ s.term = m.term /\ m.to \notin s.yes \cup s.no
               \/ n.vote = None /\ n.leader = None
         [] m.type = "VoteReply" -> n.role = "candidate" /\ (m.from \notin n.yes \cup n.no \/ bug = "counts_twice")
         [] m.type = "Append" ->
               \/ n.role # "leader" /\ n.leader = None
               \/ n.commit < Smaller(m.commit, m.prev + Len(m.entries))
               \/ s.role = "leader" /\ s.term = m.term /\ s.match[m.to] < m.prev + Len(m.entries)
               \/ ~IsPrefix(m.entries, SubSeq(n.log, m.prev + 1, Len(n.log)))
               \/ bug = "every_append_cuts" /\ m.prev + Len(m.entries) < Len(n.log)
               \/ bug = "commit_follows" /\ m.commit < n.commit
         [] m.type = "AppendReply" -> n.role = "leader" /\ m.accepted /\ m.index > n.match[m.from]
         [] m.type = "Heartbeat" ->
               n.role # "leader" /\ (n.leader = None \/ n.commit < Smaller(m.commit, Len(n.log)))
         [] m.type = "HeartbeatReply" -> FALSE
         [] m.type = "TimeoutNow" -> n.role \in {"follower", "pre-candidate"}

Longer(log, k) == IF k > Len(committed) THEN SubSeq(log, 1, k) ELSE committed

(* The step of one server: what it becomes, what it says, what is remembered of it. *)
Becomes(i, became, what) ==
    LET n == Settled(became, i)
        all == [node EXCEPT ![i] = [n EXCEPT !.out = {}]]
    IN /\ n.term <= MaxTerm /\ Len(n.log) <= MaxLog
       /\ node' = all
       /\ msgs' = {m \in msgs \cup n.out : Alive(m, all)}
       /\ elected' = IF n.role = "leader" /\ node[i].role # "leader"
                     THEN [elected EXCEPT ![n.term] = @ \cup {i}] ELSE elected
       /\ committed' = Longer(n.log, n.commit)
       /\ act' = what
       /\ UNCHANGED bug

Steady == UNCHANGED crashes

-----------------------------------------------------------------------------
(* Nothing was heard of a leader for a time-out. *)
AskPreVotes(i) ==
    /\ i \in Standing /\ node[i].role # "leader" /\ node[i].round < MaxAsks
    /\ LET n == [node[i] EXCEPT !.role = "pre-candidate", !.leader = None, !.round = @ + 1, !.yes = {i}, !.no = {}]
       IN Becomes(i, TellAll(n, {[type |-> "PreVote", from |-> i, to |-> j, term |-> n.term, last |-> Len(n.log),
                                  last_term |-> LastTerm(n.log), round |-> n.round] : j \in Others(i)}),
                  [op |-> "AskPreVotes", i |-> i])
    /\ Steady

(* The same where nobody asks before. *)
TimeOut(i) ==
    /\ i \in Standing /\ MaxAsks = 0 /\ node[i].role # "leader"
    /\ Becomes(i, Campaign(node[i], i, FALSE), [op |-> "TimeOut", i |-> i])
    /\ Steady

(* The same at a server that may not stand now. *)
Doubt(i) ==
    /\ "Doubt" \in Ops /\ node[i].role # "leader" /\ node[i].leader # None
    /\ Becomes(i, [node[i] EXCEPT !.leader = None], [op |-> "Doubt", i |-> i])
    /\ Steady

Received(m, mood, op) ==
    /\ Becomes(m.to, Receive(node[m.to], m, mood), [op |-> op, m |-> m, mood |-> mood])
    /\ Steady

Receipt(i, type, op) ==
    \E m \in {m \in msgs : m.to = i /\ m.type = type} : \E mood \in Moods(node[i], m) : Received(m, mood, op)

RecvPreVote(i) == i \in Server /\ Receipt(i, "PreVote", "RecvPreVote")
RecvPreVoteReply(i) == i \in Server /\ Receipt(i, "PreVoteReply", "RecvPreVoteReply")
RecvVote(i) == i \in Server /\ Receipt(i, "Vote", "RecvVote")
RecvVoteReply(i) == i \in Server /\ Receipt(i, "VoteReply", "RecvVoteReply")
RecvAppend(i) == i \in Server /\ Receipt(i, "Append", "RecvAppend")
RecvAppendReply(i) == i \in Server /\ Receipt(i, "AppendReply", "RecvAppendReply")
RecvHeartbeat(i) == i \in Server /\ Receipt(i, "Heartbeat", "RecvHeartbeat")
RecvHeartbeatReply(i) == i \in Server /\ Receipt(i, "HeartbeatReply", "RecvHeartbeatReply")
RecvTimeoutNow(i) == i \in Server /\ Receipt(i, "TimeoutNow", "RecvTimeoutNow")

Propose(i) ==
    /\ "Propose" \in Ops /\ node[i].role = "leader"
    /\ Becomes(i, [node[i] EXCEPT !.log = Append(@, node[i].term), !.log_in = 2], [op |-> "Propose", i |-> i])
    /\ Steady

AppendOf(i, j, prev, last) ==
    [type |-> "Append", from |-> i, to |-> j, term |-> node[i].term, prev |-> prev,
     prev_term |-> TermAt(node[i].log, prev), entries |-> SubSeq(node[i].log, prev + 1, last),
     commit |-> node[i].commit]

(* A leader's messages wait for nothing: its term is durable, or it would not lead. *)
SendAppend(i, j, prev, last) ==
    /\ "SendAppend" \in Ops /\ i # j /\ node[i].role = "leader" /\ prev <= last /\ last <= Len(node[i].log)
    /\ AnyAppend \/ (last = Len(node[i].log) /\ prev >= node[i].match[j])
    /\ AppendOf(i, j, prev, last) \notin msgs
    /\ Becomes(i, [node[i] EXCEPT !.out = @ \cup {AppendOf(i, j, prev, last)}],
               [op |-> "SendAppend", i |-> i, j |-> j, prev |-> prev, last |-> last])
    /\ Steady

(* Part of a snapshot of the first k entries: asks whether they are there. *)
SnapshotOf(i, j, k) == [AppendOf(i, j, k, k) EXCEPT !.commit = 0]

SendSnapshot(i, j, k) ==
    /\ "Install" \in Ops /\ i # j /\ node[i].role = "leader" /\ k <= node[i].commit
    /\ SnapshotOf(i, j, k) \notin msgs
    /\ Becomes(i, [node[i] EXCEPT !.out = @ \cup {SnapshotOf(i, j, k)}],
               [op |-> "SendSnapshot", i |-> i, j |-> j, k |-> k])
    /\ Steady

(* No further than what is known to be the follower's: behind that its log may be another one. *)
HeartbeatOf(i, j) ==
    [type |-> "Heartbeat", from |-> i, to |-> j, term |-> node[i].term,
     commit |-> IF bug = "heartbeat_commits_all" THEN node[i].commit ELSE Smaller(node[i].match[j], node[i].commit)]

SendHeartbeat(i, j) ==
    /\ "SendHeartbeat" \in Ops /\ i # j /\ node[i].role = "leader" /\ HeartbeatOf(i, j) \notin msgs
    /\ Becomes(i, [node[i] EXCEPT !.out = @ \cup {HeartbeatOf(i, j)}], [op |-> "SendHeartbeat", i |-> i, j |-> j])
    /\ Steady

TimeoutNowOf(i, j) == [type |-> "TimeoutNow", from |-> i, to |-> j, term |-> node[i].term]

(* Hand over to a follower that has everything. *)
TransferLeader(i, j) ==
    /\ "TransferLeader" \in Ops /\ i # j /\ node[i].role = "leader" /\ node[i].match[j] = Len(node[i].log)
    /\ TimeoutNowOf(i, j) \notin msgs
    /\ Becomes(i, [node[i] EXCEPT !.out = @ \cup {TimeoutNowOf(i, j)}], [op |-> "TransferLeader", i |-> i, j |-> j])
    /\ Steady

(* A leader that heard of no majority gives up; one whose disk stands still also tells somebody to stand. *)
StepDown(i, j) ==
    /\ "StepDown" \in Ops /\ node[i].role = "leader" /\ i # j
    /\ LET n == [node[i] EXCEPT !.role = "follower", !.leader = None, !.match = Nobody]
       IN Becomes(i, IF j = None THEN n ELSE TellAll(n, {TimeoutNowOf(i, j)}), [op |-> "StepDown", i |-> i, j |-> j])
    /\ Steady

TakeReady(i) ==
    /\ ~InstantDisk /\ node[i].writing = <<>> /\ IsDirty(node[i])
    /\ Becomes(i, Take(node[i]), [op |-> "TakeReady", i |-> i])
    /\ Steady

Persisted(i) ==
    /\ node[i].writing # <<>>
    /\ Becomes(i, Written(node[i], i), [op |-> "Persisted", i |-> i])
    /\ Steady

(* A snapshot of the first k entries is put in the log's place, durably, when no entries are being written. *)
Install(i, k, from) ==
    /\ "Install" \in Ops /\ node[i].role = "follower" /\ from \in Others(i)
    /\ node[i].writing = <<>> /\ node[i].log_in = 0
    /\ k > node[i].commit /\ k <= Len(committed)
    /\ LET keep == Matches(node[i].log, k, committed[k])
           n == IF keep THEN [node[i] EXCEPT !.commit = k]
                ELSE [node[i] EXCEPT !.commit = k, !.log = SubSeq(committed, 1, k), !.durable = k,
                                     !.dlog = SubSeq(committed, 1, k)]
       IN Becomes(i, Tell(n, [type |-> "AppendReply", from |-> i, to |-> from, term |-> n.term, accepted |-> TRUE,
                              index |-> k], FALSE),
                  [op |-> "Install", i |-> i, k |-> k, from |-> from])
    /\ Steady

(* The process starts again from what its disk kept. *)
Starts(i, left, commit) ==
    /\ commit <= Len(left[3]) /\ IsPrefix(SubSeq(left[3], 1, commit), committed)
    /\ Becomes(i, [Fresh(left[1], left[2], left[3]) EXCEPT !.round = node[i].round, !.commit = commit],
               [op |-> "Crash", i |-> i, term |-> left[1], vote |-> left[2], log |-> left[3], commit |-> commit])

Crash(i) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ \E left \in Survivals(node[i]) : Starts(i, left, 0)

-----------------------------------------------------------------------------
Init ==
    /\ bug \in Bugs
    /\ LET vote == IF Deposed = {} THEN None ELSE CHOOSE i \in Deposed : TRUE
           term == IF Founded = 0 /\ Deposed = {} THEN 0 ELSE 1
       IN node = [i \in Server |-> Fresh(term, vote, [k \in 1..(Founded + (IF i \in Deposed THEN 1 ELSE 0)) |-> 1])]
    /\ msgs = {}
    /\ crashes = 0
    /\ elected = [t \in Terms |-> IF t = 1 THEN Deposed ELSE {}]
    /\ committed = <<>>
    /\ act = [op |-> "Init"]

Next ==
    \/ \E i \in Server : AskPreVotes(i)
    \/ \E i \in Server : TimeOut(i)
    \/ \E i \in Server : Doubt(i)
    \/ \E i \in Server : RecvPreVote(i)
    \/ \E i \in Server : RecvPreVoteReply(i)
    \/ \E i \in Server : RecvVote(i)
    \/ \E i \in Server : RecvVoteReply(i)
    \/ \E i \in Server : RecvAppend(i)
    \/ \E i \in Server : RecvAppendReply(i)
    \/ \E i \in Server : RecvHeartbeat(i)
    \/ \E i \in Server : RecvHeartbeatReply(i)
    \/ \E i \in Server : RecvTimeoutNow(i)
    \/ \E i \in Server : Propose(i)
    \/ \E i \in Server, j \in Server, prev \in 0..MaxLog, last \in 0..MaxLog : SendAppend(i, j, prev, last)
    \/ \E i \in Server, j \in Server : SendHeartbeat(i, j)
    \/ \E i \in Server, j \in Server : TransferLeader(i, j)
    \/ \E i \in Server, j \in Server \cup {None} : StepDown(i, j)
    \/ \E i \in Server : TakeReady(i)
    \/ \E i \in Server : Persisted(i)
    \/ \E i \in Server, j \in Server, k \in 1..MaxLog : SendSnapshot(i, j, k)
    \/ \E i \in Server, k \in 1..MaxLog : Install(i, k, node[i].leader)
    \/ \E i \in Server : Crash(i)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
TypeOK ==
    \A i \in Server :
        LET n == node[i] IN
        /\ n.role \in {"follower", "pre-candidate", "candidate", "leader"}
        /\ n.vote \in Server \cup {None} /\ n.leader \in Server \cup {None}
        /\ n.durable <= Len(n.log) /\ n.out = {}
        /\ n.writing = <<>> => n.held = {} /\ n.state_in # 1 /\ n.log_in # 1
        /\ InstantDisk => n.state_in = 0 /\ n.log_in = 0 /\ n.dlog = n.log /\ n.next = {}

ElectionSafety == \A t \in Terms : Cardinality(elected[t]) <= 1

(* Nothing is said in a term, and no vote is told, that a crash could undo. *)
VoteDurableBeforeSent ==
    \A m \in msgs :
        LET s == node[m.from] IN
        /\ m.term <= s.dterm
        /\ m.type = "VoteReply" /\ m.granted /\ m.term = s.dterm => s.dvote = m.to

(* Where two logs agree last, all before is the same. *)
LogMatching ==
    \A i, j \in Server :
        LET same == {k \in 1..Smaller(Len(node[i].log), Len(node[j].log)) : node[i].log[k] = node[j].log[k]}
        IN i # j /\ same # {} =>
               LET k == CHOOSE k \in same : \A other \in same : other <= k
               IN SubSeq(node[i].log, 1, k) = SubSeq(node[j].log, 1, k)

PrevTermValid ==
    \A i \in Server : \A k \in 1..Len(node[i].log) :
        /\ TermAt(node[i].log, k - 1) <= node[i].log[k]
        /\ node[i].log[k] <= node[i].term

(* The last committed entry is of the term of the leader that committed it. *)
LeaderCompleteness ==
    \A i \in Server :
        node[i].role = "leader" /\ node[i].term >= LastTerm(committed) => IsPrefix(committed, node[i].log)

StateMachineSafety ==
    \A i \in Server : IsPrefix(SubSeq(node[i].log, 1, node[i].commit), committed)

CommitLeLog == \A i \in Server : node[i].commit <= Len(node[i].log)

(* What was acknowledged is on that disk: at least as long as the term lasts, since in it nothing conflicts. *)
AckedDurable ==
    \A m \in msgs :
        LET s == node[m.from] IN
        m.type = "AppendReply" /\ m.accepted /\ m.term = s.term =>
            m.index <= Len(s.dlog) /\ SubSeq(s.dlog, 1, m.index) = SubSeq(s.log, 1, m.index)

AckedOnQuorum == IsQuorum({j \in Server : IsPrefix(committed, node[j].dlog)})

MatchLeLeaderLog ==
    \A i \in Server : node[i].role = "leader" => \A j \in Server : node[i].match[j] <= Len(node[i].log)

(* --- of steps --- *)
TermMonotonic == \A i \in Server : node'[i].term >= node[i].term \/ act'.op = "Crash"
CommitMonotonic == \A i \in Server : node'[i].commit >= node[i].commit \/ act'.op = "Crash"

(* All that was ever known to be committed refines one log that only grows. *)
AppendOnly == IsPrefix(committed, committed')

CommitStable ==
    \A i \in Server : act'.op # "Crash" => IsPrefix(SubSeq(node[i].log, 1, node[i].commit), node'[i].log)

LeaderAppendOnly ==
    \A i \in Server :
        node[i].role = "leader" /\ node'[i].role = "leader" => IsPrefix(node[i].log, node'[i].log)

MatchMonotonic ==
    \A i, j \in Server :
        node[i].role = "leader" /\ node'[i].role = "leader" => node'[i].match[j] >= node[i].match[j]

(* Whoever sees a higher term follows in it; only who asks, or is told to stick to its leader, changes nothing. *)
StaleLeaderSteps ==
    "m" \in DOMAIN act' =>
        LET m == act'.m IN
        m.term > node[m.to].term /\ m.type # "PreVote" /\ ~(m.type = "Vote" /\ act'.mood)
        => node'[m.to].term >= m.term /\ (node'[m.to].role # "leader" \/ node'[m.to].term > node[m.to].term)

(* Who takes office has the votes of a majority, each voter's once. *)
OfficeByMajority ==
    \A i \in Server :
        node[i].role # "leader" /\ node'[i].role = "leader" =>
            IsQuorum(node[i].yes \cup {i} \cup IF "m" \in DOMAIN act' THEN {act'.m.from} ELSE {})

(* An election disturbs nobody: a majority wanted this very one, and nobody helps against a leader it hears. *)
DisruptionBound ==
    /\ act'.op = "RecvPreVoteReply" /\ node'[act'.m.to].role = "candidate" /\ node[act'.m.to].role = "pre-candidate" =>
           IsQuorum({j \in Server : \/ j = act'.m.to
                                    \/ j \in node[act'.m.to].yes
                                    \/ j = act'.m.from /\ act'.m.granted /\ act'.m.round = node[act'.m.to].round})
    /\ act'.op = "RecvPreVote" /\ act'.mood =>
           ~\E r \in msgs' \ msgs : r.type = "PreVoteReply" /\ r.from = act'.m.to /\ r.granted
    /\ act'.op = "RecvVote" /\ act'.mood /\ ~act'.m.transfer => node'[act'.m.to].vote = node[act'.m.to].vote

-----------------------------------------------------------------------------
(* WITNESSES. *)
SeenTwoLeaders == ~\E i, j \in Server : i # j /\ node[i].role = "leader" /\ node[j].role = "leader"
SeenCommitted == Len(committed) < 1
SeenOlderCommitted == ~\E k \in 1..Len(committed) : committed[k] < LastTerm(committed)
SeenConflict ==
    ~\E i, j \in Server : \E k \in 1..Smaller(Len(node[i].log), Len(node[j].log)) : node[i].log[k] # node[j].log[k]
SeenVoteWaits == \A i \in Server : ~\E m \in node[i].held \cup node[i].next : m.type = "VoteReply" /\ m.granted
NeverInstalled == act.op # "Install"
(* A leader may count on others' disks before its own has the entry. *)
OwnDiskFirst == \A i \in Server : node[i].role = "leader" => node[i].commit <= node[i].durable
=============================================================================
