/* SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/split_pattern.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <pcre2.h>

#define PATTERN_BYTES_MAX 16384
#define JIT_STACK_BYTES   ((size_t)4 << 20)
#define HEAP_KIB          (64u << 10)
/* Matching steps for one match: the patterns in use take a few per character. Beyond that the text is hostile. */
#define STEPS_MIN      1000000u
#define STEPS_PER_BYTE 16u

struct dk_pattern {
    pcre2_code *code;
    bool jit;
};

struct dk_matcher {
    const struct dk_pattern *pattern;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* Is the group that opens at text[0] == '(' of a kind that both libraries read alike? */
static bool group_is_plain(const char *text, size_t bytes)
{
    static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};

    if (bytes < 2 || (text[1] != '?' && text[1] != '*'))
        return true;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i]) <= bytes && memcmp(text, kinds[i], strlen(kinds[i])) == 0)
            return true;
    return false;
}

/* Bytes of the escape at text[0] == '\\' when it means the same to both, else 0. */
static size_t escape_bytes(const char *text, size_t bytes)
{
    const char *close = bytes > 2 && text[2] == '{' ? memchr(text, '}', bytes) : NULL;

    if (bytes < 2)
        return 0;
    if (text[1] == 'p' || text[1] == 'P' || text[1] == 'x') /* \p{L}, \x{2028} */
        return close ? (size_t)(close - text) + 1 : 0;
    if ((text[1] >= '0' && text[1] <= '9') || (text[1] >= 'A' && text[1] <= 'Z') || (text[1] >= 'a' && text[1] <= 'z'))
        return strchr("sSdDrntf", text[1]) ? 2 : 0;
    return 2;
}

/* Refuses what Oniguruma and PCRE2 read differently, or what is too odd to trust. */
static int check_dialect(const char *text, size_t bytes, const char *where, struct dk_err *err)
{
    bool in_class = false;

    if (memmem(text, bytes, "\xE1\xA0\x8E", 3) || memmem(text, bytes, "180e", 4) || memmem(text, bytes, "180E", 4))
        return dk_err_set(err, -ENOTSUP, "%s: a pattern that names U+180E is not implemented", where);
    for (size_t i = 0; i < bytes;) {
        size_t left = bytes - i, step = 1;
        bool odd = false;

        if (text[i] == '\\') {
            step = escape_bytes(text + i, left);
            odd = step == 0;
        } else if (in_class) {
            if (text[i] == ']')
                in_class = false;
            else
                odd = text[i] == '[' || (text[i] == '&' && left > 1 && text[i + 1] == '&');
        } else if (text[i] == '[') {
            in_class = true;
            if (left > 1 && text[i + 1] == '^')
                step = 2;
            odd = left > step && text[i + step] == ']';
        } else if (text[i] == '(') {
            odd = !group_is_plain(text + i, left);
        } else if (text[i] == '}') {
            odd = left > 1 && text[i + 1] == '+';
        } else {
            odd = text[i] == '^' || text[i] == '$';
        }
        if (odd)
            return dk_err_set(err, -ENOTSUP, "%s: \"%.*s\" at byte %zu of the pattern is not implemented", where,
                              (int)(left < 3 ? left : 3), text + i, i);
        i += step;
    }
    return 0;
}

int dk_pattern_compile(const char *text, size_t bytes, const char *where, struct dk_pattern **out, struct dk_err *err)
{
    struct dk_pattern *p = NULL;
    uint32_t may_be_empty = 0;
    PCRE2_SIZE at = 0;
    int rc, code = 0;

    *out = NULL;
    if (bytes > PATTERN_BYTES_MAX)
        return dk_err_set(err, -ENOTSUP, "%s: a pattern of %zu bytes, at most %d are read", where, bytes,
                          PATTERN_BYTES_MAX);
    rc = check_dialect(text, bytes, where, err);
    if (rc < 0)
        return rc;
    p = calloc(1, sizeof *p);
    if (!p)
        return dk_err_set(err, -ENOMEM, "%s: no memory", where);
    p->code = pcre2_compile((PCRE2_SPTR)text, bytes, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!p->code) {
        char reason[120];

        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        rc = dk_err_set(err, -EINVAL, "%s: the pattern is wrong at byte %zu: %s", where, (size_t)at, reason);
        goto fail;
    }
    pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty) {
        rc = dk_err_set(err, -ENOTSUP, "%s: a pattern that can match no text at all is not implemented", where);
        goto fail;
    }
    /* Without a just-in-time compiler on this machine, the interpreter gives the same matches. */
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    *out = p;
    return 0;
fail:
    dk_pattern_free(p);
    return rc;
}

void dk_pattern_free(struct dk_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

struct dk_matcher *dk_matcher_new(const struct dk_pattern *p)
{
    struct dk_matcher *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->pattern = p;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) {
        dk_matcher_free(m);
        return NULL;
    }
    pcre2_set_heap_limit(m->context, HEAP_KIB);
    if (p->jit) {
        m->stack = pcre2_jit_stack_create(16384, JIT_STACK_BYTES, NULL);
        if (m->stack)
            pcre2_jit_stack_assign(m->context, NULL, m->stack);
    }
    return m;
}

void dk_matcher_free(struct dk_matcher *m)
{
    if (!m)
        return;
    pcre2_jit_stack_free(m->stack);
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    free(m);
}

int dk_matcher_next(struct dk_matcher *m, const char *subject, size_t bytes, size_t at, size_t *start, size_t *end)
{
    const PCRE2_SIZE *span;
    uint64_t steps = STEPS_MIN + (uint64_t)(bytes - at) * STEPS_PER_BYTE;
    int rc;

    pcre2_set_match_limit(m->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    /* The text was checked once; checking it again for every match would take quadratic time. */
    rc = pcre2_match(m->pattern->code, (PCRE2_SPTR)subject, bytes, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(m->pattern->code, (PCRE2_SPTR)subject, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                         m->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return -ENOMEM;
    if (rc < 0)
        return -E2BIG;
    span = pcre2_get_ovector_pointer(m->data);
    *start = span[0];
    *end = span[1];
    /* A look-behind could only make an empty match through \K, which is refused. */
    return *end > *start ? 1 : -E2BIG;
}

int dk_shadow_new(const char *text, size_t bytes, char **out)
{
    char *at = memmem(text, bytes, "\xE1\xA0\x8E", 3);
    size_t done;

    *out = NULL;
    if (!at)
        return 0;
    *out = malloc(bytes);
    if (!*out)
        return -ENOMEM;
    memcpy(*out, text, bytes);
    done = (size_t)(at - text);
    while ((at = memmem(*out + done, bytes - done, "\xE1\xA0\x8E", 3))) {
        memcpy(at, "\xE2\x80\x8B", 3);
        done = (size_t)(at - *out) + 3;
    }
    return 0;
}
