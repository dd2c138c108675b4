"""Counts collectives and memory traffic in the text of compiled programs, with loops multiplied out.

Where the text does not have a loop's trip count, it follows from the loop's name: local training has
a step for each minibatch of a client.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedjax_core.algorithm import ClientSettings
from fedjax_core.engine.flop_count import Trips
from fedjax_core.training.batching import Loop, parse_loop

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
    """An array of a program. `is_on_chip`: whether it is in on-chip memory, not in the device's."""

    bytes: float
    is_on_chip: bool


class Instruction(NamedTuple):
    """A line of a computation.

    Attributes:
      operands: names of its operands.
      is_root: whether it is what the computation gives.
    """

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @property
    def bytes(self) -> float:
        """Bytes of its result."""
        return sum(array.bytes for array in self.arrays)


class Collective(NamedTuple):
    """The exchanges of a kind in one call of a program. `bytes`: on each device, of all of them."""

    kind: str
    number: float
    bytes: float


class Program:
    """The parsed text of a program."""

    def __init__(self, text: str):
        """
        Args:
          text: `compiled.as_text()`.
        """
        self._computations: dict[str, dict[str, Instruction]] = {}
        self._entry = ""
        computation: dict[str, Instruction] | None = None
        for line in text.splitlines():
            if computation is None:
                if head := _HEAD.match(line):
                    computation = self._computations.setdefault(head[1], {})
                    self._entry = head[1] if line.startswith("ENTRY") else self._entry
            elif line.startswith("}"):
                computation = None
            elif instruction := _parse_instruction(line):
                computation[instruction.name] = instruction

    def count_collectives(self, trips: Trips) -> list[Collective]:
        """Counts collectives by kind. A loop of unknown trip count, that of the rounds, counts once."""
        number, size = defaultdict(float), defaultdict(float)
        chains: dict[tuple[str, str], tuple[float, float]] = {}  # of exchanges that are cut in parts and spread over a loop
        for times, computation, line in self._executed_instructions(trips):
            kind = line.opcode.removesuffix("-start")
            if kind not in KINDS:
                continue
            taken = sum(self._operand_bytes(computation, line))
            whole = max(taken, line.bytes - taken if line.opcode.endswith("-start") else line.bytes)
            if chain := _CHAIN.search(line.attributes):
                chains[kind, chain[1]] = min(chains.get((kind, chain[1]), (times, whole)), (times, whole))
                continue
            number[kind] += times
            size[kind] += times * whole
        for (kind, _), (times, whole) in chains.items():
            number[kind] += times
            size[kind] += times * whole
        return [Collective(kind, number[kind], size[kind]) for kind in sorted(number)]

    def count_traffic(self, trips: Trips) -> float:
        """Counts the bytes that a device reads from and writes to its memory in one call.

        These are operands and results of operations and fusions, of slices the part that is read.
        What the compiler keeps on the chip is not counted.
        """
        total = 0.0
        for times, computation, line in self._executed_instructions(trips, fused=False):
            if line.opcode in _FREE or line.opcode.endswith("-done"):
                continue
            total += times * self._bytes_moved(computation, line)
        return total

    def _bytes_moved(self, computation: str, instruction: Instruction) -> float:
        device_bytes = lambda arrays: sum(array.bytes for array in arrays if not array.is_on_chip)
        operands = [self._computations[computation].get(name) for name in instruction.operands]
        opcode = instruction.opcode
        written = device_bytes(instruction.arrays[:1] if opcode in ("copy-start", "async-start") else instruction.arrays)
        if opcode.endswith("-start") and opcode.removesuffix("-start") in KINDS:  # their results have the operands, too
            written -= sum(device_bytes(operand.arrays) for operand in operands if operand)
        if opcode in _PARTS:
            return 2 * written
        if opcode in ("dynamic-update-slice", "scatter"):
            update = operands[1 if opcode == "dynamic-update-slice" else -1]
            return 2 * device_bytes(update.arrays) if update else 0.0
        fused = self._fused_computation(instruction)
        root = next((line for line in fused.values() if line.is_root), None)
        if root is not None:
            ends = [fused.get(name) for name in root.operands] if root.opcode == "tuple" else [root]
            arrays = zip(instruction.arrays, ends, strict=True) if len(ends) == len(instruction.arrays) else ()
            written = sum(
                (0.0 if array.is_on_chip else min(array.bytes, self._bytes_written(fused, end)) for array, end in arrays),
                0.0 if arrays else written,
            )
        read = 0.0
        for place, operand in enumerate(operands):
            if operand is None or operand.opcode == "constant":
                continue
            read += min(device_bytes(operand.arrays), self._bytes_read_of_operand(fused, place))
        return written + read

    def _fused_computation(self, line: Instruction) -> dict[str, Instruction]:
        return self._computations.get(_called_computations(line).get("calls", ""), {})

    def _bytes_read_of_operand(self, lines: dict[str, Instruction], place: int) -> float:
        """Returns an upper bound on the bytes that a fusion reads of operand `place`: only parts if it is only sliced."""
        parameters = [line for line in lines.values() if line.opcode == "parameter" and line.attributes.startswith(f"{place})")]
        return self._bytes_read(lines, parameters[0].name) if parameters else math.inf

    def _bytes_read(self, lines: dict[str, Instruction], name: str) -> float:
        """Returns an upper bound on the bytes read of a line's result in a fusion; fusions nest."""
        users = [line for line in lines.values() if name in line.operands]
        total = 0.0 if users else math.inf
        for line in users:
            first = line.operands[0] == name and name not in line.operands[1:]
            if line.opcode in _PARTS and first:
                total += line.bytes
            elif line.opcode == "bitcast":
                total += self._bytes_read(lines, line.name)
            elif line.opcode == "fusion":
                inner = self._fused_computation(line)
                total += sum(
                    self._bytes_read_of_operand(inner, place) for place, taken in enumerate(line.operands) if taken == name
                )
            elif line.opcode != "dynamic-update-slice" or not first:
                return math.inf
        return total

    def _bytes_written(self, lines: dict[str, Instruction], instruction: Instruction | None) -> float:
        """Returns an upper bound on the new bytes of a line's result: of an array changed in place, the changed part."""
        if instruction is not None and instruction.opcode == "dynamic-update-slice":
            update = lines.get(instruction.operands[1])
            return update.bytes if update else math.inf
        if instruction is not None and instruction.opcode == "bitcast":
            return self._bytes_written(lines, lines.get(instruction.operands[0]))
        if instruction is not None and instruction.opcode == "fusion":
            inner = self._fused_computation(instruction)
            return self._bytes_written(inner, next((line for line in inner.values() if line.is_root), None))
        return math.inf

    def _operand_bytes(self, computation: str, line: Instruction) -> Iterator[float]:
        for name in line.operands:
            operand = self._computations[computation].get(name)
            yield operand.bytes if operand else 0.0

    def _executed_instructions(self, trips: Trips, fused: bool = True) -> Iterator[tuple[float, str, Instruction]]:
        """Yields every executed line, with how often and in which computation. All branches count, in parts unless `fused`."""
        waiting = [(1.0, self._entry)]
        while waiting:
            times, computation = waiting.pop()
            for line in self._computations.get(computation, {}).values():
                yield times, computation, line
                called = _called_computations(line)
                if line.opcode == "while":
                    waiting.append((times * self._trip_count(line, called, trips), called["body"]))
                elif line.opcode == "conditional":
                    branches = re.search(r"branch_computations=\{([^}]*)\}", line.attributes)
                    listed = (
                        branches[1].split(",")
                        if branches
                        else re.findall(r"(?:true|false)_computation=(%?[\w.\-]+)", line.attributes)
                    )
                    waiting += [(times if fused else times / len(listed), name.strip().removeprefix("%")) for name in listed]
                elif line.opcode == "call" or line.opcode.startswith("async"):
                    waiting += [(times, name) for key, name in called.items() if key in ("calls", "to_apply")]
                elif line.opcode == "fusion" and fused:
                    waiting.append((times, called.get("calls", "")))

    def _trip_count(self, line: Instruction, called: dict[str, str], trips: Trips) -> float:
        if known := _KNOWN.search(line.attributes):
            return float(known[1])
        name = _NAME.search(line.attributes)
        named = trips(name[1]) if name else None
        if named is not None:
            return named
        limits = set(self._condition_constants(called["condition"]))
        return float(limits.pop()) if len(limits) == 1 else 1.0

    def _condition_constants(self, computation: str) -> Iterator[int]:
        """Yields the ints of a loop's condition; a loop of constant length has its trip count alone."""
        for line in self._computations.get(computation, {}).values():
            if line.opcode == "constant" and (match := re.match(r"(\d+)", line.attributes)):
                yield int(match[1])
            elif line.opcode == "fusion":
                yield from self._condition_constants(_called_computations(line).get("calls", ""))


