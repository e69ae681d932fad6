------------------------------ MODULE RaftTrace ------------------------------
(***************************************************************************)
(* Is what happened a behaviour of Raft? Each line of a trace names a step  *)
(* and what the server was afterwards; a trace is one if the actions of     *)
(* Raft, as they are, can follow it line by line. TraceData is made from    *)
(* the traces by walrq/formal/lines.py; Alive is replaced by Kept, so that  *)
(* no message is forgotten before its last line. Where a line of a trace is *)
(* Loose, what could have been is shown instead of compared.                *)
(***************************************************************************)
EXTENDS Raft, TraceData

VARIABLES trace, line

Line == Traces[trace][line]

Kept(m, all) == m \notin Line.gone

Stutters == UNCHANGED <<node, crashes, elected, committed, act, bug>> /\ msgs' = msgs \ Line.gone
(* What says nothing but its sender's term. *)
Hello(m) ==
    /\ m.term <= node[m.from].dterm
    /\ UNCHANGED <<node, crashes, elected, committed, act, bug>>
    /\ msgs' = (msgs \cup {m}) \ Line.gone

Send(m) ==
    IF m \in msgs THEN Stutters
    ELSE CASE m.type = "Append" /\ Line.snapshot ->
                 SnapshotOf(m.from, m.to, m.prev) = m /\ SendSnapshot(m.from, m.to, m.prev)
           [] m.type = "Append" ->
                 LET last == m.prev + Len(m.entries) IN
                 /\ last <= Len(node[m.from].log)
                 /\ AppendOf(m.from, m.to, m.prev, last) = m
                 /\ SendAppend(m.from, m.to, m.prev, last)
           [] m.type = "Heartbeat" -> HeartbeatOf(m.from, m.to) = m /\ SendHeartbeat(m.from, m.to)
           [] m.type = "TimeoutNow" -> TransferLeader(m.from, m.to)
           [] m.type = "HeartbeatReply" /\ Line.hello -> Hello(m)
           (* The log got there before the last part of the snapshot. *)
           [] m.type = "AppendReply" /\ Line.snapshot ->
                 m.accepted /\ m.index <= Smaller(node[m.from].commit, node[m.from].durable) /\ Hello(m)
           [] OTHER -> FALSE

Receives(m) ==
    /\ m \in msgs
    /\ \E mood \in IF m.type \in {"PreVote", "Vote"} THEN Moods(node[m.to], m) ELSE Line.moods :
           Received(m, mood, "Recv")

Step ==
    LET i == Line.i IN
    CASE Line.event = "Nothing" -> Stutters
      [] Line.event = "Send" -> Send(Line.m)
      [] Line.event = "Recv" -> Receives(Line.m)
      [] Line.event = "Start" ->
            \E left \in Survivals(node[i]) \cup
                        {<<node[i].dterm, node[i].dvote, SubSeq(committed, 1, k)>> :
                         k \in {k \in {Line.state.commit} : k <= Len(committed) /\ k > Len(node[i].dlog)}} :
                Starts(i, left, Line.state.commit) /\ UNCHANGED crashes
      [] Line.event = "AskPreVotes" -> AskPreVotes(i)
      [] Line.event = "Campaign" -> TimeOut(i)
      [] Line.event = "Doubt" -> IF node[i].leader = None THEN Stutters ELSE Doubt(i)
      [] Line.event = "StepDown" -> StepDown(i, Line.to)
      [] Line.event = "Propose" -> Propose(i)
      [] Line.event = "TakeReady" -> TakeReady(i)
      [] Line.event = "Persisted" -> Persisted(i)
      [] Line.event = "Installed" -> Install(i, Line.state.commit, Line.to)

(* The log as a line tells it: runs of equal term from some entry on. *)
SameLog(log, s) ==
    /\ Len(log) = s.index /\ LastTerm(log) = s.last_term
    /\ \A r \in DOMAIN s.runs : LET first == s.runs[r][1] IN
           /\ first <= Len(log) /\ log[first] = s.runs[r][2]
           /\ r > 1 => log[first - 1] = s.runs[r - 1][2]

Same(n, s) ==
    /\ n.role = s.role /\ n.term = s.term /\ n.vote = s.vote /\ n.leader = s.leader
    /\ n.commit = s.commit /\ n.durable = s.durable /\ n.dterm = s.durable_term /\ n.dvote = s.durable_vote
    /\ n.yes = s.votes
    /\ \A j \in DOMAIN s.match : n.match[j] = s.match[j]
    /\ SameLog(n.log, s)

Shown(n) ==
    [role |-> n.role, term |-> n.term, vote |-> n.vote, leader |-> n.leader, commit |-> n.commit,
     durable |-> n.durable, durable_term |-> n.dterm, durable_vote |-> n.dvote, votes |-> n.yes,
     index |-> Len(n.log), last_term |-> LastTerm(n.log), match |-> IF n.role = "leader" THEN n.match ELSE <<>>]

TraceInit == Init /\ trace \in DOMAIN Traces /\ line = 1

TraceNext ==
    /\ line <= Len(Traces[trace])
    /\ Step
    /\ IF line = Loose[trace] THEN PrintT(<<"allowed", trace, Shown(node'[Line.i])>>) ELSE Same(node'[Line.i], Line.state)
    /\ line' = line + 1
    /\ trace' = trace

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, line>>

(* How far each trace could be followed; always TRUE. *)
Followed ==
    \/ line <= TLCGet(trace)
    \/ TLCSet(trace, line) /\ PrintT(<<"followed", trace, line>>)
TraceView == <<node, msgs, committed, trace, line>>
=============================================================================
