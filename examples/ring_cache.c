/* A KV cache of its own behind kvsim's protocol (docs/protocol.md): one file, no library.
 *
 *     cc -O2 -o ring_cache examples/ring_cache.c
 *     kvsim difftest --exec ./ring_cache
 *
 * The allocator is a ring: a cursor walks over the cells and takes the next free one. llama.cpp searches
 * otherwise, so cells cannot be compared; what the next token of each sequence attends to can.
 *
 * -DFAULT puts a fault in: removing a sequence from a shared cell frees the cell for its other owners too.
 *
 * The program has three parts: the cache, just enough JSON to read requests, and the loop between the two.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 4096, MAX_SEQ = 256, MAX_TOKENS = 4096, MAX_IDS = 256 };

/* ---- the cache --------------------------------------------------------------------------------------- */

struct cell {
    int pos; /* -1: free */
    int tok;
    bool owner[MAX_SEQ];
};

static struct cell cells[MAX_CELLS];
static int n_cells, n_ubatch, cursor;

static void create(int size, int ubatch) {
    n_cells = size < MAX_CELLS ? size : MAX_CELLS;
    n_ubatch = ubatch;
    cursor = 0;
    for (int i = 0; i < n_cells; i++) cells[i] = (struct cell){.pos = -1};
}

static int n_free(void) {
    int n = 0;
    for (int i = 0; i < n_cells; i++) n += cells[i].pos < 0;
    return n;
}

static struct cell *next_free(void) {
    while (cells[cursor].pos >= 0) cursor = (cursor + 1) % n_cells;
    return &cells[cursor];
}

static void leave(struct cell *c, int seq) {
    c->owner[seq] = false;
    bool owned = false;
    for (int s = 0; s < MAX_SEQ; s++) owned |= c->owner[s];
#ifdef FAULT
    owned = false;
#endif
    if (!owned) *c = (struct cell){.pos = -1};
}

/* Half-open ranges; p0 < 0 is 0, p1 < 0 is the end. */
static bool in_range(const struct cell *c, int seq, int p0, int p1) {
    return c->pos >= 0 && c->owner[seq] && c->pos >= p0 && (p1 < 0 || c->pos < p1);
}

static void seq_rm(int seq, int p0, int p1) {
    for (int s = seq < 0 ? 0 : seq; s <= (seq < 0 ? MAX_SEQ - 1 : seq); s++)
        for (int i = 0; i < n_cells; i++)
            if (in_range(&cells[i], s, p0, p1)) leave(&cells[i], s);
}

static void seq_cp(int src, int dst, int p0, int p1) {
    for (int i = 0; i < n_cells; i++)
        if (in_range(&cells[i], src, p0, p1)) cells[i].owner[dst] = true;
}

static void seq_keep(int seq) {
    for (int s = 0; s < MAX_SEQ; s++)
        if (s != seq) seq_rm(s, 0, -1);
}

static void seq_add(int seq, int p0, int p1, int delta) {
    for (int i = 0; i < n_cells; i++)
        if (in_range(&cells[i], seq, p0, p1)) {
            cells[i].pos += delta;
            if (cells[i].pos < 0) cells[i] = (struct cell){.pos = -1};
        }
}

struct token {
    int tok, pos, n_ids, ids[MAX_IDS];
};

static struct token batch[MAX_TOKENS];
static int n_batch;

/* Place all tokens or none. If ubatch `fail` does not compute, its positions go again, and `code` is returned;
 * the ubatches before it stay, those after it are not placed. */
static int decode(int fail, int code) {
    if (n_batch > n_free()) return 1;
    for (int first = 0, u = 0; first < n_batch; first += n_ubatch, u++) {
        int last = first + n_ubatch < n_batch ? first + n_ubatch : n_batch;
        for (int i = first; i < last; i++) {
            struct cell *c = next_free();
            c->pos = batch[i].pos;
            c->tok = batch[i].tok;
            for (int k = 0; k < batch[i].n_ids; k++) c->owner[batch[i].ids[k]] = true;
        }
        if (u == fail) {
            for (int i = first; i < last; i++)
                for (int k = 0; k < batch[i].n_ids; k++) seq_rm(batch[i].ids[k], batch[i].pos, -1);
            return code;
        }
    }
    return 0;
}

/* ---- JSON, as far as requests need it ------------------------------------------------------------------ */

/* What stands behind "key": in a request; NULL if it is not there. */
static const char *find(const char *line, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = line ? strstr(line, quoted) : NULL;
    return at ? at + strlen(quoted) : NULL;
}

static int integer(const char *line, const char *key, int missing) {
    const char *at = find(line, key);
    return at ? atoi(at) : missing;
}

