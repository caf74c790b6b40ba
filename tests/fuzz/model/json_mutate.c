/* SPDX-License-Identifier: Apache-2.0 */
#include "json_mutate.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 8u
/* jansson holds no integer of more than 64 bits: such a number is a text with this mark until the document is written.
 */
#define WIDE_MARK "@wide:"

/* A value's place, and the fields that lead to it: keys[0..depth) of objects; an entry of a list has no key. */
struct place {
    json_t *parent;
    const char *key; /* NULL: entry `index` of a list */
    size_t index;
    const char *keys[DEPTH_MAX];
    size_t depth;
};

uint64_t json_mutate_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

uint64_t json_mutate_seed(const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash ? hash : 1;
}

static size_t below(uint64_t *state, size_t limit)
{
    return (size_t)(json_mutate_random(state) >> 16) % limit;
}

static json_t *value_at(const struct place *p)
{
    return p->key ? json_object_get(p->parent, p->key) : json_array_get(p->parent, p->index);
}

/* Takes the reference to v. */
static void put(const struct place *p, json_t *v)
{
    if (p->key)
        json_object_set_new(p->parent, p->key, v);
    else
        json_array_set_new(p->parent, p->index, v);
}

static const char *key_at(json_t *object, size_t index)
{
    void *it = json_object_iter(object);

    while (index--)
        it = json_object_iter_next(object, it);
    return json_object_iter_key(it);
}

static size_t children(const json_t *v)
{
    return json_is_array(v) ? json_array_size(v) : json_object_size(v);
}

/* A field or entry of parent, which must have one. A field is drawn again if it has none itself: most fields of a
 * config.json are plain values, and the language model's are one level down in some. */
static void child_choose(json_t *parent, struct place *p, uint64_t *state)
{
    p->parent = parent;
    p->key = NULL;
    if (json_is_array(parent)) {
        p->index = below(state, json_array_size(parent));
        return;
    }
    for (int draws = 0; draws < 2 && (!p->key || !children(value_at(p))); draws++)
        p->key = key_at(parent, below(state, json_object_size(parent)));
    p->keys[p->depth++] = p->key;
}

/* Three of four times the walk goes on inside an object or a list. -1: nothing is there. */
static int choose(json_t *root, struct place *p, uint64_t *state)
{
    json_t *in = root;

    *p = (struct place){0};
    if (!children(root))
        return -1;
    do {
        child_choose(in, p, state);
        in = value_at(p);
    } while (p->depth < DEPTH_MAX && children(in) && below(state, 4));
    return 0;
}

static json_t *edge_value(uint64_t *state)
{
    static const json_int_t whole[] = {0, -1, 1, 2, 3, 513, INT32_MAX, 1ll << 31, UINT32_MAX, 1ll << 53, INT64_MAX};
    static const double real[] = {0.5, -0.0, 1e-45, 1e308, -1e308, 4294967296.5};
    static const char *const text[] = {"", "yarn", "0", WIDE_MARK "9223372036854775808", WIDE_MARK "-1e400"};

    switch (below(state, 8)) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(below(state, 2));
    case 2:
        return json_string(text[below(state, sizeof text / sizeof *text)]);
    case 3:
        return json_real(real[below(state, sizeof real / sizeof *real)]);
    case 4:
        return json_pack("[i,s,n]", 1, "full_attention");
    case 5:
        return json_pack("{s:s,s:i}", "rope_type", "linear", "factor", 0);
    default:
        return json_integer(whole[below(state, sizeof whole / sizeof *whole)]);
    }
}

static json_t *near_number(const json_t *v, uint64_t *state)
{
    static const double factors[] = {0.5, 2, -1, 1 + 0x1p-52};
    json_int_t i = json_integer_value(v);

    if (!json_is_integer(v) || i > INT32_MAX || i < INT32_MIN)
        return json_real(json_number_value(v) * factors[below(state, sizeof factors / sizeof *factors)]);
    switch (below(state, 4)) {
    case 0:
        return json_integer(i + 1);
    case 1:
        return json_integer(i - 1);
    case 2:
        return json_integer(i * 2);
    default:
        return json_integer(i / 2);
    }
}

static void drop(const struct place *p)
{
    if (p->key)
        json_object_del(p->parent, p->key);
    else
        json_array_remove(p->parent, p->index);
}

/* The value of the same path; NULL: other has none. */
static json_t *same_path(const json_t *other, const struct place *p)
{
    json_t *v = (json_t *)other;

    for (size_t i = 0; i < p->depth; i++)
        v = json_object_get(v, p->keys[i]);
    return v;
}

/* Also fields that doc does not have: everything that stands beside p in other may come. */
static void take_from_other(const struct place *p, const json_t *other, uint64_t *state)
{
    struct place beside = *p;
    json_t *object;

    if (p->key && below(state, 2)) {
        if (same_path(other, p))
            put(p, json_deep_copy(same_path(other, p)));
        return;
    }
    beside.depth -= p->key != NULL;
    object = same_path(other, &beside);
    if (!p->key || !json_object_size(object))
        return;
    beside.key = key_at(object, below(state, json_object_size(object)));
    json_object_set_new(p->parent, beside.key, json_deep_copy(json_object_get(object, beside.key)));
}

/* A field stands twice then: outside text_config and inside, or in the rope object and beside it. */
static void take_from_self(json_t *root, const struct place *p, uint64_t *state)
{
    struct place to;

    if (!p->key || choose(root, &to, state) < 0 || !to.key || to.parent == p->parent)
        return;
    json_object_set_new(to.parent, p->key, json_deep_copy(value_at(p)));
}

static void change(json_t *root, const json_t *other, uint64_t *state)
{
    struct place p;
    json_t *v;

    if (choose(root, &p, state) < 0)
        return;
    v = value_at(&p);
    switch (below(state, 8)) {
    case 0:
        drop(&p);
        return;
    case 1:
    case 2:
        take_from_other(&p, other, state);
        return;
    case 3:
        take_from_self(root, &p, state);
        return;
    case 4:
    case 5:
        if (json_is_number(v))
            put(&p, near_number(v, state));
        else if (json_is_array(v))
            json_array_extend(v, v);
        return;
    default:
        put(&p, edge_value(state));
    }
}

/* "@wide:123" becomes 123. */
static void widen(char *text)
{
    char *mark, *end;

    while ((mark = strstr(text, "\"" WIDE_MARK))) {
        end = strchr(mark + 1, '"');
        memmove(end, end + 1, strlen(end + 1) + 1);
        text = mark + strlen("\"" WIDE_MARK);
        memmove(mark, text, strlen(text) + 1);
        text = mark;
    }
}

char *json_mutate(const json_t *doc, const json_t *other, uint64_t *state, size_t *bytes)
{
    json_t *root = json_deep_copy(doc);
    char *text;

    for (size_t n = 1 + below(state, 3); n--;)
        change(root, other, state);
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text)
        return NULL;
    widen(text);
    *bytes = strlen(text);
    return text;
}