def _called_computations(line: Instruction) -> dict[str, str]:
    return dict(_CALLED.findall(line.attributes))


def _parse_instruction(line: str) -> Instruction | None:
    head = _LINE.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    ends = _find_closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:ends], rest[ends:].lstrip()
    opcode, bracket, inside = rest.partition("(")
    if not bracket:
        return None
    end = _find_closing("(" + inside) - 1
    operands = tuple(re.findall(r"%([\w.\-]+)", inside[:end]))
    attributes = inside if opcode in ("constant", "parameter") else inside[end + 1 :]
    return Instruction(head[2], tuple(_parse_arrays(shape)), opcode.strip(), operands, attributes, bool(head[1]))


def _find_closing(text: str) -> int:
    """Returns the index of the bracket that closes the first one."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth:
            return place
    return len(text)


def _parse_arrays(shape: str) -> Iterator[Array]:
    for kind, axes, layout in _ARRAY.findall(shape):
        bits = _BITS.get(kind, 8 if kind.startswith("f8") else 0)
        size = math.prod(int(axis.lstrip("<=")) for axis in axes.split(",") if axis)
        yield Array(bits * size / 8, bool(re.search(r"S\([1-9]\)", layout)))


class ClientLoops(NamedTuple):
    """Trip counts of loops over minibatches, from the clients' numbers of examples.

    Attributes:
      examples: [N] training examples of each client.
      active_share: share of a program's client slots that are active, on average. An absent client
        takes no step.
      settings: of local training by client, `ClientSettings`; None: there are none.
      drop_last: whether incomplete minibatches are dropped.
    """

    examples: np.ndarray
    active_share: float = 1.0
    settings: ClientSettings | None = None
    drop_last: bool = False

    def trip_count(self, name: str) -> float | None:
        """Returns how often a loop of this name runs, on average over the slots; None for other loops.

        The product with the loop inside it is the mean number of steps. A client's own smaller minibatches count as full ones.

        >>> ClientLoops(np.array([10, 30])).trip_count("jit(rounds)/while/body/batches_of_20/while")
        1.5
        """
        match parse_loop(name):
            case Loop("epochs", batch, None) if self.settings is not None:
                return self._mean_own_epochs(self.settings, batch)
            case Loop("epochs", _, int(epochs)) if self.settings is not None:
                return float(epochs)  # a client whose time is over sooner counts in full
            case Loop("micro_batches", turns):
                return float(turns)
            case Loop("batches", batch):
                steps = np.maximum(self.examples // batch, self.examples > 0) if self.drop_last else -(-self.examples // batch)
                return self.active_share * float(np.mean(steps))
        return None

    def _mean_own_epochs(self, settings: ClientSettings, batch: int) -> float:
        """Returns what, times the mean steps of an epoch, gives the clients' mean steps."""
        in_epoch = -(-self.examples // batch)
        if settings.epochs is None:
            assert settings.steps is not None
            steps = np.where(in_epoch > 0, settings.steps, 0)
        else:
            steps = settings.epochs * in_epoch
        return float(np.sum(steps) / max(np.sum(in_epoch), 1))
