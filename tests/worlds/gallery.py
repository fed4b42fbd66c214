"""Faults on purpose, each in one function of the real code, and the law that has to find it.

A fault is a text of the function that is replaced by another one; a text that is no longer there is
an error, so that the gallery cannot go stale. ``test_gallery.py`` lets the tool find each of them;
``docs/laws.md`` shows those that repeat real ones.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

from treepipe.core.schedules import systems
from treepipe.core.system import System
from treepipe.testing.case import Trial
from treepipe.testing.law import LAWS
from treepipe.testing.trials import TRIALS

SEEDED = "seeded"


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        wrong: what the code does with it.
        origin: the real bug that it repeats, or ``SEEDED``.
        system: name of the system that is tried.
        laws: the laws that may find it; the trial of the first one is run.
        where: module and path of the function, as ``package.module:Class.method``.
        old, new: its right text, which is there once, and what stands there instead.
        examples: number of cases, where the trial's own are too few for what is this rare.
        start: seed of the cases, where the first one's meet the fault late.
    """

    name: str
    wrong: str
    origin: str
    system: str
    laws: tuple[str, ...]
    where: str
    old: str
    new: str
    examples: int | None = None
    start: int = 0

    @property
    def trial(self) -> Trial:
        return TRIALS[LAWS[self.laws[0]].trial]

    @contextmanager
    def planted(self) -> Iterator[System]:
        """Let the fault be there meanwhile; yields the system, whose record may hold it."""
        module, _, path = self.where.partition(":")
        *above, name = path.split(".")
        owner: Any = import_module(module)
        for each in above:
            owner = getattr(owner, each)
        right = inspect.getattr_static(owner, name)
        wrong = edited(right, owner, self.old, self.new)
        system = systems()[self.system]
        held = {f.name: wrong for f in fields(system) if getattr(system, f.name) is right}
        with patch.object(owner, name, wrong):
            yield replace(system, **held)


def edited(right: Any, owner: Any, old: str, new: str) -> Any:
    """Return a function, property or class method with ``new`` for ``old`` in its text."""
    function = right.fget if isinstance(right, property) else getattr(right, "__func__", right)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, (
        f"{old!r} is in {function.__qualname__} {source.count(old)} times"
    )
    # Inside of a function, so that ``super()`` finds its class.
    body = textwrap.indent(source.replace(old, new), "    ")
    made = f"def _made(__class__):\n{body}\n    return {function.__name__}\n"
    flags = __future__.annotations.compiler_flag
    names: dict[str, Any] = {}
    exec(compile(made, function.__code__.co_filename, "exec", flags), function.__globals__, names)
    return names["_made"](owner)


