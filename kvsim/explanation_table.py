"""llama.cpp's messages about its memory, explained; :mod:`kvsim.explain` searches them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """One message, or several that mean the same.

    ``messages`` are llama.cpp's texts with ``{}`` where it puts values, and for its return codes the words in
    which people ask; ``where`` says who writes or returns them.
    ``cause``, ``see`` (how to see it) and ``remedy`` are for whoever reads the message; ``trace`` is a
    recording, from the root of the project, whose operation ``at`` shows it (empty where none can: the
    process ends, or there is no context yet). ``failed``: something was refused or lost; otherwise it is a
    notice.
    """

    id: str
    messages: tuple[str, ...]
    where: str
    cause: str
    see: str
    remedy: str
    trace: str = ""
    at: int = 0
    failed: bool = True


_TRACES, _HAZARDS = "fixtures/traces", "fixtures/hazards"


def _returned(code: int) -> tuple[str, ...]:
    """A return code in the words in which people ask about it."""
    words = (
        "llama_decode returned",
        "llama_decode() returned",
        "llama_decode return",
        "llama_decode returns",
    )
    return tuple(f"{asked} {code}" for asked in words)


EXPLANATIONS = (
    # -- what llama_decode returns -----------------------------------------------------------------
    Explanation(
        id="decode-returned-1",
        messages=_returned(1),
        where="src/llama-context.cpp: decode",
        cause=(
            "No slot: before the first ubatch was computed, one of them found too few cells, or the batch "
            "could not be split (a token of several sequences in a cache with one stream per sequence). No "
            "token was placed; pending shifts and copies were applied, and window cells that the search gave "
            "up are gone."
        ),
        see=(
            "The message before it: 'failed to find a memory slot' (no-slot) or 'sequential split is not "
            "supported' (coupled-needs-unified). Used cells plus the tokens of the batch exceed the size."
        ),
        remedy=(
            "Remove finished sequences or shift the longest, then decode the same batch again; or decode it in "
            "smaller parts, or make the context larger (-c)."
        ),
        trace=f"{_TRACES}/kv/llama-h32-uni-c1024-u16-s4-f16-07.jsonl.gz",
        at=4,
    ),
    Explanation(
        id="decode-returned-2",
        messages=_returned(2),
        where="src/llama-context.cpp: decode",
        cause=(
            "The abort callback stopped the computation of a ubatch. The ubatches before it stay in the "
            "memory; of the aborted one the positions are removed, so far as the memory can (rolled-back)."
        ),
        see="The last positions of the sequences: they are those of the last ubatch that was computed.",
        remedy=(
            "Ask llama_memory_seq_pos_max where each sequence ends and go on from there. With recurrent or "
            "hybrid memories restore a checkpoint, or decode the sequence anew."
        ),
        trace=f"{_TRACES}/kv/llama-h32-str-c256-u32-s1-f16-06.jsonl.gz",
        at=40,
    ),
    Explanation(
        id="decode-returned-minus-1",
        messages=_returned(-1),
        where="src/llama-context.cpp: decode",
        cause=(
            "The batch was refused: it has no tokens, names a sequence or a token id that does not exist, or "
            "its positions do not go on where the sequence ends. Nothing was changed."
        ),
        see="The message before it says which rule the batch violates.",
        remedy="Correct the batch; the same one is refused again. Explain the message before it.",
        trace=f"{_TRACES}/kv/llama-h32-uni-c1024-u16-s4-f16-07.jsonl.gz",
        at=10,
    ),
    Explanation(
        id="decode-returned-minus-2",
        messages=_returned(-2),
        where="src/llama-context.cpp: decode",
        cause=(
            "There was no room for the graph of a ubatch or for the outputs, or preparing the memory failed in "
            "a way that more cells do not help. The ubatches before it stay; the positions of the failed one "
            "are removed, so far as the memory can."
        ),
        see="The lines of the allocator above; then 'removing memory module entries' (rolled-back).",
        remedy=(
            "Lower n_ubatch (-ub) or the context, or the layers on the device. Then ask "
            "llama_memory_seq_pos_max where each sequence ends and go on from there."
        ),
    ),
    Explanation(
        id="decode-returned-minus-3",
        messages=_returned(-3),
        where="src/llama-context.cpp: decode",
        cause=(
            "The computation of a ubatch failed, or its graph could not be built. The ubatches before it stay; "
            "the positions of the failed one are removed, so far as the memory can."
        ),
        see="'failed to compute graph' and the lines of the backend above (compute-failed).",
        remedy=(
            "Mostly the device has run out of memory: lower n_ubatch (-ub) or the context. Then ask "
            "llama_memory_seq_pos_max where each sequence ends; a backend that failed once may need a new "
            "context."
        ),
    ),
    # -- no room -----------------------------------------------------------------------------------
    Explanation(
        id="no-slot",
        messages=(
            "failed to find a memory slot for batch of size {}",
            "failed to prepare attention ubatches",
            "failed to prepare attention base ubatches",
            "failed to prepare attention swa ubatches",
            "failed to prepare recurrent ubatches",
        ),
        where="src/llama-context.cpp: decode; src/llama-memory-hybrid.cpp: init_batch",
        cause=(
            "llama_decode returned 1. All ubatches of the batch must find cells before the first is "
            "computed, and for one of them too few cells were empty or out of the window. Nothing was"
            " changed but for window cells that the search had already given up."
        ),
        see=(
            "The line of the slot search just above (LLAMA_KV_CACHE_DEBUG=1) has used and size: used "
            "plus the tokens of the batch exceeds size. In a cache with streams look at the stream of"
            " the sequence, not at the sum."
        ),
        remedy=(
            "Remove finished sequences (seq_rm, idle slots), shift or shorten the longest one, decode"
            " a smaller batch, or make the context larger (-c). With streams each sequence has n_ctx "
            "/ n_seq_max cells: a unified cache (-kvu) lets one sequence use what the others leave."
        ),
        trace=f"{_TRACES}/kv/llama-h32-uni-c1024-u16-s4-f16-07.jsonl.gz",
        at=4,
    ),
    Explanation(
        id="no-slot-retried",
        messages=("failed to find free space in the KV cache, retrying with smaller batch size",),
        where="tools/server/server-context.cpp: decode",
        cause=(
            "The server's batch found no slot (llama_decode returned 1). The server removes an idle "
            "slot if there is one, else halves the batch, and tries again."
        ),
        see=(
            "The message repeats with n_batch falling by halves. If it reaches 1 the server gives up "
            "with 'Context size has been exceeded.'; if it stops earlier, the batch was split and all"
            " is well."
        ),
        remedy=(
            "Now and then it is harmless. Often: the cells of all slots together are too few; raise "
            "-c, lower --parallel, or turn on context shift where the memory can shift."
        ),
        trace=f"{_TRACES}/msa/minimax-m3-str-c1024-u64-s1-q8_0-02.jsonl.gz",
        at=7,
    ),
    Explanation(
        id="context-exceeded",
        messages=("Context size has been exceeded.",),
        where="tools/server/server-context.cpp: decode",
        cause=(
            "Not even one token found a cell. All requests in progress fail and their slots are "
            "cleared, because the server does not keep track of how much of the batch went through."
        ),
        see=("used equals size in the last line of the slot search, with no idle slot left to remove."),
        remedy=(
            "Raise -c, lower --parallel, limit n_predict, or turn on --context-shift. With a unified "
            "cache one long request can starve the others: --kv-unified-per-slot bounds it."
        ),
        trace=f"{_TRACES}/kv/llama-h32-uni-c1024-u16-s4-f16-07.jsonl.gz",
        at=26,
    ),
    Explanation(
        id="ubatch-larger-than-cache",
        messages=("n_tokens = {} > size = {}",),
        where="src/llama-kv-cache.cpp: find_slot",
        cause=("A ubatch has more tokens than a stream of this cache has cells: it can never be placed."),
        see="size in the line of the slot search is smaller than n_ubatch.",
        remedy=(
            "Lower n_ubatch (-ub), or enlarge the context: a window cache has the window plus "
            "n_ubatch cells, but never more than the context per sequence."
        ),
    ),
    Explanation(
        id="too-few-states",
        messages=("seq_id={} >= n_seq_max={} Try using a bigger --parallel value",),
        where="src/llama-memory-recurrent.cpp: find_slot",
        cause=(
            "A recurrent memory has one state per configured sequence, and the batch names a sequence beyond."
        ),
        see="The id in the message against n_seq_max in the log of the context's creation.",
        remedy="Raise n_seq_max (--parallel), or use ids from 0 to n_seq_max - 1.",
        trace=f"{_TRACES}/recurrent/mamba2-uni-c256-u16-s1-f16-09.jsonl.gz",
        at=49,
    ),
    # -- the batch is refused ----------------------------------------------------------------------
    Explanation(
        id="inconsistent-positions",
        messages=(
            "the tokens of sequence {} in the input batch have inconsistent sequence positions",
            (
                "the last position stored in the memory module of the context (i.e. the KV cache) for"
                " sequence {} is X = {}"
            ),
            "the tokens for sequence {} in the input batch have a starting position of Y = {}",
            "it is required that the sequence positions remain consecutive: Y = X + 1",
        ),
        where="src/llama-batch.cpp: init",
        cause=(
            "llama_decode returned -1 and did nothing: the batch starts at position Y, while the "
            "sequence ends at X in the memory, and Y is not X + 1. The caller's count of tokens and "
            "the memory's differ: after a removal or a shift that only one side carried out, a failed"
            " decode whose tokens were counted, a draft that was not taken back, or a sequence that "
            "was not cleared before it was used again."
        ),
        see=(
            "X and Y in the two lines that follow. Y <= X: the tokens are there already (not "
            "removed); Y > X + 1: tokens are missing (removed, refused, or decoded into another "
            "sequence)."
        ),
        remedy=(
            "Ask llama_memory_seq_pos_max before decoding and go on at the next position; to go back,"
            " seq_rm(seq, Y, -1) first and look at its answer, since recurrent and hybrid memories "
            "may refuse it; to begin anew, seq_rm(seq, -1, -1)."
        ),
        trace=f"{_TRACES}/kv/llama-h32-uni-c1024-u16-s4-f16-07.jsonl.gz",
        at=10,
    ),
    Explanation(
        id="inconsistent-positions-mrope",
        messages=(
            "for M-RoPE, it is required that the position satisfies: X < Y",
            "for M-RoPE, it is required that the position satisfies: X <= Y",
        ),
        where="src/llama-batch.cpp: init",
        cause=(
            "With M-RoPE positions may jump forward (an image takes fewer positions than tokens) but "
            "not back: the batch begins before the last position that the sequence has. llama_decode "
            "returned -1 and did nothing."
        ),
        see="X and Y in the lines above: Y does not lie beyond X.",
        remedy=(
            "Count positions, not tokens: after an image go on at its largest coordinate plus one. To"
            " go back, remove the positions first."
        ),
        trace=f"{_TRACES}/kv/qwen2vl-str-c1024-u16-s1-f16-10.jsonl.gz",
        at=11,
    ),
    Explanation(
        id="positions-not-continuous",
        messages=("sequence {} positions are not continuous",),
        where="src/llama-batch.cpp: init",
        cause=("Within the batch the positions of a sequence leave some out. llama_decode returned -1."),
        see="Sort the positions that the batch has for the sequence: one or more are missing.",
        remedy=(
            "Number the tokens of a sequence without gaps; shift what is in the memory with seq_add instead."
        ),
        trace=f"{_TRACES}/kv/llama-h32-str-c256-u32-s1-f16-06.jsonl.gz",
        at=5,
    ),
    Explanation(
        id="positions-decrease",
        messages=("sequence {} positions are decreasing (not allowed)",),
        where="src/llama-batch.cpp: init",
        cause=(
            "Within the batch a position of a sequence is smaller than the one before. llama_decode "
            "returned -1."
        ),
        see="The order of the tokens in the batch.",
        remedy="Add the tokens of each sequence in the order of their positions.",
        trace=f"{_TRACES}/kv/llama-str-c1024-u64-s1-q8_0-02.jsonl.gz",
        at=26,
    ),
    Explanation(
        id="coupled-diverged",
        messages=("sequence {} is coupled to {} in the input batch, but have divereged",),
        where="src/llama-batch.cpp: init",
        cause=(
            "A token of the batch belongs to several sequences, but these end at different positions "
            "in the memory, so it cannot continue all of them. llama_decode returned -1."
        ),
        see="The last positions of the two sequences (the min/max lines of the slot search).",
        remedy=(
            "Share tokens only while the sequences are equal; from where they differ, decode for each alone."
        ),
        trace=f"{_TRACES}/kv/qwen2vl-str-c256-u64-s4-f16-08.jsonl.gz",
        at=95,
    ),
    Explanation(
        id="incompatible-sets",
        messages=("sequence {} belongs to incompatible sequence sets (not allowed)",),
        where="src/llama-batch.cpp: init",
        cause=(
            "A sequence comes alone, and later in the batch together with others: its set may become "
            "smaller within a batch, never larger or another. llama_decode returned -1."
        ),
        see="The sets of sequence ids of the tokens in order.",
        remedy=("First the shared tokens, then those of each sequence; or decode them as two batches."),
        trace=f"{_TRACES}/kv/llama-str-c256-u64-s8-f16-04.jsonl.gz",
        at=97,
    ),
    Explanation(
        id="invalid-sequence",
        messages=("invalid seq_id[{}][{}] = {} >= {}",),
        where="src/llama-batch.cpp: init",
        cause="A token names a sequence below 0 or not below n_seq_max. llama_decode returned -1.",
        see="The id in the message; n_seq_max is printed when the context is made.",
        remedy="Make the context with a larger n_seq_max (--parallel), or use ids below it.",
        trace=f"{_TRACES}/kv/llama-uni-c512-u16-s2-f16-01.jsonl.gz",
        at=13,
    ),
    Explanation(
        id="invalid-token",
        messages=("invalid token[{}] = {}",),
        where="src/llama-batch.cpp: init",
        cause=(
            "A token id is below 0 or not below the size of the vocabulary. llama_decode returned -1."
            " -1 is the mark of 'no token': often a sampled id that was never filled in."
        ),
        see="The id in the message.",
        remedy="Check ids before adding them; do the tokenizer and the model belong together?",
        trace=f"{_TRACES}/kv/qwen2vl-uni-c256-u32-s4-f16-11.jsonl.gz",
        at=19,
    ),
    Explanation(
        id="empty-batch",
        messages=("n_tokens == 0",),
        where="src/llama-context.cpp: decode",
        cause="The batch has no tokens. llama_decode returned -1.",
        see="A prompt that was fully taken from the cache leaves nothing to decode.",
        remedy=("Decode at least one token; if all of a prompt is cached, decode its last token again."),
        trace=f"{_TRACES}/iswa/gemma3n-str-c256-u16-s2-f16-10.jsonl.gz",
        at=23,
    ),
    Explanation(
        id="coupled-needs-unified",
        messages=(
            (
                "sequential split is not supported when there are coupled sequences in the input "
                "batch (you may need to use the -kvu flag)"
            ),
        ),
        where="src/llama-batch.cpp: split_equal",
        cause=(
            "A token of several sequences has no single stream to go to. A cache with one stream per "
            "sequence cannot take it."
        ),
        see="kv_unified = false in the log of the context's creation; the batch shares tokens.",
        remedy=(
            "Use a unified cache (-kvu), or decode the shared tokens once and copy the sequence with seq_cp."
        ),
        trace=f"{_TRACES}/iswa/gemma2-str-c256-u32-s4-f16-swafull-00.jsonl.gz",
        at=46,
    ),
    Explanation(
        id="positions-skip-state",
        messages=("non-consecutive token position {} after {} for sequence {} with {} new tokens",),
        where="src/llama-memory-recurrent.cpp: find_slot",
        cause=(
            "The batch does not go on where the recurrent state stands. It is only warned about: the "
            "state takes the tokens as if they followed."
        ),
        see="The two positions in the message; the attention half may well be at the right one.",
        remedy=(
            "Treat it as an error: the state and the positions have parted. Remove the sequence and "
            "decode it again, or restore it from a checkpoint."
        ),
        trace=f"{_HAZARDS}/state-skips-positions.jsonl.gz",
        at=1,
        failed=False,
    ),
    # -- a decode fails on the way -----------------------------------------------------------------
    Explanation(
        id="rolled-back",
        messages=("removing memory module entries for seq_id = {}, pos = [{}, +inf)",),
        where="src/llama-context.cpp: decode",
        cause=(
            "A ubatch was aborted or failed (llama_decode returned 2, -2 or -3). Its positions are "
            "removed; the ubatches before it stay. Of a shared token only the first owner is removed,"
            " a recurrent state cannot go back at all, and older tokens at the same positions go too."
        ),
        see="The last positions afterwards: they are those of the last ubatch that was computed.",
        remedy=(
            "Ask llama_memory_seq_pos_max where each sequence now ends and go on from there. With "
            "recurrent or hybrid memories restore a checkpoint, or decode the sequence anew."
        ),
        trace=f"{_TRACES}/kv/llama-h32-str-c256-u32-s1-f16-06.jsonl.gz",
        at=40,
    ),
    Explanation(
        id="compute-failed",
        messages=(
            "failed to compute graph, compute status: {}",
            "failed to allocate graph",
            "compute failed while preparing batch of size {}",
            "Compute error.",
        ),
        where="src/llama-context.cpp: process_ubatch, decode",
        cause=(
            "The graph of a ubatch found no memory or its computation failed (an out-of-memory "
            "device, most often). llama_decode returned -2 or -3 after the ubatches before it went "
            "through."
        ),
        see="The lines of the backend above; then 'removing memory module entries'.",
        remedy=("Lower n_ubatch or the context, or the number of layers on the device; then decode again."),
        trace=f"{_TRACES}/iswa/gemma2-str-c1024-u64-s1-q8_0-02.jsonl.gz",
        at=16,
    ),
    Explanation(
        id="update-failed",
        messages=(
            "failed to apply memory update",
            "failed to prepare memory update",
            "failed to compute K-shift",
            "failed to allocate compute graph for K-shift",
        ),
        where="src/llama-context.cpp: memory_update; src/llama-kv-cache.cpp: update",
        cause=(
            "Pending shifts or copies could not be carried out before the decode, for lack of memory "
            "most often."
        ),
        see="Positions have moved already, the stored keys have not been turned.",
        remedy=("Free memory and clear the sequence; what it holds from here on is not to be trusted."),
        trace=f"{_HAZARDS}/save-before-shift.jsonl.gz",
        at=2,
    ),
    # -- windows and recurrent states --------------------------------------------------------------
    Explanation(
        id="full-reprocessing",
        messages=(
            (
                "forcing full prompt re-processing due to lack of cache data (likely due to SWA or "
                "hybrid/recurrent memory"
            ),
            "failed to truncate tokens with position >= {} - clearing the memory",
        ),
        where="tools/server/server-context.cpp: pre_decode",
        cause=(
            "The new prompt shares a beginning with the old one, but the memory cannot go back to "
            "where they part: a window cache has forgotten the older tokens, a recurrent state has "
            "only its last position. No checkpoint lies early enough, so the whole prompt is decoded "
            "again."
        ),
        see=(
            "pos_min of the sequence lies beyond the point where the prompts part, less the window; "
            "for a recurrent memory pos_min is its last position."
        ),
        remedy=(
            "Keep more checkpoints (--ctx-checkpoints), or the whole window cache (--swa-full, at the"
            " price of its memory); keep the beginning of the prompt the same (no time stamps in "
            "system prompts, no edited history)."
        ),
        trace=f"{_HAZARDS}/trimmed-past-window.jsonl.gz",
        at=2,
        failed=False,
    ),
    Explanation(
        id="checkpoint-erased",
        messages=(
            "erasing old context checkpoint (pos_min = {}, pos_max = {}",
            "erased invalidated context checkpoint (pos_min = {}, pos_max = {}",
        ),
        where="tools/server/server-context.cpp: create_checkpoint, pre_decode",
        cause=(
            "The list of checkpoints is full, or the prompt parted before this one. Checkpoints are "
            "the only way back for window and recurrent memories."
        ),
        see="Followed later by 'forcing full prompt re-processing', if none early enough is left.",
        remedy=(
            "Raise --ctx-checkpoints if prompts are often edited far back; each costs what the line says."
        ),
        trace=f"{_HAZARDS}/partial-state-alone.jsonl.gz",
        at=3,
        failed=False,
    ),
    Explanation(
        id="purged",
        messages=("purging positions [{}, {}] of sequence {} from KV cache",),
        where="src/llama-kv-cache.cpp: apply_ubatch",
        cause=(
            "A window cell of a sequence was overwritten, so all older positions of it are removed "
            "too: what a cache holds of a sequence has no gaps."
        ),
        see="min of that sequence jumps in the next line of the slot search.",
        remedy=("None is needed; but the sequence can no longer be cut back to before these positions."),
        trace=f"{_HAZARDS}/purge-survives-refusal.jsonl.gz",
        at=3,
        failed=False,
    ),
    Explanation(
        id="full-size-window",
        messages=("using full-size SWA cache",),
        where="src/llama-kv-cache-iswa.cpp",
        cause=(
            "swa_full was asked for: the window cache keeps every token, although its layers see a "
            "window only."
        ),
        see="Its size in the line that follows equals that of the other cache.",
        remedy=(
            "Leave --swa-full away to save the memory; prompts can then not be cut back beyond the window."
        ),
        trace=f"{_TRACES}/iswa/gemma2-str-c256-u32-s4-f16-swafull-00.jsonl.gz",
        at=1,
        failed=False,
    ),
    Explanation(
        id="slot-without-cells",
        messages=("pos_min == -1, but n_past > 0 - should not happen",),
        where="tools/server/server-context.cpp: pre_decode",
        cause=(
            "The server counts tokens of a slot that the memory no longer holds: a restore failed "
            "after the sequence was removed, or its cells went to another sequence. The server ends."
        ),
        see="Just before, a failed restore, a rollback, or a purge of that sequence.",
        remedy=(
            "Restart; then find the failing restore. Report it with the log from the load of the model on."
        ),
        trace=f"{_HAZARDS}/failed-restore-loses-sequence.jsonl.gz",
        at=3,
    ),
    # -- shifting ----------------------------------------------------------------------------------
    Explanation(
        id="context-shift",
        messages=("slot context shift, n_keep = {}, n_left = {}, n_discard = {}",),
        where="tools/server/server-context.cpp: pre_decode",
        cause=(
            "The slot is full: n_discard tokens after the first n_keep are removed and the rest moves"
            " down. Keys are turned to their new positions at the next decode; values, and all that "
            "was computed from the discarded tokens, stay."
        ),
        see=("min and max of the sequence: max falls by n_discard, cells with a pending shift appear."),
        remedy=(
            "It forgets the middle of the conversation. If that matters, raise the context, or turn "
            "context shift off and let requests end."
        ),
        trace=f"{_TRACES}/kv/llama-h32-str-c256-u32-s1-f16-06.jsonl.gz",
        at=20,
        failed=False,
    ),
    Explanation(
        id="cannot-shift",
        messages=(
            "ctx_shift is not supported by this context, it will be disabled",
            "cache_reuse is not supported by this context, it will be disabled",
            "cache reuse is not supported - ignoring n_cache_reuse = {}",
            "context shift is disabled",
            "The current KV cache / model configuration does not support K-shift",
        ),
        where="tools/server/server-context.cpp; src/llama-kv-cache.cpp: update",
        cause=(
            "Positions of stored keys cannot be moved in this memory: the window cache is smaller "
            "than the other one, positions are two-dimensional (M-RoPE), or the model turns keys in a"
            " way that cannot be added to."
        ),
        see="llama_memory_can_shift answers false.",
        remedy=(
            "With windows --swa-full makes both caches one size, and then they can shift. Otherwise "
            "limit the length of requests. Don't call seq_add where can_shift says no: it is carried "
            "out nevertheless."
        ),
        trace=f"{_HAZARDS}/shift-although-cannot.jsonl.gz",
        at=2,
    ),
    Explanation(
        id="shift-mrope-asserts",
        messages=(
            "seq_add() is only supported for n_pos_per_embd() == 1",
            "seq_div() is only supported for n_pos_per_embd() == 1",
        ),
        where="src/llama-kv-cache.cpp: seq_add, seq_div",
        cause=(
            "A model with M-RoPE has several positions per token; moving them is not implemented. The"
            " process ends."
        ),
        see="n_pos_per_embd of the model is 4.",
        remedy=("Ask llama_memory_can_shift first. Turn off context shift and prefix reuse by chunks."),
    ),
    Explanation(
        id="partial-copy-asserts",
        messages=("seq_cp() is only supported for full KV buffers",),
        where="src/llama-kv-cache.cpp: seq_cp",
        cause="Between streams a sequence can only be copied whole. The process ends.",
        see="kv_unified = false, and a range in seq_cp.",
        remedy=("Copy with p0 = p1 = -1 and remove what is not wanted, or use a unified cache (-kvu)."),
        trace=f"{_HAZARDS}/copy-ignores-range.jsonl.gz",
        at=2,
    ),
    Explanation(
        id="sequence-out-of-range",
        messages=(
            "GGML_ASSERT(seq_id >= 0 && (size_t) seq_id < seq_to_stream.size()) failed",
            "GGML_ASSERT(seq_id == -1 || (seq_id >= 0 && (size_t) seq_id < seq_to_stream.size())) failed",
            "GGML_ASSERT(seq_id_dst >= 0 && (size_t) seq_id_dst < seq_to_stream.size()) failed",
            "GGML_ASSERT(seq_id_src >= 0 && (size_t) seq_id_src < seq_to_stream.size()) failed",
        ),
        where="src/llama-kv-cache.cpp: seq_rm, seq_cp, seq_keep, seq_add, ...",
        cause=(
            "A call names a sequence that the memory does not know. With streams it knows n_seq_max "
            "of them, a unified cache knows 256. The process ends."
        ),
        see="The id that the caller passed; -1 for all sequences is allowed in seq_rm only.",
        remedy="Raise n_seq_max, or check ids before the call.",
    ),
    # -- saving and restoring ----------------------------------------------------------------------
    Explanation(
        id="restore-failed",
        messages=(
            "failed to restore kv cache",
            "failed to restore sequence state",
            "error loading state: {}",
            "error loading session file: {}",
            "error loading sequence state file: {}",
            "failed to load prompt from cache",
            "Unable to restore slot: {}",
        ),
        where="src/llama-kv-cache.cpp: state_read; src/llama-context.cpp: state_*",
        cause=(
            "A saved state was refused: too few free cells, or it is of another context (cells, "
            "streams, types, layers, rotation), or its bytes are damaged. The line above says which. "
            "The target sequence was removed before the state was read: it is gone."
        ),
        see="The error just above; the sequence has no position afterwards (-1).",
        remedy=(
            "Look up the line above. Make room before restoring; restore with the parameters it was "
            "saved with (-c, -kvu, -ctk, -ctv, -fa); keep the tokens, so that the sequence can be "
            "decoded again."
        ),
        trace=f"{_TRACES}/kv/llama-str-c256-u32-s4-f16-00.jsonl.gz",
        at=33,
    ),
    Explanation(
        id="restore-no-cells",
        messages=(
            "not enough cells in kv cache",
            "failed to find {} available cells in kv cache",
            "failed to find available cells in kv cache",
            "not enough cells in kv cache to restore state ({} > {})",
        ),
        where="src/llama-kv-cache.cpp: state_read_meta; src/llama-memory-recurrent.cpp: state_read_meta",
        cause=(
            "The saved sequence has more cells than are free, or than the cache has. A sequence may "
            "be restored into scattered holes; a whole state needs the whole cache."
        ),
        see="used and size of the slot search; the number of cells is in the message.",
        remedy=(
            "Remove other sequences first, or restore into a context at least as large as the one "
            "that was saved. The target sequence is lost by then: decode it again."
        ),
        trace=f"{_TRACES}/dsa/deepseek32-uni-c256-u32-s8-f16-07.jsonl.gz",
        at=51,
    ),
    Explanation(
        id="restore-other-streams",
        messages=(
            "n_stream mismatch",
            "DSV4 full state stream count mismatch",
            "DSV4 sequence state stream count mismatch",
        ),
        where="src/llama-kv-cache.cpp: state_read",
        cause=(
            "The state was saved by a context with another number of streams: unified into separate "
            "or the reverse, or with another n_seq_max."
        ),
        see="kv_unified and n_seq_max of the context that saved and of the one that restores.",
        remedy="Restore with the same -kvu and --parallel; states of single sequences fit either.",
    ),
    Explanation(
        id="restore-other-layout",
        messages=(
            "mismatched layer count ({} instead of {})",
            "mismatched key type ({} != {}, layer {})",
            "mismatched key row size ({} != {}, layer {})",
            "mismatched value type ({} != {}, layer {})",
            "mismatched value row size ({} != {}, layer {})",
            "mismatched value element size ({} != {}, layer {})",
            "mismatched GQA embedding size ({} != {}, layer {})",
            "incompatible V transposition",
            "incompatible key rotation ({} instead of {})",
            "incompatible value rotation ({} instead of {})",
            "wrong model arch: '{}' instead of '{}'",
        ),
        where="src/llama-kv-cache.cpp: state_read_data",
        cause=(
            "The rows in the state are not laid out as in this cache: another model, other cache "
            "types, or V stored the other way round, which flash attention decides."
        ),
        see="The two values in the message: the first is the saved one for types and rows.",
        remedy=(
            "Restore with the same model, -ctk, -ctv and -fa. States are not portable between "
            "versions: key and value rotation came with quantised caches and change the layout."
        ),
    ),
    Explanation(
        id="restore-damaged",
        messages=(
            "unexpectedly reached end of buffer",
            "wrong sequence state magic",
            "unknown (magic, version) for session file: {}, {}",
            "unknown (magic, version) for sequence state file: {}, {}",
            "did not read all of the session file data! size {}, got {}",
            "invalid seq_id-agnostic kv cell",
            "token count in session file exceeded capacity! {} > {}",
            "token count in sequence state file exceeded capacity! {} > {}",
        ),
        where="src/llama-context.cpp: state_*; src/llama-kv-cache.cpp: state_read_meta",
        cause=(
            "The bytes end too early or are not a state of this version: a file cut short, a buffer "
            "smaller than what was written, another version of llama.cpp."
        ),
        see="The size of the file against the number of bytes that the save reported.",
        remedy=(
            "Keep the number of bytes that the save returned with the state; throw the state away if "
            "they differ."
        ),
        trace=f"{_TRACES}/kv/llama-uni-c512-u16-s2-f16-01.jsonl.gz",
        at=30,
    ),
    Explanation(
        id="rollback-indices-differ",
        messages=("cannot write shared recurrent state with different rollback indices",),
        where="src/llama-memory-recurrent.cpp: state_write",
        cause=(
            "Sequences share a recurrent cell and one of them was rolled back: the cell has no single"
            " content to save. The process ends."
        ),
        see=("A copy of a sequence, then a removal of the last tokens of one of the two, then a save."),
        remedy=(
            "Decode a token for each of them before saving, so that they part, or save sequence by sequence."
        ),
        trace=f"{_HAZARDS}/rollback-moves-other-owners.jsonl.gz",
        at=2,
    ),
    # -- how the context was made ------------------------------------------------------------------
    Explanation(
        id="context-rounded",
        messages=("n_ctx is not divisible by n_seq_max - rounding down to {}",),
        where="src/llama-context.cpp",
        cause="With one stream per sequence the cells are divided evenly, in multiples of 256.",
        see="n_ctx_seq in the lines that follow is what one sequence has.",
        remedy="Choose -c as a multiple of 256 times --parallel; or use a unified cache.",
        trace=f"{_TRACES}/kv/llama-str-c256-u32-s4-f16-00.jsonl.gz",
        at=0,
        failed=False,
    ),
    Explanation(
        id="beyond-training",
        messages=("n_ctx_seq ({}) > n_ctx_train ({}) -- possible training context overflow",),
        where="src/llama-context.cpp",
        cause="A sequence may become longer than any the model was trained on.",
        see="The two numbers.",
        remedy="Lower -c, or scale positions (RoPE scaling, YaRN).",
        failed=False,
    ),
    Explanation(
        id="quantised-v-needs-flash",
        messages=(
            "quantized V cache requires flash_attn to be enabled",
            "quantized V cache was requested, but this requires Flash Attention",
        ),
        where="src/llama-context.cpp",
        cause=(
            "Without flash attention V is stored transposed, one value at a time, which blocks of "
            "quants cannot do."
        ),
        see=("-ctv names a quantised type, and flash attention is off or not supported on the device."),
        remedy="Turn flash attention on (-fa on), or keep V in f16 (-ctv f16).",
    ),
    Explanation(
        id="no-speculation",
        messages=("speculative decoding not supported by this context",),
        where="tools/server/server-context.cpp",
        cause=(
            "Rejected draft tokens must be taken back, and this memory refuses to forget its last "
            "tokens: a recurrent state without snapshots."
        ),
        see="seq_rm of the last token answers false.",
        remedy=("Keep snapshots (n_rs_seq at least the length of a draft), or leave speculation off."),
        trace=f"{_TRACES}/recurrent/mamba-str-c1024-u64-s1-f16-02.jsonl.gz",
        at=4,
    ),
)
