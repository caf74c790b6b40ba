/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_TOKENIZER_INTERNAL_H
#define DK_MODEL_TOKENIZER_INTERNAL_H

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/pretokenize.h"
#include "model/tokenizer/token_maps.h"
#include "model/tokenizer.h"

/* What tokenizer_added.c, _model.c, _pipeline.c and _post.c read and tokenizer.c, detokenize.c use. */

enum dk_token_flag {
    DK_TOKEN_PRESENT = 1, /* the id exists */
    DK_TOKEN_ADDED = 2,   /* found in the text before everything else */
    DK_TOKEN_SPECIAL = 4, /* left out of decoded text on request */
};

struct dk_token {
    const uint8_t *bytes; /* in the tokenizer's pool */
    uint32_t count;
    uint32_t flags;
};

/* A tree of bytes that finds the longest added token at a place. Nodes are numbered from the root, 0. */
struct dk_added_tree {
    struct dk_pair_map edges; /* dk_pair_key(node, byte) -> child, unused */
    uint32_t *ids;            /* per node: the token that ends there, or DK_NO_TOKEN */
    uint32_t nodes, nodes_max;
    bool starts[256]; /* a token begins with this byte */
};

#define DK_PREFIX_MAX 8 /* tokens before a prompt; releases have one */

struct dk_tokenizer {
    struct dk_token *tokens; /* [size] by id */
    uint32_t size;
    uint32_t token_bytes_max;
    char *pool; /* vocabulary keys, as in the file; then token bytes */
    size_t pool_bytes;
    struct dk_text_map vocab;              /* vocabulary keys */
    struct dk_text_map added;              /* contents of added tokens */
    char *added_pool;                      /* contents as they are, then normalized */
    struct dk_added_tree added_raw;        /* looked for in the text as it is */
    struct dk_added_tree added_normalized; /* looked for in the normalized text */
    struct dk_pretokenizer pre;
    struct dk_bpe bpe;
    uint32_t prefix[DK_PREFIX_MAX]; /* tokens that stand before a prompt */
    uint32_t prefix_count;
    bool nfc;
    bool ignore_merges; /* a word that is itself in the vocabulary is that token, whatever the merges give */
};

/* The printable character that stands for a byte in byte-level vocabularies, below U+0144. */
uint32_t dk_byte_char(uint8_t byte);
/* The byte that a character stands for, or -1. */
int dk_char_byte(uint32_t codepoint);

#endif
