"""Compiled programs as text: what each device sends and receives, and what goes between it and its memory, loops multiplied out."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

Trips = Callable[[str], float | None]  # name of a loop -> how often it runs, if that is known
KINDS = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_BITS = {"pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "bf16": 16, "f16": 16}
_BITS |= {"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128, "f4e2m1fn": 4}
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_NAME, _CALLED = re.compile(r'op_name="([^"]*)"'), re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_KNOWN = re.compile(r'known_trip_count[":{]+n[":]+(\d+)')
_CHAIN = re.compile(r'chain_id="([^"]*)"')
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"}
_FREE |= {"partition-id", "replica-id", "copy-done", "opt-barrier", "add-dependency", "iota"}
_PARTS = {"dynamic-slice", "gather", "slice"}  # which read as much of their first operand as they give


class Array(NamedTuple):
    """An array of a program. `near`: whether it lies beside the cores, and not in the device's memory."""

    bytes: float
    near: bool


class Instruction(NamedTuple):
    """A line of a computation.

    Attributes:
      name: of what it gives.
      arrays: that it gives.
      does: its operation.
      takes: names of its operands.
      rest: its attributes, as text.
      root: whether it is what the computation gives.
    """

    name: str
    arrays: tuple[Array, ...]
    does: str
    takes: tuple[str, ...]
    rest: str
    root: bool


class Collective(NamedTuple):
    """What devices exchange in one call of a program. `bytes`: on each device, of all of this kind."""

    kind: str
    number: float
    bytes: float


