/* SPDX-License-Identifier: Apache-2.0 */
#include "captured.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "duckctl/duckctl.h"

static char *read_back(FILE *f)
{
    long bytes;
    char *text;

    fseek(f, 0, SEEK_END);
    bytes = ftell(f);
    rewind(f);
    text = calloc(1, (size_t)bytes + 1);
    if (!text || fread(text, 1, (size_t)bytes, f) != (size_t)bytes)
        abort();
    fclose(f);
    return text;
}

struct captured captured_run(int (*fn)(void *ctx), void *ctx)
{
    FILE *files[2] = {tmpfile(), tmpfile()};
    int before[2] = {dup(1), dup(2)};
    struct captured c;

    fflush(stdout);
    fflush(stderr);
    dup2(fileno(files[0]), 1);
    dup2(fileno(files[1]), 2);
    c.rc = fn(ctx);
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; i++) {
        dup2(before[i], 1 + i);
        close(before[i]);
    }
    c.out = read_back(files[0]);
    c.err = read_back(files[1]);
    return c;
}

void captured_free(struct captured *c)
{
    free(c->out);
    free(c->err);
}

int occurrences(const char *text, const char *part)
{
    int n = 0;

    for (const char *p = text; (p = strstr(p, part)); p += strlen(part))
        n++;
    return n;
}

struct words {
    char *v[32];
    int count;
};

static int run_verb(void *ctx)
{
    struct words *w = ctx;

    for (const struct verb *const *v = verbs; *v; v++) {
        int names = (*v)->group ? 2 : 1;

        if (w->count >= names && (!(*v)->group || !strcmp(w->v[0], (*v)->group)) &&
            !strcmp(w->v[names - 1], (*v)->name))
            return (*v)->run(*v, w->count - names, w->v + names);
    }
    abort();
}

struct captured captured_duckctl(const char *word, ...)
{
    struct words w = {.count = 0};
    va_list more;

    va_start(more, word);
    for (; word; word = va_arg(more, const char *))
        w.v[w.count++] = (char *)(uintptr_t)word;
    va_end(more);
    return captured_run(run_verb, &w);
}
