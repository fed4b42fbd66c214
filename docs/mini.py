"""treepipe in one file: tree speculative decoding over a pipeline, to be read in an evening.

A large *target* model is cut into N stages, one per device. Plain decoding sends one token at a
time through all of them, so N - 1 devices always wait. Here a small *draft* model on one more
device guesses a tree of likely next tokens, and many of its nodes go through the stages together.
What the target says at the nodes decides which of them become text. The text is the one that the
target alone would write, token for token: a wrong guess costs time and nothing else.

This file is written from FlowSpec's paper (Liu et al. 2025, whose sections are cited) and from what
its authors' public code was seen to do. It imports nothing of treepipe, so it is a second opinion,
too: a test demands the same tokens, rounds, passes and times of both. Read it from the top.
``python docs/mini.py`` prints an example.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import simpy

Text: TypeAlias = tuple[int, ...]
Target: TypeAlias = Callable[[Text], int]  # the most probable next token behind a text (greedy)
Draft: TypeAlias = Callable[[Text], Sequence[tuple[int, float]]]  # tokens with log q, best first


# --- The token tree -------------------------------------------------------------------------------


class Node(NamedTuple):
    """A drafted token. Its score is the log-probability of its whole path below the root, the
    draft's estimate that it becomes text (FlowSpec, eq. 1)."""

    token: int
    parent: int
    score: float


Tree: TypeAlias = Sequence[Node]
"""Nodes in the order in which the stages compute them. The first, with parent -1, is the *root*:
the newest token of the text, which no stage has computed yet. A node comes after its parent (the
order law), since a row can only attend to what has been computed before it."""


def ancestry(tree: Tree, node: int) -> list[int]:
    """The nodes from the root down to ``node``, both included."""
    line = []
    while node >= 0:
        line.append(node)
        node = tree[node].parent
    return line[::-1]


def path(tree: Tree, node: int) -> Text:
    """The tokens from the root down to ``node``. Two nodes of one path are the same guess."""
    return tuple(tree[each].token for each in ancestry(tree, node))


def gather(tree: Tree, nodes: Sequence[int]) -> Tree:
    """The tree of these nodes, in this order. The first one becomes its root."""
    place = {old: new for new, old in enumerate(nodes)}
    return [tree[old]._replace(parent=place.get(tree[old].parent, -1)) for old in nodes]


def merge(tree: Tree, other: Tree, chosen: Sequence[int]) -> Tree:
    """``tree``, and behind it the ``chosen`` nodes of another tree with the same root whose path is
    new. What was there stays where it was, since it may be on its way (FlowSpec, 3.4)."""
    nodes = list(tree)
    place = {path(tree, node): node for node in range(len(tree))}
    for node in chosen:
        line = path(other, node)
        if line not in place:
            place[line] = len(nodes)
            nodes.append(other[node]._replace(parent=place[line[:-1]]))
    return nodes


def best(tree: Tree, among: Sequence[int], count: int) -> list[int]:
    """The ``count`` nodes of the highest score, best first. Sorting is stable: of equal scores the
    earlier node comes first, so a parent stays before a child of which the draft is certain."""
    return sorted(among, key=lambda node: -tree[node].score)[:count]


def cut(rows: int, parts: int, most: int) -> list[int]:
    """Sizes of at most ``parts`` segments: as equal as can be, the larger ones last (81 rows in 5:
    16, 16, 16, 16, 17). If even the smallest had more than ``most`` rows, each has ``most``, and
    the rest of the rows waits."""
    parts = min(rows, parts)
    size, larger = divmod(rows, parts)
    return [most] * parts if size > most else [size] * (parts - larger) + [size + 1] * larger


# --- A round, as pure functions -------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A way of decoding. The values are those of the paper's experiments (FlowSpec, A.1)."""

    tree_size: int = 80  # nodes below the root; 0: there is no draft
    tree_depth: int = 6
    top_k: int = 10
    segment_tokens: int = 16
    score_order: bool = True  # likely nodes first, or layer by layer
    stepwise: bool = True  # decide at each segment that is back, or at the round's last one
    expand_size: int = 64  # context-aware expansion; 0: none
    expand_depth: int = 6
    extend_size: int = 0  # score-aware expansion beside it; 0: none, as in the authors' evaluation


SYSTEMS = {
    "pp": System(tree_size=0),
    "naive_pp": System(score_order=False, stepwise=False, expand_size=0),
    "pruned_pp": System(expand_size=0),
    "flowspec": System(),
}


