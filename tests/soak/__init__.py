"""An hour of random use with kills: writers, operators and a Dagster daemon, while processes are killed and restarted.

    world            what all parts share: the folder, processes, counts, problems
    store_in_front   the proxy in front of the store, a process of its own: faults, and older times of objects
    lake             requests to the sandbox, and what is live in a repository
    writers          random operations on the repositories, and reads of what is live
    commands         lakegc's commands, run again until they end
    operators        what people do with them, in which order
    daemon           Dagster's daemon with the schedule and all sensors, for one repository
    disturbances     what is killed, interrupted, delayed and cut
    final_check      the last mark and sweep, and the comparison of the store with what is live

Run it with `python -m tests.soak --minutes 60 --seed 1`.
"""
