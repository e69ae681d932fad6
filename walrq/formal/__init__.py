"""The executable specification's tools: runs TLC over `spec/*.tla`, and reads what it says as Python values.

    values      TLA+ values as Python values, both directions
    output      what TLC prints, as records; a behaviour's states
    graph       state graphs and simulated behaviours that TLC wrote to files
    tools       where Java, the TLA+ tools and our modules are
    tlc         one run of TLC as a child process
    models      spec/models.toml: which module with which constants must give which verdict
    checking    runs models and compares
    story       a counterexample for people
    lines       recorded runs of consensus as steps of spec/Raft.tla
    validating  lets TLC decide whether they are behaviours of it

Trio drives the child processes; everything else here is a function of its arguments. Nothing of walrq that ships to
users at run time imports this package: only the command line does, and tests. See docs/formal.md.
"""