class Segment(NamedTuple):
    """Rows that travel through the stages as one message; one without rows is a marker, which keeps
    the steps in time. ``mask[row, node]`` says whether a row attends to a node, of those up to the
    segment's end; rows without a mask are the prompt's, and attend to all before them."""

    tokens: Text
    mask: Any = None
    number: int = 0  # its place in the round, from 1 on
    last: bool = False  # of the prompt; or of a round that is decided as a whole


class Word(NamedTuple):
    """What every stage is to know of a step: the nodes of the tree that stay, of which the first
    ``accepted`` are text now; None: nothing changes."""

    retained: Sequence[int] | None = None
    accepted: int = 0
    ends_round: bool = False


class Work(NamedTuple):
    kind: str  # "draft", "evaluate", "decide", "compute" or "prune": what takes a device's time
    rows: int = 1


@dataclass(frozen=True)
class Round:
    """What the draft server knows between two steps. Segments come back in the order in which they
    left, so ``answers``, the target's tokens, are those behind the tree's first nodes."""

    text: Text  # prompt and final tokens, up to the tree's root
    unread: int  # of its newest tokens, how many the draft has not read
    tree: Tree = ()
    fed: int = 0  # nodes of the tree that have been sent
    segments: int = 0  # in how many segments
    answers: Text = ()
    drafted: Tree = ()  # all that the draft has proposed below the root (FlowSpec's base tree)
    beam: Sequence[int] = ()  # the best nodes of its last layer, which the next draft pass reads
    used: Sequence[int] = ()  # the nodes that have been chosen for the tree


def draft_layer(system: System, draft: Draft, round_: Round) -> tuple[Round, Work]:
    """One draft pass: each node of the beam gets the ``top_k`` best next tokens as children. A
    pass that reads the root also catches up on what the draft has not read before it."""
    nodes = list(round_.drafted)
    for row in round_.beam:
        behind = round_.text + path(nodes, row)[1:]  # the root is the text's last token already
        offers = draft(behind)[: system.top_k]
        nodes += [Node(token, row, nodes[row].score + log_q) for token, log_q in offers]
    beam = best(nodes, range(len(round_.drafted), len(nodes)), system.top_k)
    work = Work("draft", round_.unread or len(round_.beam))
    return replace(round_, unread=0, drafted=nodes, beam=beam), work


def draft_tree(system: System, draft: Draft, round_: Round, depth: int) -> tuple[Round, list[Work]]:
    """Draft behind the text, layer by layer (EAGLE-2)."""
    root, passes = [Node(round_.text[-1], -1, 0.0)], list[Work]()
    round_ = replace(round_, drafted=root, beam=[0], used=[0])
    for _ in range(depth + 1):
        round_, work = draft_layer(system, draft, round_)
        passes.append(work)
    return round_, passes


def choose(round_: Round, size: int) -> tuple[Round, list[int]]:
    """The next best of what was drafted. No node is missing above one of them, since no child has a
    higher score than its parent."""
    left = sorted(set(range(len(round_.drafted))) - set(round_.used))
    chosen = best(round_.drafted, left, size)
    return replace(round_, used=[*round_.used, *chosen]), chosen


def begin(system: System, draft: Draft, round_: Round) -> tuple[Round, list[Work]]:
    """Draft initialization: the tree of a new round (FlowSpec, 3.2)."""
    round_ = Round(round_.text, round_.unread, [Node(round_.text[-1], -1, 0.0)])
    round_, passes = draft_tree(system, draft, round_, system.tree_depth)
    round_, chosen = choose(round_, system.tree_size)
    order = chosen if system.score_order else sorted(chosen)
    return replace(round_, tree=gather(round_.drafted, [0, *order])), passes


def expand(system: System, draft: Draft, round_: Round, grown: bool) -> tuple[Round, list[Work]]:
    """Add nodes, so that the pipeline does not run empty (FlowSpec, 3.4).

    Context-aware, if the text has ``grown``: draft afresh behind it. Score-aware, else: one layer
    deeper. There the paper takes the best nodes that the tree does not have; the authors' code the
    best ones not taken before, of which it drops those that the tree has. So do we."""
    if grown and system.expand_size:
        round_, passes = draft_tree(system, draft, round_, system.expand_depth)
    elif not grown and system.extend_size:
        round_, work = draft_layer(system, draft, round_)
        passes = [work]
    else:
        return round_, []
    round_, chosen = choose(round_, system.expand_size if grown else system.extend_size)
    return replace(round_, tree=merge(round_.tree, round_.drafted, chosen)), passes