class Program:
    """A program's text, read."""

    def __init__(self, text: str):
        """
        Args:
          text: `compiled.as_text()`.
        """
        self._computations: dict[str, dict[str, Instruction]] = {}
        self._entry = ""
        here: dict[str, Instruction] | None = None
        for line in text.splitlines():
            if here is None:
                if head := _HEAD.match(line):
                    here = self._computations.setdefault(head[1], {})
                    self._entry = head[1] if line.startswith("ENTRY") else self._entry
            elif line.startswith("}"):
                here = None
            elif found := _instruction(line):
                here[found.name] = found

    def collectives(self, trips: Trips) -> list[Collective]:
        """By kind. A loop whose number of steps is nowhere counts once: that of the rounds.

        Args:
          trips: of loops that have a name.
        """
        number, size = defaultdict(float), defaultdict(float)
        chains: dict[tuple[str, str], tuple[float, float]] = {}  # of exchanges that are cut in parts and spread over a loop
        for times, where, one in self._run(trips):
            kind = one.does.removesuffix("-start")
            if kind not in KINDS:
                continue
            taken = sum(self._operands(where, one)) or 0.0
            given = sum(array.bytes for array in one.arrays)
            whole = max(taken, given - taken if one.does.endswith("-start") else given)
            if chain := _CHAIN.search(one.rest):
                chains[kind, chain[1]] = min(chains.get((kind, chain[1]), (times, whole)), (times, whole))
                continue
            number[kind] += times
            size[kind] += times * whole
        for (kind, _), (times, whole) in chains.items():
            number[kind] += times
            size[kind] += times * whole
        return [Collective(kind, number[kind], size[kind]) for kind in sorted(number)]

    def traffic(self, trips: Trips) -> float:
        """Bytes that a device reads from its memory and writes to it in one call: what operations and fusions take and give, of
        slices the part that is taken. What the compiler keeps beside the cores is not counted."""
        total = 0.0
        for times, where, one in self._run(trips, fused=False):
            if one.does in _FREE or one.does.endswith("-done"):
                continue
            total += times * self._moved(where, one)
        return total

    def _moved(self, where: str, one: Instruction) -> float:
        far = lambda arrays: sum(array.bytes for array in arrays if not array.near)
        taken = [self._computations[where].get(name) for name in one.takes]
        given = far(one.arrays[:1] if one.does in ("copy-start", "async-start") else one.arrays)
        if one.does.removesuffix("-start") in KINDS and one.does.endswith("-start"):  # they give what they take, too
            given -= sum(far(operand.arrays) for operand in taken if operand)
        if one.does in _PARTS:
            return 2 * given
        if one.does in ("dynamic-update-slice", "scatter"):
            update = taken[1 if one.does == "dynamic-update-slice" else -1]
            return 2 * far(update.arrays) if update else 0.0
        inside = self._inside(one)
        root = next((line for line in inside.values() if line.root), None)
        if root is not None:
            ends = [inside.get(name) for name in root.takes] if root.does == "tuple" else [root]
            arrays = zip(one.arrays, ends, strict=True) if len(ends) == len(one.arrays) else ()
            given = sum(
                (0.0 if array.near else min(array.bytes, self._written(inside, end)) for array, end in arrays),
                0.0 if arrays else given,
            )
        read = 0.0
        for place, operand in enumerate(taken):
            if operand is None or operand.does == "constant":
                continue
            read += min(far(operand.arrays), self._taken(inside, place))
        return given + read

    def _inside(self, one: Instruction) -> dict[str, Instruction]:
        return self._computations.get(_called(one).get("calls", ""), {})

    def _taken(self, inside: dict[str, Instruction], place: int) -> float:
        """At most so many bytes of operand `place` a fusion reads: parts of it, if that is all that is done with it."""
        here = [one for one in inside.values() if one.does == "parameter" and one.rest.startswith(f"{place})")]
        return self._read(inside, here[0].name) if here else math.inf

    def _read(self, inside: dict[str, Instruction], name: str) -> float:
        """At most so many bytes of what a line of a fusion gives the others read; fusions lie in fusions."""
        users = [one for one in inside.values() if name in one.takes]
        total = 0.0 if users else math.inf
        for one in users:
            first = one.takes[0] == name and name not in one.takes[1:]
            if one.does in _PARTS and first:
                total += sum(array.bytes for array in one.arrays)
            elif one.does == "bitcast":
                total += self._read(inside, one.name)
            elif one.does == "fusion":
                further = self._inside(one)
                total += sum(self._taken(further, place) for place, taken in enumerate(one.takes) if taken == name)
            elif one.does != "dynamic-update-slice" or not first:
                return math.inf
        return total

    def _written(self, inside: dict[str, Instruction], one: Instruction | None) -> float:
        """At most so many bytes of what a line gives are new: of an array that is changed in place, the part that is."""
        if one is not None and one.does == "dynamic-update-slice":
            update = inside.get(one.takes[1])
            return sum(array.bytes for array in update.arrays) if update else math.inf
        if one is not None and one.does == "bitcast":
            return self._written(inside, inside.get(one.takes[0]))
        if one is not None and one.does == "fusion":
            further = self._inside(one)
            return self._written(further, next((line for line in further.values() if line.root), None))
        return math.inf

    def _operands(self, where: str, one: Instruction) -> Iterator[float]:
        for name in one.takes:
            operand = self._computations[where].get(name)
            yield sum(array.bytes for array in operand.arrays) if operand else 0.0

    def _run(self, trips: Trips, fused: bool = True) -> Iterator[tuple[float, str, Instruction]]:
        """Every line that runs: how often, in which computation. Branches run all, or but for what is inside of fusions in turn."""
        waiting = [(1.0, self._entry)]
        while waiting:
            times, where = waiting.pop()
            for one in self._computations.get(where, {}).values():
                yield times, where, one
                called = _called(one)
                if one.does == "while":
                    waiting.append((times * self._steps(one, called, trips), called["body"]))
                elif one.does == "conditional":
                    branches = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
                    listed = (
                        branches[1].split(",") if branches else re.findall(r"(?:true|false)_computation=(%?[\w.\-]+)", one.rest)
                    )
                    waiting += [(times if fused else times / len(listed), name.strip().removeprefix("%")) for name in listed]
                elif one.does == "call" or one.does.startswith("async"):
                    waiting += [(times, name) for key, name in called.items() if key in ("calls", "to_apply")]
                elif one.does == "fusion" and fused:
                    waiting.append((times, called.get("calls", "")))

    def _steps(self, one: Instruction, called: dict[str, str], trips: Trips) -> float:
        if known := _KNOWN.search(one.rest):
            return float(known[1])
        name = _NAME.search(one.rest)
        named = trips(name[1]) if name else None
        if named is not None:
            return named
        limits = set(self._limits(called["condition"]))
        return float(limits.pop()) if len(limits) == 1 else 1.0

    def _limits(self, where: str) -> Iterator[int]:
        """The whole numbers of a loop's condition: of a loop of constant length its steps alone."""
        for one in self._computations.get(where, {}).values():
            if one.does == "constant" and (found := re.match(r"(\d+)", one.rest)):
                yield int(found[1])
            elif one.does == "fusion":
                yield from self._limits(_called(one).get("calls", ""))


def _called(one: Instruction) -> dict[str, str]:
    return dict(_CALLED.findall(one.rest))


def _instruction(line: str) -> Instruction | None:
    head = _LINE.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    ends = _closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:ends], rest[ends:].lstrip()
    does, bracket, inside = rest.partition("(")
    if not bracket:
        return None
    end = _closing("(" + inside) - 1
    takes = tuple(re.findall(r"%([\w.\-]+)", inside[:end]))
    rest = inside if does in ("constant", "parameter") else inside[end + 1 :]
    return Instruction(head[2], tuple(_arrays(shape)), does.strip(), takes, rest, bool(head[1]))


def _closing(text: str) -> int:
    """Place of the bracket that closes the first one."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth:
            return place
    return len(text)


def _arrays(shape: str) -> Iterator[Array]:
    for kind, axes, layout in _ARRAY.findall(shape):
        bits = _BITS.get(kind, 8 if kind.startswith("f8") else 0)
        size = math.prod(int(axis.lstrip("<=")) for axis in axes.split(",") if axis)
        yield Array(bits * size / 8, bool(re.search(r"S\([1-9]\)", layout)))