/* Read "[1,2,3]" into `out`; returns what is behind it, NULL if there is no list. */
static const char *integers(const char *at, int *out, int *n, int max) {
    *n = 0;
    if (!at || *at != '[') return NULL;
    for (at++; *at && *at != ']';) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || *n == max) return NULL;
        out[(*n)++] = (int)value;
        at = *end == ',' ? end + 1 : end;
    }
    return *at ? at + 1 : NULL;
}

/* The tokens of a decode. A batch of embeddings has no tokens: their id counts as -1. */
static bool read_batch(const char *line) {
    static int tok[MAX_TOKENS], pos[MAX_TOKENS];
    int n_tok, n_pos;
    if (!integers(find(line, "pos"), pos, &n_pos, MAX_TOKENS)) return false;
    bool has_tokens = integers(find(line, "tokens"), tok, &n_tok, MAX_TOKENS) != NULL;
    const char *at = find(line, "seq");
    if (!at || *at++ != '[') return false;
    for (n_batch = 0; n_batch < n_pos && *at == '['; n_batch++) {
        struct token *t = &batch[n_batch];
        at = integers(at, t->ids, &t->n_ids, MAX_IDS);
        if (!at) return false;
        t->pos = pos[n_batch];
        t->tok = has_tokens ? tok[n_batch] : -1;
        if (*at == ',') at++;
    }
    return n_batch == n_pos;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

/* {"i":3,"ret":0,"after":{"reads":{"kv":{"0":[[0,17],[1,18]]}}}} */
static void answer(int i, const char *ret) {
    printf("{\"i\":%d,\"ret\":%s,\"after\":{\"reads\":{\"kv\":{", i, ret);
    const char *between_seqs = "";
    for (int s = 0; s < MAX_SEQ; s++) {
        const char *between = "";
        for (int c = 0; c < n_cells; c++) {
            if (cells[c].pos < 0 || !cells[c].owner[s]) continue;
            if (!*between) printf("%s\"%d\":[", between_seqs, s);
            printf("%s[%d,%d]", between, cells[c].pos, cells[c].tok);
            between = ",";
        }
        if (*between) {
            printf("]");
            between_seqs = ",";
        }
    }
    printf("}}}}\n");
    fflush(stdout);
}

static bool is(const char *line, const char *op) {
    const char *at = find(line, "op");
    size_t n = strlen(op);
    return at && at[0] == '"' && !strncmp(at + 1, op, n) && at[n + 1] == '"';
}

static void serve(const char *line) {
    int i = integer(line, "i", 0);
    int seq = integer(line, "seq", 0), p0 = integer(line, "p0", -1), p1 = integer(line, "p1", -1);
    char ret[16] = "null";
    if (is(line, "hello")) {
        printf("{\"kvsim\":1,\"name\":\"ring_cache\",\"observes\":\"behaviour\",\"memories\":[\"kv\"],"
               "\"operations\":[\"decode\",\"seq_rm\",\"seq_cp\",\"seq_keep\",\"seq_add\",\"clear\"]}\n");
        fflush(stdout);
        return;
    }
    if (is(line, "create")) {
        if (integer(line, "n_stream", 1) > 1 || integer(line, "n_pos_per_embd", 1) > 1) {
            printf("{\"i\":%d,\"unsupported\":\"one stream, one position per token\"}\n", i);
            fflush(stdout);
            return;
        }
        create(integer(line, "size", 0), integer(line, "n_ubatch", 1));
    } else if (is(line, "decode")) {
        /* "abort_at_ubatch":1, or "fault":{"kind":"alloc","ubatch":1} */
        const char *fault = find(line, "fault");
        int fail = fault ? integer(fault, "ubatch", -1) : integer(line, "abort_at_ubatch", -1);
        int code = fault ? (strstr(fault, "\"alloc\"") ? -2 : -3) : 2;
        snprintf(ret, sizeof ret, "%d", read_batch(line) ? decode(fail, code) : -1);
    } else if (is(line, "seq_rm")) {
        seq_rm(seq, p0, p1);
        strcpy(ret, "1");
    } else if (is(line, "seq_cp")) {
        seq_cp(integer(line, "src", 0), integer(line, "dst", 0), p0, p1);
    } else if (is(line, "seq_keep")) {
        seq_keep(seq);
    } else if (is(line, "seq_add")) {
        seq_add(seq, p0, p1, integer(line, "delta", 0));
    } else if (is(line, "clear")) {
        create(n_cells, n_ubatch);
    }
    answer(i, ret);
}

int main(void) {
    static char line[1 << 20];
    while (fgets(line, sizeof line, stdin)) serve(line);
    return 0;
}