def feed(round_: Round, size: int) -> tuple[Round, Segment]:
    """The tree's next ``size`` nodes, as a segment."""
    tree, first, end, number = round_.tree, round_.fed, round_.fed + size, round_.segments + 1
    mask = np.zeros((size, end), dtype=bool)
    for node in range(first, end):
        mask[node - first, ancestry(tree, node)] = True
    tokens = tuple(node.token for node in tree[first:end])
    return replace(round_, fed=end, segments=number), Segment(tokens, mask, number)


def walk(tree: Tree, answers: Text) -> tuple[list[int], int | None]:
    """Follow the target from the root on, as far as its answers go (FlowSpec, 3.3).

    Returns the accepted nodes, behind which the target's tokens are final, and the node that holds
    the last of these tokens, the new root. None: there is no such node, which is a miss."""
    below = {(node.parent, node.token): place for place, node in enumerate(tree)}
    node: int | None = 0
    accepted = list[int]()
    while node is not None and node < len(answers):
        accepted.append(node)
        node = below.get((node, answers[node]))
    return accepted, node


def decide(round_: Round, end: int) -> tuple[Round, Word]:
    """Commit what the answers allow, and prune what continues another text (FlowSpec, 3.3). A miss
    ends the round, and so does a text of length ``end``."""
    tree, answers = round_.tree, round_.answers
    accepted, root = walk(tree, answers)
    if not accepted:
        return round_, Word()
    text = round_.text + tuple(answers[node] for node in accepted)
    round_ = replace(round_, text=text, unread=round_.unread + len(accepted))
    if root is None or len(text) >= end:
        return round_, Word(accepted, len(accepted), ends_round=True)
    stay = [node for node in range(root, len(tree)) if root in ancestry(tree, node)]
    answers = tuple(answers[node] for node in stay if node < len(answers))
    fed = sum(node < round_.fed for node in stay)
    round_ = replace(round_, tree=gather(tree, stay), answers=answers, fed=fed)
    return round_, Word([*accepted, *stay], len(accepted))


def prune(word: Word, text: Text, cached: Text, segment: Segment) -> tuple[Text, Text, Segment]:
    """Follow a word at a stage (FlowSpec, 3.3): the tree's first nodes are in its cache, the next
    ones in the segment at hand. So all stages come to the same tree, wherever the word meets its
    nodes (the index law). Accepted nodes have been through all stages: they become ``text``."""
    if word.retained is None:
        return text, cached, segment
    start, end = len(cached), len(cached) + len(segment.tokens)
    stay = tuple(cached[node] for node in word.retained if node < start)
    rows = [node - start for node in word.retained if start <= node < end]
    columns = [node for node in word.retained[word.accepted :] if node < end]
    mask = segment.mask[np.ix_(rows, columns)] if rows else np.zeros((0, 0), dtype=bool)
    segment = segment._replace(tokens=tuple(segment.tokens[row] for row in rows), mask=mask)
    return text + stay[: word.accepted], stay[word.accepted :], segment


# --- The devices ----------------------------------------------------------------------------------


class Send(NamedTuple):
    to: int  # device 0 is the draft server, device n is stage n
    message: Segment | Word | Text


class Receive(NamedTuple):
    kind: type  # of the next message, which the world answers with


class Step(NamedTuple):
    tokens: Text  # they are final, now that a segment is back
    ends_round: bool


Command: TypeAlias = Work | Send | Receive | Step
Device: TypeAlias = Generator[Command, Any, None]  # a world lets it do one thing after another


