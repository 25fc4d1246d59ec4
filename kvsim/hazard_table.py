"""The table of hazards; what its columns are is said in :mod:`kvsim.hazards`."""

from __future__ import annotations

from dataclasses import dataclass

CONTENT, NUMBERS, ANSWER, BOOKS = "content", "numbers", "answer", "books"


@dataclass(frozen=True)
class Hazard:
    """One hazard.

    ``kind`` is one of :data:`kvsim.hazards.KINDS`, ``memories`` who can meet it, ``where`` upstream's file
    and function, ``instead`` what would be consistent, ``remedy`` what a caller can do.
    """

    id: str
    kind: str
    memories: str
    where: str
    happens: str
    instead: str
    remedy: str

    @property
    def trace(self) -> str:
        """The minimal trace, from the root of the project."""
        return f"fixtures/hazards/{self.id}.jsonl.gz"


TABLE = (
    # -- attention caches --------------------------------------------------------------------------
    Hazard(
        id="shift-moves-other-owners",
        kind=CONTENT,
        memories="every memory with an attention cache, unified",
        where="src/llama-kv-cache.cpp: seq_add, seq_div",
        happens=(
            "Sequences that share cells share positions too. Moving the positions of one of them "
            "moves them for all; a cell that falls below position 0 is freed for all."
        ),
        instead="Only the sequence that was named moves.",
        remedy=(
            "Do not shift a sequence while it shares cells: copy it to a stream of its own, or "
            "shift all owners alike."
        ),
    ),
    Hazard(
        id="division-turns-backwards",
        kind=CONTENT,
        memories="every memory with an attention cache",
        where="src/llama-kv-cells.h: pos_div",
        happens=(
            "seq_div notes old minus new position as the pending turn, where seq_add notes new "
            "minus old. The keys are then turned away from their new position instead of towards "
            "it."
        ),
        instead="The pending turn is new minus old.",
        remedy="Do not use seq_div; decode the tokens again at the positions you want.",
    ),
    Hazard(
        id="keep-spares-other-streams",
        kind=CONTENT,
        memories="caches with one stream per sequence",
        where="src/llama-kv-cache.cpp: seq_keep",
        happens="seq_keep looks at the stream of the named sequence only. All other sequences stay.",
        instead="Every other sequence is forgotten.",
        remedy="Remove the other sequences one by one.",
    ),
    Hazard(
        id="copy-ignores-range",
        kind=CONTENT,
        memories="caches with one stream per sequence",
        where="src/llama-kv-cache.cpp: seq_cp",
        happens=(
            "Between streams a copy always takes the whole sequence. A range is refused by an "
            "assertion, except for ranges with p1 = 0 or with an end beyond the last cell, which "
            "are taken for the whole."
        ),
        instead="Only the positions in the range are copied.",
        remedy="Copy with p0 = p1 = -1 and remove what is not wanted.",
    ),
    Hazard(
        id="position-minus-one",
        kind=CONTENT,
        memories="every memory with an attention cache",
        where="src/llama-batch.cpp: init; src/llama-kv-cells.h: pos_set",
        happens=(
            "A batch may start at position -1, which is also the mark of an empty cell. The token "
            "is placed, is visible to nobody, and its cell is half alive from then on: used, owned, "
            "and free for the next one."
        ),
        instead="The batch is refused.",
        remedy="Start sequences at 0 or later.",
    ),
    Hazard(
        id="cell-keeps-old-owner",
        kind=CONTENT,
        memories="every memory with an attention cache",
        where="src/llama-kv-cache.cpp: apply_ubatch",
        happens=(
            "A half-alive cell (see position-minus-one) is taken for a new token without removing "
            "its old owner, who then sees a token that was never his."
        ),
        instead="The new token belongs to its own sequences only.",
        remedy="Start sequences at 0 or later.",
    ),
    Hazard(
        id="undo-misses-position-minus-one",
        kind=BOOKS,
        memories="every memory with an attention cache",
        where="src/llama-kv-cells.h: set",
        happens=(
            "Undoing a preparation tells empty cells by their position. A cell at -1 is not put "
            "back as it was: it stays counted as used, or is no longer counted."
        ),
        instead="A preparation leaves no trace.",
        remedy="Start sequences at 0 or later.",
    ),
    Hazard(
        id="cell-keeps-old-token",
        kind=BOOKS,
        memories="every memory with an attention cache",
        where="src/llama-kv-cells.h: pos_add; src/llama-kv-cache.cpp: apply_ubatch",
        happens=(
            "A cell freed by a shift below 0 keeps its token id, and embeddings with one position "
            "per token write none: the cell of the embedding shows the token that was there before."
        ),
        instead="A freed cell forgets its token.",
        remedy="Do not rely on the token ids of cells after embeddings were decoded.",
    ),
    Hazard(
        id="heads-exchanged",
        kind=BOOKS,
        memories="caches with one stream per sequence",
        where="src/llama-kv-cache.cpp: prepare",
        happens=(
            "The heads saved before a preparation are put back by their place in the batch, not by "
            "stream. After a refused batch some searches start elsewhere; the cells found later "
            "differ."
        ),
        instead="A preparation leaves no trace.",
        remedy="None needed.",
    ),
    Hazard(
        id="clear-keeps-copies",
        kind=CONTENT,
        memories="caches with one stream per sequence",
        where="src/llama-kv-cache.cpp: clear",
        happens=(
            "A copy between streams moves its rows at the next decode. Clearing the cache does not "
            "take it from the queue."
        ),
        instead="Nothing is pending after a clear.",
        remedy="Decode once between copying and clearing if a state is restored afterwards.",
    ),
    Hazard(
        id="restore-under-queued-copy",
        kind=CONTENT,
        memories="caches with one stream per sequence",
        where="src/llama-kv-cache.cpp: state_read, update",
        happens=(
            "A restored state writes its rows at once, a queued copy writes its own later: rows of "
            "the restored sequence are overwritten, or the copy takes the restored rows instead of "
            "those that were copied."
        ),
        instead="Queued copies run before a state is restored.",
        remedy="Decode once between copying a sequence and restoring a state.",
    ),
    Hazard(
        id="save-before-copy",
        kind=CONTENT,
        memories="caches with one stream per sequence",
        where="src/llama-kv-cache.cpp: state_write",
        happens=(
            "Saving a sequence whose copy is still queued saves its positions with the rows that "
            "were there before."
        ),
        instead="Queued copies run before a state is saved.",
        remedy="Decode once between copying and saving, or save the source.",
    ),
    Hazard(
        id="save-before-shift",
        kind=CONTENT,
        memories="every memory with an attention cache",
        where="src/llama-kv-cache.cpp: state_write",
        happens=(
            "A state saved while positions have moved and the keys have not holds new positions "
            "with old keys. Restored, nothing is pending any more, and the keys stay wrong."
        ),
        instead="Pending shifts are applied before a state is saved.",
        remedy="Decode once between shifting and saving.",
    ),
    Hazard(
        id="state-omits-owner",
        kind=CONTENT,
        memories="unified caches",
        where="src/llama-kv-cache.cpp: state_write",
        happens=(
            "Sequence ids from n_seq_max on can be made by seq_cp, but a state does not list them: "
            "cells without an owner cannot be restored."
        ),
        instead="The copy is refused, or the state lists every owner.",
        remedy="Use ids below n_seq_max.",
    ),
    Hazard(
        id="empty-state-removes-nothing",
        kind=CONTENT,
        memories="every memory with an attention cache",
        where="src/llama-kv-cache.cpp: state_read",
        happens="Restoring the state of an empty sequence succeeds and leaves the target as it was.",
        instead="The target is empty afterwards.",
        remedy="Remove the target before restoring.",
    ),
    Hazard(
        id="failed-restore-loses-sequence",
        kind=CONTENT,
        memories="every memory with an attention cache",
        where="src/llama-kv-cache.cpp: state_read, state_clear",
        happens=(
            "A restore removes the target first. If the state then turns out damaged, too large or "
            "of another memory, what was there is gone."
        ),
        instead="A refused restore changes nothing.",
        remedy="Restore into an empty sequence and copy it over; in kvsim: strict=True.",
    ),
    Hazard(
        id="state-not-used-up",
        kind=CONTENT,
        memories="every memory",
        where="src/llama-context.cpp: state_seq_set_data",
        happens=(
            "Bytes that are left over after a restore are not looked at. A whole state read as a "
            "partial one restores the first part into the window part, and reports success."
        ),
        instead="The restore is refused.",
        remedy="Compare the number of bytes read with the size of the state; keep the flags with it.",
    ),
    Hazard(
        id="device-state-replaced",
        kind=CONTENT,
        memories="every memory",
        where="src/llama-context.cpp: state_seq_get_data",
        happens=(
            "Rows kept on the device are stored under the id of the saved sequence. Saving it again "
            "replaces them; the older host part still looks valid and is restored with the newer "
            "rows, or ends the process."
        ),
        instead="The older state is known to be invalid.",
        remedy="Keep only one on-device state per sequence.",
    ),
    Hazard(
        id="rollback-refused",
        kind=CONTENT,
        memories="memories with recurrent states, DeepSeek-V4",
        where="src/llama-context.cpp: decode",
        happens=(
            "After a failed ubatch its positions are removed. A recurrent state cannot forget them "
            "and refuses; the answer is not looked at, and the tokens that were never computed stay "
            "in every part."
        ),
        instead="A failed ubatch leaves no token behind.",
        remedy="After a return value other than 0 remove the sequence, or restore a state saved before.",
    ),
    Hazard(
        id="rollback-first-owner-only",
        kind=CONTENT,
        memories="every memory, unified",
        where="src/llama-context.cpp: decode",
        happens=(
            "Of a token shared by several sequences, the rollback of a failed ubatch removes only "
            "the sequence that comes first in a hash set. The others keep cells whose rows were "
            "never computed."
        ),
        instead="The tokens are removed from all their sequences.",
        remedy="After a return value other than 0 remove the positions from every sequence of the batch.",
    ),
    Hazard(
        id="rollback-removes-older-tokens",
        kind=CONTENT,
        memories="every memory with an attention cache",
        where="src/llama-context.cpp: decode",
        happens=(
            "The rollback of a failed ubatch removes everything from its smallest position on. "
            "Tokens that were there before at the same or a later position go with it."
        ),
        instead="Only the tokens of the failed ubatch are removed.",
        remedy="Do not let positions repeat across ubatches.",
    ),
    Hazard(
        id="shared-token-sees-one-history",
        kind=CONTENT,
        memories="unified caches",
        where="src/llama-batch.cpp: init; src/llama-kv-cache.cpp: set_input_kq_mask",
        happens=(
            "A token of several sequences attends as the one that comes first in a hash set. The "
            "check compares only where the sequences begin and end: with different tokens in "
            "between, the others get keys and values computed from a history that is not theirs."
        ),
        instead="The batch is refused.",
        remedy="Share tokens only between sequences that were copied from one another.",
    ),
    Hazard(
        id="ubatch-exceeds-limit",
        kind=ANSWER,
        memories="memories that use equal splits",
        where="src/llama-batch.cpp: split_equal",
        happens="A batch of more sequences than n_ubatch yields a ubatch of n_ubatch + 1 tokens.",
        instead="No ubatch exceeds n_ubatch.",
        remedy="Set n_ubatch to at least the number of sequences decoded together.",
    ),
    Hazard(
        id="shift-requantizes-all",
        kind=NUMBERS,
        memories="caches with quantised keys",
        where="src/llama-kv-cache.cpp: build_graph_shift",
        happens=(
            "A pending shift turns every row, those that did not move by 0: they are dequantised "
            "and quantised again."
        ),
        instead="Only rows that moved are rewritten.",
        remedy="Keep keys as f16 if positions are shifted often.",
    ),
    Hazard(
        id="indexer-keys-turned-as-stored",
        kind=NUMBERS,
        memories="dsa, dsa_iswa",
        where="src/llama-kv-cache-dsa.cpp; src/llama-kv-cache.cpp: build_graph_shift",
        happens=(
            "Indexer keys are stored rotated by a Hadamard matrix, with rope in the leading "
            "dimensions. A shift turns the trailing dimensions of the rotated row: the keys are no "
            "longer those of any position. Those of HY-V4 are not rotated and have rope in the trailing "
            "dimensions, but pair neighbours there, while the shift pairs halves."
        ),
        instead="The row is rotated back, turned, and rotated again.",
        remedy="Do not shift: remove and decode the tokens again.",
    ),
    # -- windows -----------------------------------------------------------------------------------
    Hazard(
        id="shift-although-cannot",
        kind=ANSWER,
        memories="iswa, dsa_iswa, hybrid_iswa",
        where="src/llama-kv-cache-iswa.cpp: get_can_shift, seq_add",
        happens=(
            "can_shift says no where the two caches differ in size, but seq_add is carried out "
            "nevertheless, in both."
        ),
        instead="can_shift says yes, or seq_add refuses.",
        remedy="None needed; the positions do move.",
    ),
    Hazard(
        id="trimmed-past-window",
        kind=CONTENT,
        memories="iswa, dsa_iswa, hybrid_iswa, dsv4",
        where="src/llama-kv-cache-iswa.cpp: seq_rm, seq_cp",
        happens=(
            "Going back in a sequence, by seq_rm, by copying its beginning, or by the rollback of a "
            "failed ubatch, reaches positions whose window has been forgotten. The next token "
            "attends to less than it should; if nothing is left in the window cache, the memory "
            "says the sequence is empty, and accepts any position."
        ),
        instead="The operation is refused, or the memory says from where the sequence can be continued.",
        remedy="Compare seq_pos_min with what the window needs, and decode from there; or use swa_full.",
    ),
    Hazard(
        id="window-forgets-sequence",
        kind=CONTENT,
        memories="iswa, dsa_iswa, hybrid_iswa",
        where="src/llama-kv-cache.cpp: find_slot, apply_ubatch",
        happens=(
            "Where the next token would see nothing of its sequence (at the end of a chunk, or with "
            "a window of 1), another sequence may take all of its cells. The memory then says that "
            "the sequence is empty, although the base cache holds it, and a batch may start at any "
            "position."
        ),
        instead="The last cell of a sequence stays, because it says where the sequence ends.",
        remedy="Keep count of positions yourself.",
    ),
    Hazard(
        id="purge-survives-refusal",
        kind=CONTENT,
        memories="iswa, dsa_iswa, hybrid_iswa",
        where="src/llama-kv-cache.cpp: prepare, apply_ubatch",
        happens=(
            "Looking for slots overwrites window cells on trial and removes older positions with "
            "them. A refused batch puts back the overwritten cells, not the removed ones."
        ),
        instead="A refused batch leaves no trace.",
        remedy="Decode in smaller batches, so that none is refused.",
    ),
    Hazard(
        id="purge-blinds-earlier-ubatch",
        kind=CONTENT,
        memories="iswa, dsa_iswa, hybrid_iswa",
        where="src/llama-kv-cache.cpp: prepare",
        happens=(
            "Slots of all ubatches are found before the first is computed. What is removed for a "
            "later ubatch is missing when the earlier ones are computed, although their window "
            "still reaches there."
        ),
        instead="Every ubatch sees what its window reaches.",
        remedy="Use a larger n_ubatch, or swa_full.",
    ),
    Hazard(
        id="eviction-blinds-own-ubatch",
        kind=CONTENT,
        memories="iswa, dsa_iswa, hybrid_iswa",
        where="src/llama-kv-cache.cpp: find_slot",
        happens=(
            "A window cell is free once the position after the last one no longer sees it. A token "
            "at a repeated position may still see it, and be placed into it."
        ),
        instead="A cell is free once no token of the ubatch sees it.",
        remedy="Do not let positions repeat.",
    ),
    Hazard(
        id="partial-state-alone",
        kind=CONTENT,
        memories="iswa, dsa_iswa, hybrid_iswa, dsv4",
        where="src/llama-kv-cache-iswa.cpp: state_read",
        happens=(
            "A state of the window part alone is restored although the other part does not hold the "
            "same tokens."
        ),
        instead="The restore is refused.",
        remedy=(
            "Restore partial states only into the sequence they were taken from, with its positions "
            "still there."
        ),
    ),
    Hazard(
        id="base-keeps-later-positions",
        kind=CONTENT,
        memories="iswa, dsa_iswa, hybrid_iswa, dsv4",
        where="src/llama-kv-cache-iswa.cpp: state_read; src/llama-kv-cache-dsv4.cpp: state_read",
        happens=(
            "A partial state takes the window part back, not the base part, whose later positions "
            "stay. The memory's last position is that of the window: decoding goes on there, and "
            "the base holds positions twice."
        ),
        instead="The later positions are removed.",
        remedy="After a partial restore remove everything beyond its last position.",
    ),
    Hazard(
        id="half-restored",
        kind=CONTENT,
        memories="every composite",
        where=(
            "src/llama-kv-cache-iswa.cpp, -dsa.cpp, -msa.cpp, -dsv4.cpp, llama-memory-hybrid*.cpp: state_read"
        ),
        happens=(
            "When one part of a state cannot be restored, the parts before it keep what they "
            "restored and those after it keep what they had."
        ),
        instead="A refused restore changes nothing, or removes the sequence from every part.",
        remedy="Remove the sequence after a refused restore; in kvsim: strict=True.",
    ),
    # -- recurrent states and hybrids --------------------------------------------------------------
    Hazard(
        id="state-keeps-removed",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: seq_rm",
        happens=(
            "Removing positions that do not reach the end of a sequence answers true and changes "
            "nothing: the state has still seen the tokens."
        ),
        instead="The removal is refused.",
        remedy="Decode the sequence again without the tokens.",
    ),
    Hazard(
        id="remove-any-refused",
        kind=ANSWER,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: seq_rm",
        happens="seq_rm of every sequence (-1) answers false and removes nothing.",
        instead="The positions are removed from every sequence.",
        remedy="Remove from each sequence, or clear.",
    ),
    Hazard(
        id="state-knows-last-position-only",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: seq_add, seq_div",
        happens=(
            "A state has one position, that of its last token. Moving a part of a sequence, or dividing its "
            "positions, leaves no trace of where the other tokens are: later removals and rollbacks go by "
            "the last position alone."
        ),
        instead="The move is refused.",
        remedy="Move all positions of a sequence alike.",
    ),
    Hazard(
        id="state-copy-ignores-range",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: seq_cp",
        happens="A copy always shares the whole state, whatever range was given.",
        instead="The copy is refused unless it takes the whole sequence.",
        remedy="Copy whole sequences.",
    ),
    Hazard(
        id="unknown-sequence-ignored",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: seq_cp",
        happens=(
            "A copy from or to a sequence that the recurrent part has no cell for is silently skipped; in a "
            "hybrid the attention part carries it out."
        ),
        instead="The copy is refused.",
        remedy="Use ids below n_seq_max.",
    ),
    Hazard(
        id="state-moves-for-all-owners",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: seq_add, seq_div",
        happens="Sequences that share a state share its position: moving one moves all.",
        instead="Only the sequence that was named moves.",
        remedy="Decode a token of its own in each sequence before shifting.",
    ),
    Hazard(
        id="state-position-below-zero",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: seq_add",
        happens=(
            "Moving positions below 0 drops the tokens from attention, while the state keeps them; "
            "its own position may become negative, and then seq_rm no longer finds it."
        ),
        instead="The move is refused.",
        remedy="Do not shift sequences of recurrent models below 0.",
    ),
    Hazard(
        id="rollback-beyond-snapshot",
        kind=CONTENT,
        memories="memories with rollback snapshots",
        where="src/llama-memory-recurrent.cpp, src/llama-kv-cache-dsv4.cpp: seq_rm",
        happens=(
            "Snapshots of the last tokens are taken only within one ubatch. A rollback by more "
            "tokens than the last ubatch of the sequence had (less one) is accepted, and the state "
            "goes back to an older snapshot."
        ),
        instead="The rollback is refused.",
        remedy="Roll back fewer tokens than the last batch had, or restore a saved state.",
    ),
    Hazard(
        id="rollback-counts-positions",
        kind=CONTENT,
        memories="memories with rollback snapshots",
        where="src/llama-memory-recurrent.cpp: seq_rm",
        happens=(
            "The depth of a rollback is a difference of positions, but snapshots are one per token. Where "
            "positions repeat, skip, or were moved in part, the state goes back by another number of tokens."
        ),
        instead="The rollback is refused, or counts tokens.",
        remedy="Do not shift or repeat positions in sequences that are rolled back.",
    ),
    Hazard(
        id="rollback-moves-other-owners",
        kind=CONTENT,
        memories="memories with rollback snapshots",
        where="src/llama-memory-recurrent.cpp: seq_rm",
        happens=(
            "Rolling back one owner of a shared state moves its position for all, but only that "
            "owner's rollback is noted, and it takes effect only if it is the smallest id of the "
            "cell."
        ),
        instead="Only the sequence that was named goes back.",
        remedy="Do not roll back sequences that share a state.",
    ),
    Hazard(
        id="copy-ignores-rollback",
        kind=CONTENT,
        memories="memories with rollback snapshots, dsv4",
        where="src/llama-memory-recurrent.cpp: seq_cp; src/llama-kv-cache-dsv4.cpp: seq_cp",
        happens="A copy made while a rollback is pending gets the state as it was before the rollback.",
        instead="The copy is rolled back too.",
        remedy="Decode a token between rolling back and copying.",
    ),
    Hazard(
        id="stale-rollback-kept",
        kind=CONTENT,
        memories="memories with rollback snapshots",
        where="src/llama-memory-recurrent.cpp: seq_keep, seq_rm",
        happens=(
            "A sequence that lost its state by seq_keep, or by a removal with an end, keeps its "
            "pending rollback."
        ),
        instead="The rollback is forgotten with the state.",
        remedy="Remove the sequence with p0 = p1 = -1 before it is used again.",
    ),
    Hazard(
        id="stale-rollback-used",
        kind=CONTENT,
        memories="memories with rollback snapshots",
        where="src/llama-memory-recurrent.h: s_copy",
        happens=(
            "A fresh sequence with a stale pending rollback starts from an old snapshot instead of from zero."
        ),
        instead="A fresh sequence starts from zero.",
        remedy="Remove the sequence with p0 = p1 = -1 before it is used again.",
    ),
    Hazard(
        id="failed-ubatch-strands-states",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: find_slot",
        happens=(
            "Placing a ubatch brings its states together and says that all cells in between hold their own "
            "state again, which its graph is to see to. If the graph does not run, the states of sequences "
            "that were not even in the batch are not where their cells say."
        ),
        instead="The cells point to the states until the graph has moved them.",
        remedy="After a failed decode restore every sequence from a saved state.",
    ),
    Hazard(
        id="fresh-state-not-zero",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: find_slot",
        happens=(
            "Empty cells between those of a ubatch are zeroed by its graph and marked as holding a state. If "
            "the graph does not run, the mark stays: a fresh sequence placed there goes on from whatever the "
            "row held."
        ),
        instead="A fresh sequence starts from zero.",
        remedy="After a failed decode clear the memory, with its data.",
    ),
    Hazard(
        id="state-skips-positions",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: find_slot",
        happens="A batch that does not go on where the state stands is only warned about.",
        instead="The batch is refused.",
        remedy="Go on at the position after the last one.",
    ),
    Hazard(
        id="ownerless-state",
        kind=CONTENT,
        memories="memories with recurrent states",
        where="src/llama-memory-recurrent.cpp: state_read",
        happens=(
            "A sequence's state that is restored as a whole one (sequence -1) fills a cell without "
            "an owner; the next fresh sequence placed there goes on from that state."
        ),
        instead="The restore is refused.",
        remedy="Restore sequence states into a sequence.",
    ),
    Hazard(
        id="halves-disagree",
        kind=ANSWER,
        memories="hybrid, hybrid_iswa, hybrid_idx",
        where="src/llama-memory-hybrid.cpp: seq_pos_max",
        happens=(
            "One half holds the sequence, the other does not. The memory says that it ends at -1, "
            "and the next batch may start anywhere, on top of the tokens that are still there."
        ),
        instead="Both halves hold the same.",
        remedy="Remove the sequence with p0 = p1 = -1 before it is used again.",
    ),
    Hazard(
        id="partial-failure-drops-all",
        kind=CONTENT,
        memories="hybrid_idx",
        where="src/llama-memory-hybrid-idx.cpp: state_read",
        happens=(
            "A partial state holds the recurrent part only, but if it cannot be restored the "
            "sequence is dropped from attention and indexer too."
        ),
        instead="A refused restore changes nothing.",
        remedy="Check partial states before restoring; in kvsim: strict=True.",
    ),
    Hazard(
        id="indexer-slots-diverge",
        kind=CONTENT,
        memories="dsa, dsa_iswa, msa",
        where="src/llama-kv-cache-dsa.cpp: init_batch",
        happens=(
            "The attention cache and its indexer look for slots independently. After a refused "
            "restore their cells differ, and what the indexer selects are other tokens than "
            "attention then reads."
        ),
        instead="The indexer takes the slots of the attention cache.",
        remedy="Clear the memory after a refused restore.",
    ),
    # -- DeepSeek-V4 -------------------------------------------------------------------------------
    Hazard(
        id="refuses-harmless-range",
        kind=ANSWER,
        memories="dsv4",
        where="src/llama-kv-cache-dsv4.cpp: seq_rm",
        happens="Any range with an end is refused, even one in which the sequence has no position.",
        instead="A removal of nothing answers true.",
        remedy="Remove with p1 = -1.",
    ),
    Hazard(
        id="rollback-consumed-early",
        kind=CONTENT,
        memories="dsv4",
        where="src/llama-kv-cache-dsv4.cpp: init_batch",
        happens=(
            "A pending rollback is forgotten when the slots of a batch have been found, before "
            "anything is computed. If the first ubatch fails, the rings stay as they were before "
            "the rollback."
        ),
        instead="The rollback stays pending until it has taken effect.",
        remedy="After a failed decode remove the sequence, or restore a state saved before.",
    ),
    Hazard(
        id="rollback-arms-uncomputed",
        kind=CONTENT,
        memories="memories with rollback snapshots, dsv4",
        where="src/llama-context.cpp: decode; src/llama-kv-cache-dsv4.cpp: seq_rm",
        happens=(
            "The rollback of a failed ubatch is accepted as if its tokens had reached the state. "
            "They had not, so the next decode goes back by as many tokens too far."
        ),
        instead="Only tokens that were computed are rolled back.",
        remedy="After a failed decode remove the sequence, or restore a state saved before.",
    ),
    Hazard(
        id="clearing-empties-queued-copy",
        kind=CONTENT,
        memories="dsv4",
        where="src/llama-kv-cache-dsv4.cpp: seq_rm, clear_compressed",
        happens=(
            "A copy of a sequence moves its compressed rows and rings at the next decode, but removing the "
            "source, or copying something over it, zeroes its rings at once: the copy then gets zeros."
        ),
        instead="Queued copies run before their source is cleared.",
        remedy="Decode once between copying a sequence and removing its source.",
    ),
    Hazard(
        id="compressed-rows-of-nothing",
        kind=CONTENT,
        memories="dsv4",
        where="src/llama-kv-cache-dsv4.cpp: dsv4_build_comp_plan",
        happens=(
            "Compressed rows are counted by position. A sequence that does not begin at 0, or has a "
            "gap, attends to rows of blocks that were never compressed, or only in part."
        ),
        instead="Only rows of complete blocks are visible.",
        remedy="Begin at 0 and leave no gaps.",
    ),
)
