"""`make chaos`: random faults while rollouts flow, then the audit. The exit status tells whether it found anything.

    PYTHONPATH=tests python -m faults --minutes 10 --seed 7

The seed decides which faults come in which order; when exactly each strikes is up to the machine.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spanloop.infra.embedded_clickhouse import ClickHouseProcess
from spanloop.infra.real_kafka import RealCluster, RealKafka
from spanloop.infra.settings import Settings

from .audit import discrepancies
from .checked import KINDS, Checked
from .faults import BY_NAME, FAULTS, Fault
from .flow import GROUP_SIZE
from .rig import GROUPS_PER_BATCH, Rig, prepared, seed_of

ROLLOUTS = 5000
FULL_MINUTES = 10.0
# Rest between two faults, so that some strike while the last one is still being recovered from and some do not.
REST_S = (0.5, 6.0)
# How often a fault has another beside it.
BESIDE = 0.3
SHOWN = 20


def order(dice: random.Random, faults: Sequence[Fault]) -> Iterator[Fault]:
    """Faults without end: all in random order, then all in another."""
    while True:
        yield from dice.sample(faults, len(faults))


def groups_for(minutes: float) -> int:
    """Groups that flow in that time at the rate of 5,000 rollouts in ten minutes, in whole batches."""
    wanted = ROLLOUTS * minutes / FULL_MINUTES / GROUP_SIZE
    return max(1, round(wanted / GROUPS_PER_BATCH)) * GROUPS_PER_BATCH


def together(dice: random.Random, faults: Iterator[Fault]) -> list[Fault]:
    """The next fault, now and then with another beside it that touches other parts."""
    first = next(faults)
    if dice.random() >= BESIDE:
        return [first]
    second = next(faults)
    apart = not first.parts & second.parts and "broker" not in first.parts | second.parts
    return [first, second] if apart else [first]


def storm(rig: Rig, minutes: float, dice: random.Random, faults: Sequence[Fault]) -> None:
    """Faults until the time is over."""
    end = time.monotonic() + minutes * 60
    drawn = order(dice, faults)
    with ThreadPoolExecutor(2) as pool:
        while True:
            time.sleep(dice.uniform(*REST_S))
            if time.monotonic() >= end:
                return
            chosen = together(dice, drawn)
            names = " and ".join(fault.name for fault in chosen)
            rig.say(names)
            for done in [pool.submit(fault.run, rig) for fault in chosen]:
                done.result()
            rig.say(f"{names}: over; {rig.flow.done()} rollouts done")


def shown(console: Console, checked: Sequence[Checked]) -> None:
    """The audit's table, and the first discrepancies of each check."""
    table = Table("check", "looked at", *KINDS, title="audit")
    for one in checked:
        counts = [sum(d.fault == fault for d in one.wrong) for fault in KINDS]
        table.add_row(one.check, f"{one.looked_at:,}", *map(str, counts))
    console.print(table)
    for one in checked:
        for wrong in one.wrong[:SHOWN]:
            console.print(f"{wrong.check}: {wrong.fault}: {wrong.what}", markup=False, highlight=False)


def run(home: Path, *, minutes: float, dice: random.Random, nodes: int, faults: Sequence[Fault], out: Console) -> bool:
    """One chaos run in a folder; true where nothing was lost and nothing is there twice."""
    began = time.monotonic()

    def say(text: str) -> None:
        out.print(f"{time.monotonic() - began:7.1f} s  {text}", markup=False, highlight=False)

    with ExitStack() as stack:
        kafka = stack.enter_context((RealCluster if nodes == 3 else RealKafka)(home / "kafka"))
        clickhouse = stack.enter_context(ClickHouseProcess(home / "clickhouse"))
        address = Settings(
            bootstrap=kafka.bootstrap, registry_url=kafka.registry_url, prefix="chaos", home=home, replication=nodes
        )
        rate = ROLLOUTS / FULL_MINUTES / 60
        rig = stack.enter_context(Rig(kafka, prepared(address, clickhouse.url), home, rate=rate, say=say))
        rig.start()
        say("everything runs")
        rig.flow.ask(groups_for(minutes))
        storm(rig, minutes, dice, faults)
        say(f"faults are over; {rig.flow.done()} of {len(rig.fed.tasks)} rollouts done, {rig.flow.left} groups to come")
        try:
            rig.settle()
        except TimeoutError as error:  # the audit names each of them
            say(f"not settled {error}")
        say(f"{rig.flow.done()} rollouts done; the audit begins")
        checked = rig.audit()
    shown(out, checked)
    wrong = discrepancies(checked)
    say(f"{len(wrong)} discrepancies")
    return not wrong


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m faults", description="Random faults, then the audit.")
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES)
    parser.add_argument("--seed", type=int, help="default: by chance")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="brokers")
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME), help="faults to take; default: all")
    parser.add_argument("--home", type=Path, help="folder for logs and data; default: one that goes where all is well")
    chosen = parser.parse_args()
    out = Console(width=160)
    logging.getLogger("spanloop").setLevel(
        logging.ERROR
    )  # of this process: its clients tell of every broker that is away
    seed = seed_of(chosen.seed)
    faults = [f for f in FAULTS if f.nodes <= chosen.nodes and (not chosen.only or f.name in chosen.only)]
    out.print(f"seed {seed}, {chosen.minutes:g} minutes, {groups_for(chosen.minutes) * GROUP_SIZE} rollouts")
    home = (chosen.home or Path(tempfile.mkdtemp(prefix="chaos-"))).resolve()
    good = run(home, minutes=chosen.minutes, dice=random.Random(seed), nodes=chosen.nodes, faults=faults, out=out)
    if not good:
        sys.exit(f"logs and data: {home}")
    if chosen.home is None:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