CORE = "treepipe.core"
MUTANTS = (
    Mutant(
        "over_advance",
        "positions advance by all fed rows, not by the accepted ones",
        "vLLM RFC 44697: ranks that do not apply the accepted count",
        "chain",
        ("causality",),
        f"{CORE}.decoding.in_flight:TreeInFlight.commit",
        "request.length += len(walk.accepted)",
        "request.length += self.fed",
    ),
    Mutant(
        "stage_over_advance",
        "a stage counts all cached rows as committed after a rejection",
        "vLLM RFC 44697: ranks that do not apply the accepted count",
        "chain",
        ("index",),
        f"{CORE}.stage:StageSession._apply",
        "self.committed += word.accepted",
        "self.committed += self.cached",
    ),
    Mutant(
        "top_k_as_sampled",
        "the draft's most probable tokens are verified as if they were drawn",
        "SPD's tree at T > 0",
        "chain",
        ("sampling",),
        f"{CORE}.schedules.chain:fixed_tree",
        "context.drawn",
        "False",
    ),
    Mutant(
        "no_residual",
        "after a rejection the token is drawn from the target's whole distribution",
        SEEDED,
        "chain",
        ("sampling",),
        f"{CORE}.verification:MultiCandidate.next_token",
        "p = left / left.sum()",
        "pass",
    ),
    Mutant(
        "other_distribution",
        "the draft's distribution keeps a rejected child",
        SEEDED,
        "specinfer",
        ("sampling",),
        f"{CORE}.verification:MultiCandidate.next_token",
        "q[child] = 0.0",
        "pass",
    ),
    Mutant(
        "accepts_too_often",
        "a child is accepted by the ratio of the most probable tokens, not by its own",
        "vllm-ascend 7807: a wrong rule of verification",
        "chain",
        ("sampling",),
        f"{CORE}.verification:MultiCandidate.next_token",
        "self._rng.random() * q[child] < p[child]",
        "self._rng.random() * q.max() < p.max()",
    ),
    Mutant(
        "best_when_sampling",
        "the most probable token is taken where one should be drawn",
        SEEDED,
        "eagle",
        ("sampling",),
        f"{CORE}.verification:Exact.next_token",
        "draw(p, self._rng)",
        "int(p.argmax())",
    ),
    Mutant(
        "sorted_children",
        "children are verified by token id, not in the order of their draws",
        SEEDED,
        "specinfer",
        ("sampling",),
        f"{CORE}.tree:TokenTree.children",
        "return [self.tokens[child] for child in self._children(node)]",
        "return sorted(self.tokens[child] for child in self._children(node))",
    ),
    Mutant(
        "index_slip",
        "each drafted node takes the row of its predecessor from a round's second commit on",
        "FlowSpec's public code, in its PipeDec (`tests/worlds/slipped.py`)",
        "specpipe",
        ("batches", "drafted"),
        f"{CORE}.decoding.layered:LayeredKeys.frontier",
        "return Frontier()",
        "from tests.worlds.slipped import SlippedFrontier\n"
        "    return Frontier() if self.draft_reuse else SlippedFrontier()",
        examples=60,
    ),
    Mutant(
        "growth_before_prune",
        "what is fed next is chosen before its round's prune, below the old root",
        "PipeDec in FlowSpec's public code, and treepipe until it chose layers behind the prune",
        "pruned_pp",
        ("drafted", "index", "protocol"),
        f"{CORE}.schedules.flowspec:Continuous._decide",
        "word = flying.prune(walk, kept, lock_step=self.lock_step)\n"
        "    return [word, *commands, *self._refill(tokens)]",
        "more = self._refill(tokens)\n"
        "    word = flying.prune(walk, kept, lock_step=self.lock_step)\n"
        "    return [word, *commands, *more]",
    ),
    Mutant(
        "feed_before_word",
        "the next segment leaves before the word that it takes into account",
        SEEDED,
        "pruned_pp",
        ("index", "protocol"),
        f"{CORE}.schedules.flowspec:Continuous._decide",
        "return [word, *commands, *self._refill(tokens)]",
        "return [*commands, *self._refill(tokens), word]",
    ),
    Mutant(
        "bound_without_root",
        "the record's bound on segments forgets the root, which a shared step may add",
        "treepipe: SpecPipe-DB's record, found by `treepipe check`",
        "specpipe_db",
        ("bounds",),
        f"{CORE}.schedules.specpipe:_segment_tokens",
        " + (parameters.batch > 1)",
        "",
    ),
    Mutant(
        "newest_first",
        "a message of a link overtakes those before it",
        "treepipe: a message that jitter held up was overtaken",
        "flowspec",
        ("worlds", "protocol"),
        "treepipe.sim.link:SimulatedLink._arrive",
        "self._under_way.popleft()",
        "self._under_way.pop()",
    ),
    Mutant(
        "kept_wrongly",
        "the draft keeps scratch nodes of an accepted path's tokens, on whatever path they are",
        "treepipe: a draft that keeps the entries of accepted tokens",
        "eagle",
        ("drafted", "order"),
        f"{CORE}.scratch:Scratch.along",
        "node.parent is above and ",
        "",
        examples=80,
        start=3,
    ),
    Mutant(
        "root_not_read_again",
        "a root below which a block draft had no candidate is asked about as a scratch node",
        "treepipe: SpecPipe and PipeDec with a block draft of few levels",
        "specpipe",
        ("blocks", "protocol"),
        f"{CORE}.decoding.frontier:Frontier.ask_again",
        "self._root_unread()",
        "pass",
    ),
    Mutant(
        "chain_past_block",
        "a chain takes a token that the draft did not propose, behind its block's last one",
        "treepipe: DSD and PEARL with a block draft, or drafts.least_probability",
        "dsd",
        ("blocks", "drafted"),
        f"{CORE}.decoding.drafting:ChainDraft.absorb",
        "log_prob == -inf",
        "False",
    ),
    Mutant(
        "given_up_pass_run",
        "a draft pass that a schedule has given up is computed all the same",
        "treepipe: DSD, SpecInfer's trees drafted ahead and `flowspec_free` at a miss",
        "flowspec_free",
        ("wanted",),
        f"{CORE}.draft_desk:DraftDesk._absorb",
        "self._unqueue(session, command.ticket)",
        "pass",
    ),
    Mutant(
        "scheduled_again",
        "a request is drafted for again before its verdict is back",
        "vLLM 52071 and 52179: a request scheduled again while its tokens are in the pipeline",
        "engine_pp",
        ("protocol", "drafted"),
        f"{CORE}.decoding.tree_schedule:TreeSchedule._open_round",
        "return [self._feed(length) for length in lengths]",
        "fed = [self._feed(length) for length in lengths]\n"
        "    return [*fed, *self._start_draft(parameters.growth)]",
    ),
    Mutant(
        "stale_draft_fed",
        "a token of the window before is fed as the first one of the next",
        "vLLM 46899 and 40768: a placeholder outlives its window and is fed as a draft",
        "dsd",
        ("drafted",),
        f"{CORE}.schedules.dsd:ChainAhead._window",
        "first = self._draft.used",
        "first = max(0, self._draft.used - 1)",
        start=2,
    ),
    Mutant(
        "one_column",
        "of the accepted tokens only the first one is told",
        "vLLM 57755: only column 0 of the accepted tokens is broadcast to the other stages",
        "chain",
        ("lossless", "protocol"),
        f"{CORE}.decoding.in_flight:TreeInFlight.commit",
        "for node in walk.accepted[1:]]",
        "for node in walk.accepted[1:2]]",
    ),
    Mutant(
        "least_acceptance",
        "a pass accepts one drafted token, whatever else of it is right",
        "mlx-vlm 1155: ragged acceptance in a batch, offsets advanced alike (1.50 to 0.47 times)",
        "chain",
        ("self_draft",),
        f"{CORE}.decoding.in_flight:TreeInFlight.walk",
        "node = child",
        "if accepted[1:]:\n"
        "            return Walk(tuple(accepted), token, None)\n"
        "        node = child",
    ),
    Mutant(
        "best_node_lost",
        "a tree is offered without its best node",
        "vLLM 46994: a draft without its embedding, whose text is right and acceptance collapses",
        "specinfer",
        ("self_draft", "drafted"),
        f"{CORE}.decoding.drafting:TreeDraft.absorb",
        "tokens, parents, scores = self._offered(drafted)",
        "tokens, parents, scores = self._offered(drafted)\n"
        "    if len(tokens) > 1:\n"
        "        tokens, parents, scores = tokens[1:], parents[1:], scores[1:]",
    ),
    Mutant(
        "bonus_unread",
        "of the tokens that were committed the draft reads the newest alone",
        "vLLM 9730: the bonus token is missing in the draft's cache",
        "chain",
        ("drafted",),
        f"{CORE}.protocol:DraftPass.over_committed",
        "tuple(unread[len(held) :])",
        "tuple(unread[-1:])",
    ),
    Mutant(
        "rolled_back_whole",
        "a stage rolls a rejection back to the accepted tokens of the last pass",
        "aprender 2014: a rejection resets the whole cache",
        "chain",
        ("index",),
        f"{CORE}.stage:StageSession._apply",
        "self.committed += word.accepted",
        "self.committed = word.accepted",
    ),
    Mutant(
        "one_row_late",
        "each row is verified by the target's token of the row before",
        "openvino.genai 4190: a rejection is handled an iteration late",
        "chain",
        ("lossless", "protocol"),
        f"{CORE}.decoding.in_flight:TreeInFlight.verify",
        "self._verified[start : start + len(tokens)] = tokens",
        "self._verified[start : start + len(tokens)] = [*tokens[:1], *tokens[:-1]]",
    ),
    Mutant(
        "first_unverified",
        "the first drafted token is accepted unseen",
        "lattice 243: draft[0] is never verified",
        "chain",
        ("lossless", "protocol"),
        f"{CORE}.decoding.in_flight:TreeInFlight.walk",
        "child = self.tree.child(node, token)",
        "child = self.tree.child(node, token) if node or len(self.tree) == 1 else 1",
    ),
    Mutant(
        "last_of_ties",
        "of equally probable nodes the last one goes first",
        "lattice 280: ties are broken for the last one",
        "flowspec",
        ("order", "protocol"),
        f"{CORE}.decoding.drafting:best",
        'return falling.argsort(kind="stable")[:size]',
        'return len(scores) - 1 - falling[::-1].argsort(kind="stable")[:size]',
    ),
    Mutant(
        "error_without_rollback",
        "an answer that is refused is taken for the one that was awaited",
        "lattice 282: an error's path rolls nothing back",
        "eagle",
        ("refusal", "protocol"),
        f"{CORE}.decoding.drafting:PendingPass.answered",
        "order = self._order",
        "order, self._order = self._order, None",
        examples=600,
        start=1,
    ),
    Mutant(
        "second_rollback_lost",
        "rows that missed two words take only the first into account",
        "llama.cpp 22746: a second rollback from a plane that has moved",
        "flowspec_free",
        ("index", "protocol", "order"),
        f"{CORE}.words:WordLog.survivors",
        "self._words[version - self._first :]:",
        "self._words[version - self._first :][:1]:",
    ),
    Mutant(
        "end_inside_burst",
        "a text ends at an end token only if it is the last one of a burst",
        "vLLM 47616: tokens behind a stop string inside a burst",
        "chain",
        ("lossless", "rounds"),
        f"{CORE}.decoding.request:RequestState.emit",
        "if token in self._end_tokens",
        "if token in self._end_tokens and i + 1 == len(wanted)",
    ),
    Mutant(
        "accepts_equal_samples",
        "a child is accepted if it is the token that the target would draw",
        "mlx-swift-lm 459: accepted if both samples are equal",
        "chain",
        ("sampling",),
        f"{CORE}.verification:MultiCandidate.next_token",
        "self._rng.random() * q[child] < p[child]",
        "self._rng.random() < p[child]",
    ),
    Mutant(
        "always_accepts",
        "every drafted child is accepted",
        "transformers 28508: drafted tokens are always accepted",
        "chain",
        ("sampling",),
        f"{CORE}.verification:MultiCandidate.next_token",
        "self._rng.random() * q[child] < p[child]",
        "True",
    ),
    Mutant(
        "end_token_dropped",
        "the text ends before its end token",
        SEEDED,
        "pp",
        ("lossless",),
        f"{CORE}.decoding.request:RequestState.emit",
        "wanted[: end + 1]",
        "wanted[:end]",
    ),
    Mutant(
        "positions_by_place",
        "a row's position is its place in the tree, not its depth",
        SEEDED,
        "specinfer",
        ("causality",),
        f"{CORE}.decoding.in_flight:TreeInFlight.feed",
        "positions=tuple([length + depth for depth in tree.depths[first:last]])",
        "positions=tuple(range(length + first, length + last))",
    ),
    Mutant(
        "depths_not_moved",
        "after a prune nodes keep their depths below the old root",
        SEEDED,
        "flowspec",
        ("causality",),
        f"{CORE}.tree:TokenTree.retain",
        "self.depths[old] - base",
        "self.depths[old]",
        start=1,
    ),
    Mutant(
        "mask_not_renumbered",
        "rows that missed a prune keep the numbers that their parents had with the accepted rows",
        SEEDED,
        "pruned_pp",
        ("causality",),
        f"{CORE}.words:_renumber",
        "bisect_left(kept, parent) - accepted",
        "bisect_left(kept, parent)",
    ),
    Mutant(
        "start_not_moved",
        "rows that missed a prune start behind the accepted rows, too",
        SEEDED,
        "pruned_pp",
        ("index", "protocol"),
        f"{CORE}.words:WordLog.survivors",
        "max(low - word.accepted, 0)",
        "low",
    ),
    Mutant(
        "cache_counts_accepted",
        "a compacted cache counts the accepted rows as tree nodes, too",
        SEEDED,
        "flowspec",
        ("index", "protocol"),
        f"{CORE}.stage:StageSession._apply",
        "self.cached = len(keep) - word.accepted",
        "self.cached = len(keep)",
    ),
    Mutant(
        "compaction_forgotten",
        "a stage whose nodes all stay does not move the accepted ones to its committed part",
        SEEDED,
        "chain",
        ("index",),
        f"{CORE}.stage:StageSession._apply",
        "if dropped_all and not word.accepted:",
        "if dropped_all:",
    ),
    Mutant(
        "ended_round_computed",
        "a stage takes a segment of a round that has ended",
        SEEDED,
        "flowspec_free",
        ("index", "protocol", "termination"),
        f"{CORE}.stage:StageSession.receive",
        "if message.round < self.round:",
        "if False:",
    ),
    Mutant(
        "waits_for_ever",
        "a stage applies a word only behind one segment more than precede it",
        SEEDED,
        "flowspec",
        ("termination",),
        f"{CORE}.barrier:Barrier.word_is_due",
        "self.taken >= self.applied + self.free",
        "self.taken > self.applied + self.free",
    ),
    Mutant(
        "word_descends",
        "a word names the rows to keep in descending order",
        SEEDED,
        "flowspec",
        ("order",),
        f"{CORE}.decoding.in_flight:TreeInFlight.prune",
        "return self.announce(retained,",
        "return self.announce(retained[::-1],",
    ),
    Mutant(
        "parent_behind",
        "a draft pass places its nodes' children below the nodes behind them",
        SEEDED,
        "eagle",
        ("order", "drafted", "protocol"),
        f"{CORE}.decoding.drafting:TreeDraft.next_pass",
        "range(scratch, scratch + len(asked))",
        "range(scratch + 1, scratch + 1 + len(asked))",
    ),
    Mutant(
        "root_unread",
        "the draft does not read the token that became the new root",
        SEEDED,
        "flowspec",
        ("drafted", "protocol"),
        f"{CORE}.decoding.in_flight:TreeInFlight.commit",
        "self.text += tokens if walk.next_node is not None else tokens[:-1]",
        "self.text += tokens[:-1]",
    ),
    Mutant(
        "guess_unchecked",
        "a tree drafted ahead is used whatever token the target put behind the likeliest path",
        SEEDED,
        "specinfer",
        ("drafted", "lossless"),
        f"{CORE}.schedules.specinfer:_Guess.holds",
        "accepted == (*self.path, self.draft.tokens[0])",
        "accepted[:-1] == self.path",
    ),
    Mutant(
        "window_unchecked",
        "the window drafted ahead is used whatever the target's own token is",
        SEEDED,
        "dsd",
        ("drafted", "lossless"),
        f"{CORE}.schedules.dsd:ChainAhead._go_behind",
        " and draft.tokens[guess][0] == walk.next_token",
        "",
    ),
    Mutant(
        "frontier_unpruned",
        "the draft of a layered tree keeps its candidates where the tree was pruned",
        SEEDED,
        "specpipe",
        ("drafted", "order", "protocol"),
        f"{CORE}.decoding.layered:Layered._evaluate",
        "self._frontier.prune(walk.accepted, kept, flying.tree)",
        "pass",
    ),
    Mutant(
        "ticket_again",
        "a segment has the ticket of the one before it",
        SEEDED,
        "naive_pp",
        ("answered_once", "protocol"),
        f"{CORE}.decoding.in_flight:TreeInFlight.feed",
        "ticket=self._request.ticket()",
        "ticket=self._request._tickets",
    ),
    Mutant(
        "rounds_count_all",
        "a round counts tokens beyond the wanted length",
        SEEDED,
        "eagle",
        ("rounds",),
        f"{CORE}.decoding.in_flight:TreeInFlight.commit",
        "useful = wanted - request.wanted",
        "useful = len(tokens)",
    ),
    Mutant(
        "never_closed",
        "stages do not hear that a request is over",
        SEEDED,
        "pp",
        ("freed",),
        f"{CORE}.draft_desk:DraftDesk._leave",
        "orders.messages.append((state.pipeline, Close(session)))",
        "pass",
    ),
    Mutant(
        "answers_exchanged",
        "requests of one flight get each other's tokens",
        SEEDED,
        "pp",
        ("batches", "lossless", "protocol"),
        f"{CORE}.draft_desk:DraftDesk.returned",
        "zip(flight.segments, answers, strict=True)",
        "zip(flight.segments, answers[::-1], strict=True)",
        start=3,
    ),
    Mutant(
        "one_too_many",
        "a pass serves one request more than may share it",
        SEEDED,
        "chain",
        ("batches",),
        f"{CORE}.stage_desk:StageDesk._has_room",
        "<= self._batch",
        "<= self._batch + 1",
        examples=240,
    ),
    Mutant(
        "servers_mixed",
        "flights of two draft servers are joined, and all go back to one",
        SEEDED,
        "chain",
        ("batches", "termination", "protocol"),
        f"{CORE}.stage_desk:StageDesk._has_room",
        " and flight.draft == first.draft",
        "",
    ),
    Mutant(
        "room_not_grown",
        "emitted tokens take no room in paged caches",
        SEEDED,
        "pp",
        ("rooms",),
        f"{CORE}.cache_room:CacheBook.take",
        "holding.length += len(tokens)",
        "pass",
    ),
    Mutant(
        "never_enough_room",
        "a request waits where the room fits exactly",
        SEEDED,
        "pp",
        ("rooms", "termination"),
        f"{CORE}.cache_room:CacheBook.lacking",
        "> room.of(pool)",
        ">= room.of(pool)",
    ),
    Mutant(
        "answer_unchecked",
        "an answer with rows too many is accepted",
        SEEDED,
        "eagle",
        ("refusal", "protocol"),
        f"{CORE}.decoding.drafting:PendingPass.answered",
        "event.expect(order.asked if order.top_k else 0)",
        "pass",
        examples=600,
        start=1,
    ),
    Mutant(
        "told_while_lost",
        "a lost pipeline is still told that its requests are over",
        SEEDED,
        "chain",
        ("failover",),
        f"{CORE}.draft_desk:DraftDesk.lose",
        "orders.messages.clear()",
        "pass",
        examples=300,
    ),
    Mutant(
        "shared_counter",
        "all requests take their tickets from one counter",
        SEEDED,
        "chain",
        ("replay",),
        f"{CORE}.decoding.request:RequestState.ticket",
        "self._tickets += 1",
        'self._tickets = RequestState._all = getattr(RequestState, "_all", 0) + 1',
    ),
)
"""In the order in which the page tells them: repetitions of real bugs first."""