def extend_text(rows: Text) -> Generator[Command, Any, Text]:
    """The target's token behind rows of the text; a prompt goes in chunks (FlowSpec, 3.1)."""
    for size in cut(len(rows), -(-len(rows) // 64), 64):
        chunk, rows = rows[:size], rows[size:]
        yield Send(1, Segment(chunk, last=not rows))
    answers: Text = yield Receive(tuple)
    yield from [Work("evaluate", len(answers)), Work("decide")]
    yield Step(answers, ends_round=True)
    return answers


def draft_server(system: System, draft: Draft, prompt: Text, wanted: int, stages: int) -> Device:
    """One request, from its prompt to ``wanted`` tokens (FlowSpec, figure 1)."""
    text, end = prompt + (yield from extend_text(prompt)), len(prompt) + wanted
    while not system.tree_size and len(text) < end:
        text += yield from extend_text(text[-1:])
    round_ = Round(text, unread=len(text))
    while len(round_.text) < end:  # a round
        round_, passes = begin(system, draft, round_)
        yield from passes
        sizes, back = cut(len(round_.tree), stages + 1, system.segment_tokens), 0
        sizes += [0] * (stages + 1 - len(sizes))  # so that every stage has work, or a marker
        while True:  # a step
            for place, size in enumerate(sizes, 1):
                round_, segment = feed(round_, size)
                last = place == len(sizes) and round_.fed == len(round_.tree)
                yield Send(1, segment._replace(last=last and not system.stepwise))
            answers = yield Receive(tuple)
            work = [Work("evaluate", len(answers)), Work("decide")]
            yield from work[: 1 + bool(answers or system.stepwise)]  # a marker may end no step
            before, waiting = round_.text, len(round_.tree) - round_.fed
            round_, back = replace(round_, answers=round_.answers + answers), back + 1
            if not system.stepwise and (waiting or back < round_.segments):  # too early to decide
                sizes = [min(system.segment_tokens, waiting)] if waiting else []
                yield Step((), ends_round=False)
                continue
            round_, word = decide(round_, end)
            yield Step(round_.text[len(before) :], word.ends_round)
            yield from [Send(receiver, word) for receiver in range(1, stages + 1)]
            if word.ends_round:
                break  # nothing on its way is of use, and the pipeline has to fill again
            round_, passes = expand(system, draft, round_, round_.text != before)
            yield from passes
            sizes = [len(round_.tree) - round_.fed]
    yield Receive(tuple)  # there is nothing more to do


def stage(number: int, system: System, target: Target, stages: int) -> Device:
    """Stage ``number``, from 1 on. Tokens stand for their keys and values.

    In a stepwise system it computes the first ``stages + 1 - number`` segments of a round at once.
    Then the pipeline is full, and before each further one it waits for the word of one more step,
    so that all devices move together (FlowSpec, 3.1)."""
    text, cached = Text(), Text()
    while True:
        segment: Segment = yield Receive(Segment)
        if system.stepwise and segment.number + number > stages + 1:
            word: Word = yield Receive(Word)
            text, cached, segment = prune(word, text, cached, segment)
            if word.retained is not None:
                yield Work("prune")
            if word.ends_round:
                continue  # what is at hand belongs to no text
        if segment.tokens:
            yield Work("compute", len(segment.tokens))
        in_tree = segment.mask is not None
        if in_tree:
            cached += segment.tokens
            rows = [tuple(np.array(cached, dtype=int)[row].tolist()) for row in segment.mask]
        else:
            text, rows = text + segment.tokens, [()]
        if number < stages:
            yield Send(number + 1, segment)
        elif in_tree or segment.last:
            yield Send(0, tuple(target(text + row) for row in rows))
        if in_tree and segment.last:  # the round is through
            text, cached, _ = prune((yield Receive(Word)), text, cached, Segment(()))
            yield Work("prune")


# --- Two worlds, and an example -------------------------------------------------------------------


def decode(devices: Sequence[Device], seed: int = 0) -> list[tuple[int, Work | Step]]:
    """Without time: what each device did. Which one goes on next is drawn at random: in whatever
    order messages come, the text, the rounds and the passes are the same."""
    rng, log = np.random.default_rng(seed), list[tuple[int, Work | Step]]()
    boxes = defaultdict[tuple[int, type], deque[Any]](deque)
    doing = [next(device) for device in devices]

    def go_on(number: int) -> bool:
        command, answer = doing[number], None
        if isinstance(command, Receive):
            if not boxes[number, command.kind]:
                return False
            answer = boxes[number, command.kind].popleft()
        elif isinstance(command, Send):
            boxes[command.to, type(command.message)].append(command.message)
        else:
            log.append((number, command))
        doing[number] = devices[number].send(answer)
        return True

    while any(go_on(number) for number in rng.permutation(len(devices)).tolist()):
        pass
    return log


Table: TypeAlias = Mapping[int, float]  # milliseconds of a kind of work, by its rows
Link: TypeAlias = Callable[[int, int], tuple[float, float]]  # sender, receiver: ms, bytes per ms
Log: TypeAlias = list[tuple[float, float, int, Work | Step]]  # begin and end of what a device did


def lasts(table: Table, rows: int) -> float:
    """The time of a pass, on a line between two points of a table and beyond the last two."""
    points = sorted(table)
    if rows <= points[0] or len(points) == 1:
        return table[points[0]] if rows else 0.0
    low, high = next((pair for pair in pairwise(points) if rows <= pair[1]), points[-2:])
    return table[low] + (table[high] - table[low]) * (rows - low) / (high - low)


def simulate(
    devices: Sequence[Device], work: Sequence[Mapping[str, Table]], link: Link, row_bytes: int
) -> Log:
    """With time: ``work`` has each device's tables by kind; a row's hidden state ``row_bytes``."""
    env, log = simpy.Environment(), Log()
    boxes = defaultdict[tuple[int, type], Any](lambda: simpy.Store(env))
    sends, receives = ([0.0] * len(devices) for _ in range(2))  # until when each is busy with that

    def size(message: Segment | Word | Text) -> int:
        """Bytes: a header; 4 for each retained node, or 8 and the hidden state for each row."""
        if isinstance(message, Word):
            return 64 + 4 * len(message.retained or ())
        rows = message.tokens if isinstance(message, Segment) else message
        return 64 + (8 + row_bytes) * len(rows)

    def begins(busy: list[float], device: int, lasts_ms: float) -> float:
        """A device sends one message at a time, and receives one: when can this one begin?"""
        start: float = max(env.now, busy[device]) if lasts_ms else env.now
        busy[device] = max(busy[device], start + lasts_ms)
        return start

    def carry(sender: int, to: int, message: Any) -> Generator[Any, Any, None]:
        latency, rate = link(sender, to)
        lasts_ms = size(message) / rate
        yield env.timeout(begins(sends, sender, lasts_ms) + latency - env.now)
        yield env.timeout(begins(receives, to, lasts_ms) + lasts_ms - env.now)
        boxes[to, type(message)].put(message)

    def live(number: int, device: Device) -> Generator[Any, Any, None]:
        command, start = next(device), env.now
        while True:
            answer = None
            if isinstance(command, Receive):
                answer = yield boxes[number, command.kind].get()
            elif isinstance(command, Send):
                env.process(carry(number, command.to, command.message))
            else:
                if isinstance(command, Work):
                    yield env.timeout(lasts(work[number][command.kind], command.rows))
                log.append((start, env.now, number, command))
            command, start = device.send(answer), env.now

    for number, device in enumerate(devices):
        env.process(live(number, device))
    env.run()
    return log


def main() -> None:
    """Four systems on four stages: a table, and what each device of FlowSpec did at first."""

    def logits(text: Text) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.random.default_rng(text[-4:]).normal(scale=3, size=32)

    def draft(text: Text) -> list[tuple[int, float]]:
        guess = logits(text) + np.random.default_rng([1, *text[-4:]]).normal(size=32)
        log_q = guess - np.log(np.exp(guess).sum())
        return [(token, float(log_q[token])) for token in np.argsort(-log_q).tolist()]

    times: list[dict[str, Table]] = [{"draft": {1: 3.0}, "evaluate": {1: 1.0}, "decide": {1: 2.0}}]
    times += [{"compute": {1: 20.0, 64: 21.0, 128: 34.0}, "prune": {1: 0.5}}] * 4
    print("system     rounds   ms per token")
    for name, system in SYSTEMS.items():
        server = draft_server(system, draft, (1, 2, 3), 60, 4)
        crew = [stage(n, system, lambda text: int(logits(text).argmax()), 4) for n in range(1, 5)]
        log = simulate([server, *crew], times, lambda sender, to: (1.0, 125_000.0), 8192)
        steps = [(end, each) for _, end, _, each in log if isinstance(each, Step)]
        ends = [end for end, each in steps for _ in each.tokens][:60]
        rounds = sum(each.ends_round for _, each in steps) - 1
        print(f"{name:10} {rounds:6} {(ends[-1] - ends[0]) / 59:14.1f}")
    for device in range(5):  # of flowspec, the last one; a column is 5 ms
        busy = [(a, b) for a, b, n, each in log if n == device and isinstance(each, Work)]
        line = (
            "#" if any(a < 5 * x + 5 and b > 5 * x for a, b in busy) else "." for x in range(80)
        )
        print(f"stage {device}  " if device else "draft    ", "".join(line))


if __name__ == "__main__":
    main()
