"""An exhaustive model: every order of events in a small world, with lakegc's own decisions.

In the order of reading:

world        what a server and its store hold, as immutable values; what is live in truth
operations   what writers may do, at any moment
server       what each request of lakegc is answered, and how an answer can be wrong
decisions    the rules of `lakegc_assets/rules`, applied to the model's values, each case computed once
memory       what a mark or sweep knows while it runs
collector    its steps: requests and effects, in the order of the code
safeguards   what can be taken away, and what is then lost
scenarios    the small worlds that an exploration starts in
explore      the search, and its command
traces       a loss as a short table; the tables of `docs/safety.md`
replay       the same events in the sandbox, with a real mark or sweep
"""
