"""An exhaustive model: every order of events in a small world, with lakegc's own decisions.

In the order of reading:

world        what a server and its store hold, as immutable values; what is live in truth
scenarios    the small worlds that an exploration starts in
operations   what writers may do, at any moment
server       what each request of lakegc is answered, and how an answer can be wrong
decisions    the rules of `lakegc_assets/rules`, applied to the model's values, each case computed once
memory       what a mark or sweep knows while it runs
program      its steps, each a request or an effect; then staged_readings, commit_readings, reasons_to_keep, marking
collector    the whole of a mark, its approval and its sweep
invisible    which deletes lose something, and which losses no collector can see
safeguards   what can be taken away, and what is then lost
explore      the search, and its command
play         one run with given events
traces       a loss as a short table; the tables of `docs/safety.md`
replay       the same events in the sandbox, with a real mark or sweep
"""
