"""The model agrees with the code: its rules are the code's, and its runs end like real ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, combinations
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from lakegc_assets.rules import keep_reasons, path_probes
from lakegc_assets.rules.keep_reasons import KEEP_REASONS
from lakegc_assets.rules.path_probes import SizeSet
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.record import CHAIN
from spark_resources.model import SERVED
from spark_resources.sstable import Entry as StoredEntry
from tests.exhaustive import decisions
from tests.exhaustive.collector import Collector
from tests.exhaustive.explore import FAULTS, Exploration, Scope
from tests.exhaustive.faulty_server import DIFF, LIST, STAT
from tests.exhaustive.operations import successors
from tests.exhaustive.replay import SandboxWorld, difference, random_run_of, random_runs, real_run, varied_runs
from tests.exhaustive.scenarios import SCENARIOS
from tests.exhaustive.world import (
    LATELY,
    LONG_AGO,
    OLD,
    OURS,
    PATHS,
    SIZES,
    Branch,
    Commit,
    Entry,
    Repository,
    Universe,
    World,
    addresses,
    bit,
)

MERGES = 25
FEW_RUNS = 20
RUNS = int(os.environ.get("LAKEGC_MODEL_REPLAYS", "8"))


@pytest.mark.timeout(0)  # as long as the number of runs takes
def test_runs_of_the_model_end_like_real_ones_in_the_sandbox(tmp_path: Path) -> None:
    """The same objects expire, and the same ones are deleted, with the same operations at the same moments and the same
    faults in the same requests. By default, there are a few runs, each with a different kind of fault."""
    runs = varied_runs(RUNS) if RUNS <= FEW_RUNS else random_runs(0, RUNS)
    different, whole = [], 0
    for number, run in enumerate(runs):
        (folder := tmp_path / f"{number}").mkdir()
        real = real_run(run, folder)
        if not real.left:
            whole += 1
            different += [f"{run}: {why}" for why in [difference(run, real)] if why]

    assert different == []
    assert whole > RUNS // 2


def test_runs_of_the_model_include_every_kind_of_fault_that_can_be_replayed() -> None:
    """The exceptions are lost responses and delays, which need a store that responds late, and altered or forged
    files."""
    kinds = {fault.kind for run in varied_runs(100) for fault in run.faults}

    assert {fault for fault, _ in kinds} == set(FAULTS) - {"lost answer", "delay", "altered mark", "forged base"}
    assert {("404", DIFF), ("404", LIST), ("404", STAT), ("swallowed error", DIFF), ("swallowed error", LIST)} <= kinds


def test_an_undisturbed_mark_and_sweep_send_the_requests_that_the_model_predicts(tmp_path: Path) -> None:
    """The numbers of lists, diffs, listings of branches and lookups of each path agree. Otherwise, a fault would not
    hit the same request."""
    scenario = SCENARIOS["garbage beside another repository"]
    run = random_run_of(scenario, Random(0), operations=0, sweep=True)

    real = real_run(run, tmp_path)

    assert difference(run, real) == ""
    assert len(run.asked) == 2
    assert real.asked[:2] == run.asked  # the closing re-verification follows


PLACES = [None, Entry(0, 0), Entry(1, 0), Entry(2, 2)]  # the second and third have the same content


def test_the_model_merges_branches_as_the_server_does(tmp_path: Path) -> None:
    """The merge has the same paths with the same addresses, whichever sides changed them."""
    rng, universe = Random(3), Universe(contents=OBJECTS)
    for number in range(MERGES):
        base = rng.choice(PLACES), rng.choice(PLACES)
        mine, other = (tuple(changed(before, rng.choice(PLACES)) for before in base) for _ in range(2))
        root = universe.commit(Commit((), base, LONG_AGO))
        heads = [universe.commit(Commit((root,), tree, LATELY)) for tree in (mine, other)]
        main, dev = (Branch(head, (None, None)) for head in heads)
        world = World((OLD, OLD, OLD), (Repository((main, dev), frozenset((root, *heads))),))
        results = [
            successor
            for successor in successors(universe, universe.world(world), ["merge"])
            if successor.operation.arguments[1]
        ]
        if results:
            after = universe.worlds[results[0].world]
            with Sandbox(tmp_path / f"{number}") as sandbox:
                there = SandboxWorld(sandbox, universe, world)
                there.do(results[0].operation, after)

                assert served(there) == tree_of(universe, after), (base, mine, other)


def changed(before: Entry | None, entry: Entry | None) -> Entry | None:
    """The entry after a commit, which drops what has the same content as before."""
    return before if before is not None and entry is not None and before.content == entry.content else entry


def tree_of(universe: Universe, world: World) -> list[str | None]:
    main = world.repositories[OURS].branches[0]
    assert main is not None
    return [None if entry is None else decisions.key(entry.address) for entry in universe.commits[main.head].tree]


def served(there: SandboxWorld) -> list[str | None]:
    listed, _ = there.lake.listing("main")
    addresses = {entry.path.decode(): entry.address for entry in listed if isinstance(entry, StoredEntry)}
    return [addresses.get(path) for path in PATHS]


OBJECTS = (0, 1, 2)  # with contents 0, 1 and 2, two of which have equal sizes
TREES = ((Entry(-1, 0), None), (None, Entry(-1, 2)), (Entry(-1, 1), Entry(-1, 2)), (None, None))


def subsets() -> Sequence[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(OBJECTS, size) for size in range(len(OBJECTS) + 1)))


def test_the_model_probes_exactly_the_paths_that_the_code_probes() -> None:
    universe = Universe(contents=OBJECTS)
    for tree in TREES:
        commit = universe.commit(Commit((), tree, 0))
        entries = [(str(path), SIZES[entry.content]) for path, entry in enumerate(tree) if entry is not None]
        paths, entry_sizes = (
            pa.array([entry[position] for entry in entries], kind)
            for position, kind in ((0, pa.string()), (1, pa.int64()))
        )
        for objects in subsets():
            sizes = decisions.sizes_of(universe, sum(map(bit, objects)))
            wanted = SizeSet(pa.array([SIZES[universe.contents[address]] for address in objects], pa.int64()))

            batches = path_probes.paths_to_probe(paths, entry_sizes, "lake", ["main"], wanted)

            probes = [row for batch in batches for row in batch.to_pylist()]
            assert {int(row["path"]) for row in probes} == decisions.paths_to_probe(universe, commit, sizes)
            assert {row["size"] for row in probes} == decisions.probed_sizes(universe, [commit], sizes)


def test_after_the_probes_the_model_keeps_exactly_the_objects_that_the_code_keeps() -> None:
    """A served object is kept. If a probe has no clear result, all objects of its size are kept."""
    universe = Universe(contents=OBJECTS)
    everything = sum(map(bit, OBJECTS))
    objects = pa.table(
        [[decisions.key(address) for address in OBJECTS], [SIZES[address] for address in OBJECTS]], ["address", "size"]
    )
    for served in (None, *OBJECTS):
        for unclear in (None, *set(SIZES)):
            probed = [("lake", "main", "p", 1, None if served is None else decisions.key(served), None)]
            probed += [("lake", "main", "q", unclear, None, "no answer")] if unclear is not None else []
            sizes = frozenset({unclear} - {None})
            expected = (bit(served) if served is not None else 0) | decisions.of_sizes(universe, everything, sizes)

            results = pa.Table.from_pylist([dict(zip(SERVED.names, row, strict=True)) for row in probed], SERVED)
            rule = keep_reasons.served("served", keep_reasons.inconclusive_sizes(results))
            reasons = rule(objects, {"served": results.filter(results["address"].is_valid())})

            kept_addresses = objects.filter(reasons.is_valid())["address"].to_pylist()
            assert set(kept_addresses) == {decisions.key(address) for address in addresses(expected)}


def test_the_model_reads_in_the_same_order_as_the_code() -> None:
    """The order is that of `CHAIN`, followed by the reasons to keep in their order."""
    assert CHAIN[1:] == ("uncommitted_addresses", "retained_commits", "committed_addresses", "expired_set")
    assert [reason.name for reason in KEEP_REASONS] == ["other_repository", "branch", "meanwhile", "hold"]
    steps = [step.name for step in program("another repository stages it").steps]
    order = [
        next(number for number, name in enumerate(steps) if words in name)
        for words in ("lists slice", "first reading", "dump of all commits", "tables of the other", "compares",
                      "path probes, pass 1", "path probes, pass 2", "at the end", "decides", "is approved",
                      "re-verification begins", "the watch", "is looked up", "is deleted")
    ]  # fmt: skip
    assert order == sorted(order)


def program(name: str) -> Collector:
    return Exploration(SCENARIOS[name], Scope(0)).collector
